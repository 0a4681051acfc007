"""Comparisons: what each variant costs on the same work, measured cold and in turn, and said in one row a variant.

The unchanged requests are always measured too, as the reference. Repeats run round by round, every variant once in each, so that
what moves the machine moves all of them; differences are taken within a round.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd
from tqdm.auto import tqdm

from loopkit.cache.variants import Change, Variant, variant_of
from loopkit.errors import InvalidConfig
from loopkit.logs.load import Logs
from loopkit.replay.recorded import Requests, kept, recorded, survey
from loopkit.replay.sending import emptied, sent
from loopkit.server.client import Server

__all__ = ["UNCHANGED", "compare", "summary"]

UNCHANGED: Final = "unchanged"
SURE: Final = 0.95
MEASURES: Final = ("read_tokens", "ttft_ms", "prompt_ms")
COLUMNS: Final = (
    *("variant", "repeat", "request", "session", "prompt_tokens", "cached_tokens", "read_tokens", "expected_tokens"),
    *("reusable_tokens", "lost_tokens", "ttft_ms", "prompt_ms", "cause", "certainty", "where", "completion_tokens", "changed"),
    *("cold", "replay"),
)


def compare(
    requests: Requests,
    server: Server,
    variants: Sequence[Variant | Change | str],
    repeats: int = 1,
    *,
    home: str | Path | None = None,
    progress: bool = True,
) -> pd.DataFrame:
    """Measure what variants cost on the same work.

    Parameters
    ----------
    requests, home
        As `run` takes them.
    server : Server
        An embedded one is the pattern: each run gets a fresh one, started alike, beside it. On any other the pinned slot is
        emptied before each run.
    variants : sequence of Variant, function or str
        See `run`. The unchanged requests are measured before them, as ``"unchanged"``.
    repeats : int
        Rounds.
    progress : bool
        Whether to show a bar.

    Returns
    -------
    DataFrame
        A row is a request of a run: ``variant``, ``repeat`` from 1, ``request``, the ``session`` it is from, its tokens, times,
        and its loss; ``changed``, whether its bytes are other than those of the unchanged; ``cold``, which is ``fresh server``,
        ``slot emptied`` (the host cache of a llama-server may still hold prompts of the run before), or ``no``; and ``replay``,
        its log's id. `summary` and ``plot.compare`` take it.

    Warns
    -----
    UserWarning
        Where a run may find what the one before left.

    Raises
    ------
    InvalidConfig, LogError, ServerError, SessionIOError
        As `run` does; of variants before anything is sent.

    Examples
    --------
    >>> import tempfile, loopkit as lk
    >>> server, home = lk.serve("tiny"), tempfile.mkdtemp()
    >>> body = b'{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi."}]}'
    >>> frame = compare([lk.cache.Prompt(body=body)] * 2, server, ["clock_in_system"], home=home, progress=False)
    >>> frame[["variant", "request", "prompt_tokens", "cause", "cold"]]
               variant  request  prompt_tokens           cause          cold
    0        unchanged        1             42            <NA>  fresh server
    1        unchanged        2             42            <NA>  fresh server
    2  clock_in_system        1             84            <NA>  fresh server
    3  clock_in_system        2             84  system_changed  fresh server
    >>> server.close()
    """
    if repeats < 1:
        raise InvalidConfig("repeats", f"{repeats} is not at least 1")
    requests = kept(requests)
    chosen = [variant_of(variant) for variant in variants]
    names = [UNCHANGED, *(variant.name for variant in chosen)]
    if len(set(names)) < len(names):
        raise InvalidConfig("variants", f"two of {', '.join(names)} have the same name", "Name each differently")
    found = survey(requests, server, chosen)
    sessions = [one.session for one in recorded(requests, server)]
    frames: list[pd.DataFrame] = []
    with tqdm(total=len(names) * repeats * found.requests, unit="request", desc="compare", disable=not progress) as bar:
        for repeat in range(1, repeats + 1):
            for variant in [None, *chosen]:
                with _cold(server, frozenset() if found.loose else found.slots) as (ready, cold):
                    if cold == "no" and not frames:
                        said = "this server can be neither started afresh nor emptied, so a run may find what the one before left"
                        warnings.warn(f"{said}; see the column cold", UserWarning, stacklevel=2)
                    logs = sent(requests, ready, variant, found.session, home=home, on_request=lambda record: bar.update())
                frames.append(_frame(logs, variant, repeat, sessions, cold))
    whole = pd.concat(frames, ignore_index=True)
    whole["changed"] = (whole["sha"] != whole.groupby("request")["sha"].transform("first")).astype("boolean")
    return whole[list(COLUMNS)]


@contextlib.contextmanager
def _cold(server: Server, slots: frozenset[int]) -> Iterator[tuple[Server, str]]:
    """A server that holds nothing of the run before, and how that was brought about."""
    if server.another is not None:
        with server.another() as fresh:
            yield fresh, "fresh server"
    else:
        yield server, "slot emptied" if emptied(server, slots) else "no"


def _frame(logs: Logs, variant: Variant | None, repeat: int, sessions: list[str | None], cold: str) -> pd.DataFrame:
    losses = logs.cache_loss[["request", "cause", "certainty", "where"]]
    frame = logs.usage.rename(columns={"session": "replay", "request_sha256": "sha"}).merge(losses, how="left", on="request")
    frame["variant"] = pd.array([UNCHANGED if variant is None else variant.name] * len(frame), "string")
    frame["repeat"] = pd.array([repeat] * len(frame), "Int64")
    frame["session"] = pd.array(sessions, "string")
    frame["cold"] = pd.array([cold] * len(frame), "string")
    return frame


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Say what each variant costs, in one row.

    Parameters
    ----------
    frame : DataFrame
        Of `compare`.

    Returns
    -------
    DataFrame
        Indexed by variant: ``repeats``, ``requests`` of a run, ``changed`` ones, ``lost_tokens`` and the ``causes``, the most
        frequent first; then for ``read_tokens``, ``ttft_ms`` and ``prompt_ms``, each summed over a run: the median over the
        rounds, and of the differences to the unchanged run of the same round the median (``…_more``) with its interval
        (``…_low``, ``…_high``). The interval holds the true median with the ``confidence`` given.

    Notes
    -----
    The interval assumes nothing of how times are distributed: of *n* differences in order it reaches from the *k*-th to the
    *k*-th from the end, with the largest *k* for which ``1 - 2 P(X < k)``, X binomial of *n* and ½, is at least 0.95. Of fewer
    than six it is all of them, and less sure: 5 give 0.94, 3 give 0.75. One round gives no interval.

    Examples
    --------
    >>> times = [10.0, 12.0, 11.0, 40.0, 44.0, 45.0]
    >>> rows = {"variant": ["unchanged"] * 3 + ["window(2)"] * 3, "repeat": [1, 2, 3] * 2, "request": 1, "changed": True}
    >>> rows |= {"read_tokens": [5] * 3 + [9] * 3, "ttft_ms": times, "prompt_ms": times, "lost_tokens": 4, "cause": None}
    >>> row = summary(pd.DataFrame(rows)).loc["window(2)"]
    >>> row[["read_tokens_more", "ttft_ms_more", "ttft_ms_low", "ttft_ms_high", "confidence"]].astype(float).tolist()
    [4.0, 32.0, 30.0, 34.0, 0.75]
    """
    totals = frame.groupby(["variant", "repeat"], sort=False)[[*MEASURES, "lost_tokens"]].sum(min_count=1).astype("Float64")
    reference = totals.loc[UNCHANGED]
    place, confidence = _interval(len(reference))
    rows: dict[str, dict[str, Any]] = {}
    for variant, runs in frame.groupby("variant", sort=False):
        own = totals.loc[variant]
        rows[str(variant)] = row = {
            "repeats": len(own),
            "requests": runs["request"].nunique(),
            "changed": runs.loc[runs["changed"], "request"].nunique(),
            "lost_tokens": own["lost_tokens"].median(),
            "causes": ", ".join(runs["cause"].value_counts().index),
        }
        for name in MEASURES:
            more = (own[name] - reference[name]).dropna().sort_values()
            known = confidence is not None and len(more) == len(reference)
            row[name], row[f"{name}_more"] = own[name].median(), more.median()
            row[f"{name}_low"] = more.iloc[place] if known else pd.NA
            row[f"{name}_high"] = more.iloc[-1 - place] if known else pd.NA
        row["confidence"] = confidence
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("variant").convert_dtypes()


def _interval(repeats: int) -> tuple[int, float | None]:
    """How many differences in order are left out at each end, and how sure the rest is; None of one."""
    tails = [sum(math.comb(repeats, wins) for wins in range(place + 1)) / 2**repeats for place in range((repeats + 1) // 2)]
    place = max((at for at, tail in enumerate(tails) if 1 - 2 * tail >= SURE), default=0)
    return place, None if repeats == 1 else 1 - 2 * tails[place]
