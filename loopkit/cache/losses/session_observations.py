"""Observations of requests rebuilt from a session's log: bodies, counters and tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from loopkit.contract.baseline import Baseline
from loopkit.contract.records import CacheLoss, LogRecord, SessionStart
from loopkit.contract.request import replayed
from loopkit.engines.evidence.observation import Counters, Observation, TokenComparison
from loopkit.engines.evidence.tokens import TokenView

__all__ = ["observations"]


class _Epoch(Protocol):
    @property
    def start(self) -> SessionStart: ...
    @property
    def baseline(self) -> Baseline: ...
    @property
    def records(self) -> Sequence[LogRecord]: ...


class _Session(Protocol):
    @property
    def epochs(self) -> Sequence[_Epoch]: ...


def observations(session: _Session, tokens: Callable[[bytes], TokenView | None] | None = None) -> Iterator[Observation]:
    """Yield an `Observation` of each request of a session, for `diagnose` and `cost`.

    Bodies are rebuilt from the log. A recorded loss contains the server's counters around the request and the one before it, and
    the comparison of their tokens. Other observations have neither.

    Parameters
    ----------
    session : Session
        The session, or any other object with ``epochs``.
    tokens : callable, optional
        A function that returns the tokens of a request body, such as ``server.tokens``. Without it, token comparisons are known
        only for requests with a recorded loss.

    Yields
    ------
    Observation
        One per request, in the order of the log.
    """
    for epoch in session.epochs:
        yield from _of_epoch(epoch, tokens)


def _of_epoch(epoch: _Epoch, tokens: Callable[[bytes], TokenView | None] | None) -> Iterator[Observation]:
    start, last = epoch.start, None
    for at, record, request in replayed(start, epoch.baseline, epoch.records):
        body = request.body
        now = Observation(
            usage=record.usage,
            session=start.session,
            epoch=start.epoch,
            request=record.request,
            time=record.time,
            elapsed_ms=record.elapsed_ms,
            slot=start.slot,
            body=body,
            tokens=None if tokens is None else tokens(body),
            engine=start.server.engine,
            model=start.server.model,
            context_size=start.server.context_size,
        )
        loss = epoch.records[at + 1] if at + 1 < len(epoch.records) else None
        if isinstance(loss, CacheLoss):
            before, now = _with(loss.evidence, last, now)
            last = before
        if last is not None:
            yield last
        last = now
    if last is not None:
        yield last


def _with(evidence: dict[str, Any], previous: Observation | None, now: Observation) -> tuple[Observation | None, Observation]:
    """Return copies of two observations, with the counters and the token comparison that a recorded loss contains."""
    counters = evidence.get("counters", {})
    before, after = (_counters(counters.get("now", {}).get(name)) for name in ("before", "after"))
    rendered = evidence.get("rendered")
    found = None if rendered is None else TokenComparison(**rendered)
    now = replace(now, before=before, after=after, rendered=found, restored=evidence.get("restored_tokens"))
    if previous is not None:
        known = {name: _counters(counters.get("previous", {}).get(name)) for name in ("before", "after")}
        previous = replace(previous, before=known["before"] or previous.before, after=known["after"] or previous.after)
    return previous, now


def _counters(value: dict[str, Any] | None) -> Counters | None:
    return None if value is None else msgspec.convert(value, Counters)
