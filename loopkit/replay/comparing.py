"""Comparisons: what each variant costs on the same work, measured one after the other, each cold.

The unchanged requests are always measured too, as the reference. Repeats run round by round, every variant once in each, so that
what moves the machine moves all of them. What it comes to is said in ``costs``.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pandas as pd
from tqdm.auto import tqdm

from loopkit.contract.records import ReplayRecord
from loopkit.errors import InvalidConfig, kind_of
from loopkit.logs.collection import Logs
from loopkit.replay.costs import UNCHANGED
from loopkit.replay.recorded import Requests, kept, survey
from loopkit.replay.sending import emptied, sent
from loopkit.replay.variants import Change, Variant, variant_of
from loopkit.server.client import Server
from loopkit.server.completion.assembly import Delta
from loopkit.server.transport.cancellation import HangUp

__all__ = ["compare", "variants_of"]

COLUMNS: Final = (
    *("variant", "repeat", "request", "session", "prompt_tokens", "cached_tokens", "read_tokens", "expected_tokens"),
    *("reusable_tokens", "lost_tokens", "ttft_ms", "prompt_ms", "cause", "certainty", "location", "completion_tokens", "changed"),
    *("cold", "cold_by", "replay"),
)


SHOWN_EACH: Final = 32
"Pieces of an answer after which the bar says how many there are."


def compare(
    requests: Requests,
    server: Server,
    variants: Sequence[Variant | Change | str] | Variant | Change | str,
    repeats: int = 1,
    *,
    home: str | Path | None = None,
    progress: bool = True,
    on_request: Callable[[ReplayRecord], object] | None = None,
    on_run: Callable[[pd.DataFrame], object] | None = None,
    hang_up: HangUp | None = None,
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
        See `run`; one by itself is taken, too. The unchanged requests are measured before them, as ``"unchanged"``.
    repeats : int
        Rounds.
    progress : bool
        Whether to show a bar.
    on_request, on_run : callable, optional
        Told of each request as it is logged; and of all rows there are whenever a run has ended.
    hang_up : HangUp, optional
        Setting it, from any thread, cuts the request under way: what comes out is the error of a cut connection.

    Returns
    -------
    DataFrame
        A row is a request of a run: ``variant``, ``repeat`` from 1, ``request``, the ``session`` it is from, its tokens, times,
        and its loss; ``changed``, whether its bytes are other than those of the unchanged; ``cold``, whether its run could find
        nothing of the one before, and ``cold_by``, which is ``fresh server`` or ``slot emptied`` (a llama-server's host cache may
        still hold prompts then); and ``replay``, its log's id. `summary` and ``plot.compare`` take it.

    Warns
    -----
    UserWarning
        Where a run may find what the one before left.

    Raises
    ------
    InvalidConfig, LogError, ServerError, SessionIOError
        As `run` does; of variants before anything is sent.

    Notes
    -----
    Each body keeps its own limits. One without ``max_tokens`` is answered until the model stops or the context is full, which may
    take minutes; the bar says how much is written. To bound that, start sessions with ``options={"max_tokens": …}``.

    Examples
    --------
    >>> import tempfile, loopkit as lk
    >>> server, home = lk.serve("tiny"), tempfile.mkdtemp()
    >>> body = b'{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi."}]}'
    >>> frame = compare([lk.cache.Prompt(body=body)] * 2, server, ["clock_in_system"], home=home, progress=False)
    >>> frame[["variant", "request", "prompt_tokens", "cause", "cold_by"]]
               variant  request  prompt_tokens           cause       cold_by
    0        unchanged        1             42            <NA>  fresh server
    1        unchanged        2             42            <NA>  fresh server
    2  clock_in_system        1             84            <NA>  fresh server
    3  clock_in_system        2             84  system_changed  fresh server
    >>> server.close()
    """
    if repeats < 1:
        raise InvalidConfig("repeats", f"{repeats} is not at least 1")
    requests = kept(requests)
    chosen = variants_of(variants)
    names = [UNCHANGED, *(variant.name for variant in chosen)]
    found = survey(requests, server, chosen)
    frames: list[pd.DataFrame] = []

    written = 0

    def counted(record: ReplayRecord) -> None:
        nonlocal written
        written = 0
        bar.update()
        if on_request is not None:
            on_request(record)

    def grew(_: Delta) -> None:
        nonlocal written
        written += 1
        if written % SHOWN_EACH == 0:  # a body without max_tokens may be answered for minutes
            bar.set_postfix_str(f"about {written:,} tokens written of this answer")

    with tqdm(total=len(names) * repeats * len(found.sessions), unit="request", desc="compare", disable=not progress) as bar:
        for repeat in range(1, repeats + 1):
            for variant in [None, *chosen]:
                with _cold(server, found.slots) as (ready, cold_by, why_not):
                    if why_not is not None and not frames:
                        said = f"a run may find what the one before left, see the column cold: {why_not}"
                        warnings.warn(said, UserWarning, stacklevel=2)
                    whose = found.session
                    logs = sent(requests, ready, variant, whose, home=home, on_request=counted, on_delta=grew, hang_up=hang_up)
                frames.append(_frame(logs, variant, repeat, found.sessions, cold_by))
                if on_run is not None:
                    on_run(_joined(frames))
    return _joined(frames)


def variants_of(variants: Sequence[Variant | Change | str] | Variant | Change | str) -> list[Variant]:
    """What is to be measured beside the unchanged requests.

    Raises
    ------
    InvalidConfig
        When there is no such variant, or two have the same name.
    """
    several = [variants] if isinstance(variants, str | Variant) or callable(variants) else variants
    if not isinstance(several, Iterable):
        raise InvalidConfig("variants", f"{kind_of(several)} is no list of variants", "Give names, or functions")
    chosen = [variant_of(variant) for variant in several]
    names = [UNCHANGED, *(variant.name for variant in chosen)]
    if len(set(names)) < len(names):
        raise InvalidConfig("variants", f"two of {', '.join(names)} have the same name", "Name each differently")
    return chosen


def _joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The rows of several runs, the unchanged first."""
    whole = pd.concat(frames, ignore_index=True)
    whole["changed"] = (whole["sha"] != whole.groupby("request")["sha"].transform("first")).astype("boolean")
    return whole[list(COLUMNS)]


class _Ready(NamedTuple):
    """A server that holds nothing of the run before, how that was brought about, or why it was not."""

    server: Server
    cold_by: str | None
    why_not: str | None = None


@contextlib.contextmanager
def _cold(server: Server, slots: list[int]) -> Iterator[_Ready]:
    if server.another is not None:
        with server.another() as fresh:
            yield _Ready(fresh, "fresh server")
    else:
        why_not = emptied(server, slots)
        yield _Ready(server, "slot emptied" if why_not is None else None, why_not)


def _frame(logs: Logs, variant: Variant | None, repeat: int, sessions: list[str | None], cold_by: str | None) -> pd.DataFrame:
    losses = logs.cache_loss[["request", "cause", "certainty", "location"]]
    frame = logs.usage.rename(columns={"session": "replay", "request_sha256": "sha"}).merge(losses, how="left", on="request")
    frame["variant"] = pd.array([UNCHANGED if variant is None else variant.name] * len(frame), "string")
    frame["repeat"] = pd.array([repeat] * len(frame), "Int64")
    frame["session"] = pd.array(sessions, "string")
    frame["cold"] = pd.array([cold_by is not None] * len(frame), "boolean")
    frame["cold_by"] = pd.array([cold_by] * len(frame), "string")
    return frame
