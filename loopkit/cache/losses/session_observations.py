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
    """Yield the requests of a session from its log: bodies rebuilt, counters and tokens as recorded at losses.

    Parameters
    ----------
    session : Session
        Any object with epochs.
    tokens : callable, optional
        A function from body to tokens, such as ``server.tokens``. Without it tokens are known only where a loss recorded them.

    Yields
    ------
    Observation
        In order.
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
    """Return two requests with the evidence that a loss recorded of them."""
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
