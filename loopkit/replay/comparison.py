"""Comparisons of variants on the same requests, each run with a cold cache.

A variant is one deliberate change of the requests. The unchanged requests are always measured too, as the reference. Each round
runs every variant once, so that a machine that becomes slower or faster affects all variants.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pandas as pd

from loopkit.contract.records import ReplayRecord
from loopkit.deprecation import renamed_argument
from loopkit.errors import InvalidConfig, kind_of
from loopkit.logs.collection import Logs
from loopkit.progress import progress_bar
from loopkit.replay.recorded_requests import Requests, as_repeatable, survey
from loopkit.replay.runs import empty_slots, send_all
from loopkit.replay.summaries import UNCHANGED
from loopkit.replay.variants import Change, Variant, variant_of
from loopkit.server.client import Server
from loopkit.server.completion.deltas import Delta
from loopkit.server.transport.cancellation import Cancellation

__all__ = ["compare", "variants_of"]

COLUMNS: Final = (
    *("variant", "repeat", "request", "session", "prompt_tokens", "cached_tokens", "read_tokens", "expected_tokens"),
    *("reusable_tokens", "lost_tokens", "ttft_ms", "prompt_ms", "cause", "certainty", "location", "completion_tokens", "changed"),
    *("cold", "cold_by", "replay"),
)


EVENTS_BETWEEN_UPDATES: Final = 32
"Number of stream events between two updates of the progress bar."


@renamed_argument("hang_up", "cancellation")
def compare(
    requests: Requests,
    server: Server,
    variants: Sequence[Variant | Change | str] | Variant | Change | str,
    repeats: int = 1,
    *,
    home: str | Path | None = None,
    progress: bool | None = None,
    on_request: Callable[[ReplayRecord], object] | None = None,
    on_run: Callable[[pd.DataFrame], object] | None = None,
    cancellation: Cancellation | None = None,
) -> pd.DataFrame:
    """Replay the same requests unchanged and with each variant, and return tokens, times and losses of every request.

    Parameters
    ----------
    requests : Logs, Session, or iterable of Request or Prompt
        As for `run`.
    server : Server
        If this is an embedded server, each run uses a new server with the same settings. On another server, the slots that the
        requests name are erased before each run.
    variants : Variant, function, str, or sequence of them
        As for `run`. The unchanged requests are measured first, as the variant ``"unchanged"``.
    repeats : int
        Number of rounds. Each round runs the unchanged requests and every variant once.
    home : str or Path, optional
        As for `run`.
    progress : bool, optional
        True to show a progress bar. By default it is shown if standard error is a terminal or a notebook.
    on_request : callable, optional
        Called with the `ReplayRecord` of each request.
    on_run : callable, optional
        Called after each run with the frame of all rows so far.
    cancellation : Cancellation, optional
        Set it from another thread to cancel the current request. `compare` then raises the error of the broken connection.

    Returns
    -------
    DataFrame
        One row per request of each run, for `summary` and ``plot.compare``. ``variant``: name of the variant. ``repeat``: number
        of the round, from 1. ``request``: number of the request, from 1. ``session``: the recorded session. Tokens, times and
        losses are as in ``Logs.usage``. ``changed``: True if the variant changed the bytes of the request. ``cold``: True if the
        run started with an empty cache. ``cold_by``: ``fresh server`` or ``slot emptied``. After ``slot emptied``, a
        llama-server may still have prompts in its host cache (in main memory). ``replay``: id of the run's log.

    Warns
    -----
    UserWarning
        If the cache could not be emptied, so a run may reuse prompts of an earlier run.

    Raises
    ------
    InvalidConfig, LogError, ServerError, SessionIOError
        As for `run`. All requests and variants are checked before the first request is sent.

    Notes
    -----
    If a body has no ``max_tokens``, the server generates until the model stops or the context is full, which may take minutes.
    The progress bar shows the tokens generated so far. To limit them, start sessions with ``options={"max_tokens": …}``.

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
        raise InvalidConfig("repeats", f"expected an integer of at least 1; got {repeats!r}", "Give 1 or more")
    requests = as_repeatable(requests)
    chosen = variants_of(variants)
    names = [UNCHANGED, *(variant.name for variant in chosen)]
    found = survey(requests, server, chosen)
    frames: list[pd.DataFrame] = []

    written = 0

    def on_record(record: ReplayRecord) -> None:
        nonlocal written
        written = 0
        bar.update()
        if on_request is not None:
            on_request(record)

    def on_event(_: Delta) -> None:
        nonlocal written
        written += 1
        if written % EVENTS_BETWEEN_UPDATES == 0:  # a response without max_tokens may take minutes
            bar.set_postfix_str(f"about {written:,} tokens written")

    total = len(names) * repeats * len(found.sessions)
    with progress_bar(progress=progress, total=total, unit="request", label="compare") as bar:
        for repeat in range(1, repeats + 1):
            for variant in [None, *chosen]:
                with _cold(server, found.slots) as (ready, cold_by, why_not):
                    if why_not is not None and not frames:
                        message = (
                            f"A run may find prompts that an earlier run left in the cache (see the column `cold`): {why_not}."
                        )
                        warnings.warn(message, UserWarning, stacklevel=2)
                    whose = found.session
                    logs = send_all(
                        requests,
                        ready,
                        variant,
                        whose,
                        home=home,
                        on_request=on_record,
                        on_delta=on_event,
                        cancellation=cancellation,
                    )
                frames.append(_frame(logs, variant, repeat, found.sessions, cold_by))
                if on_run is not None:
                    on_run(_joined(frames))
    return _joined(frames)


def variants_of(variants: Sequence[Variant | Change | str] | Variant | Change | str) -> list[Variant]:
    """Return the variants as a list, with functions and names converted. The unchanged requests are not in it.

    Raises
    ------
    InvalidConfig
        If a variant is unknown, or two have the same name.
    """
    several = [variants] if isinstance(variants, str | Variant) or callable(variants) else variants
    if not isinstance(several, Iterable):
        raise InvalidConfig("variants", f"expected variants; got {kind_of(several)}", "Give names or functions")
    chosen = [variant_of(variant) for variant in several]
    names = [UNCHANGED, *(variant.name for variant in chosen)]
    if len(set(names)) < len(names):
        raise InvalidConfig("variants", f"two variants have the same name: {', '.join(names)}", "Give each its own name")
    return chosen


def _joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of all runs as one frame, with the column ``changed``. The first frame has the unchanged requests."""
    whole = pd.concat(frames, ignore_index=True)
    whole["changed"] = (whole["sha"] != whole.groupby("request")["sha"].transform("first")).astype("boolean")
    return whole[list(COLUMNS)]


class _Ready(NamedTuple):
    """A server for one run, how the cache was emptied (None if it was not), and why it could not be emptied."""

    server: Server
    cold_by: str | None
    why_not: str | None = None


@contextlib.contextmanager
def _cold(server: Server, slots: list[int]) -> Iterator[_Ready]:
    if server.another is not None:
        with server.another() as fresh:
            yield _Ready(fresh, "fresh server")
    else:
        why_not = empty_slots(server, slots)
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
