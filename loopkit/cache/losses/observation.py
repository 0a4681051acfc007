"""What is known of one request when a loss is judged: `Seen`, and what its server counted around it: `Counters`.

Everything here can be written down and read again: ``diagnose`` works the same live and afterwards, in another process. Holds
facts only, and judges none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

import msgspec

from loopkit.cache.losses.token_comparison import Rendered
from loopkit.contract.baseline import Baseline
from loopkit.contract.records import CacheLoss, LogRecord, SessionStart, Usage
from loopkit.contract.request import replayed
from loopkit.encoding import decode, encode
from loopkit.errors import InvalidConfig
from loopkit.server.prompt.token_view import TokenView

__all__ = ["Counters", "Seen", "seen_in"]


class Counters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a server counts, at one moment; None where it does not say."""

    slots: tuple[int | None, ...] | None = None
    "Tokens that each slot holds of its last conversation; None where it had none."
    read: int | None = None
    "Prompt tokens read since the server started."
    cached: int | None = None
    "Prompt tokens taken from its cache since then."
    written: int | None = None
    "Tokens written since then."
    build: str | None = None
    host_cache_mib: int | None = None
    "Memory for conversations that have lost their slot; 0 is none."

    @property
    def tokens(self) -> int | None:
        """All tokens since the server started."""
        return None if self.read is None or self.written is None else self.read + (self.cached or 0) + self.written

    def went_back(self, earlier: Counters) -> bool:
        """Whether a counter that only grows is smaller than it was: another process counts."""
        pairs = ((earlier.read, self.read), (earlier.cached, self.cached), (earlier.written, self.written))
        return any(was is not None and now is not None and now < was for was, now in pairs)

    def holds(self, slot: int | None) -> int | None:
        """Tokens that a slot holds; None where that is not known."""
        return self.slots[slot] if self.slots is not None and slot is not None and slot < len(self.slots) else None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Seen:
    """One request of the past, with what was recorded of it. All but the usage may be missing.

    Examples
    --------
    >>> Seen(session="a", request=2, usage=Usage(prompt_tokens=120, cached_tokens=10))
    Seen(session 'a', epoch 0, request 2: 10 of 120 tokens cached)
    """

    usage: Usage
    session: str | None = None
    epoch: int = 0
    request: int | None = None
    time: str | None = None
    "When it was answered, RFC 3339."
    elapsed_ms: float | None = None
    "From sending it until then."
    slot: int | None = None
    "The slot that it was pinned to."
    body: bytes | None = None
    tokens: TokenView | None = None
    rendered: Rendered | None = None
    "How its tokens go on from the request before it, where that was found out already."
    engine: str | None = None
    build: str | None = None
    model: str | None = None
    server: str | None = None
    "Its address: requests to another one take no cache."
    context_size: int | None = None
    "Tokens that a slot of it can hold."
    before: Counters | None = None
    "What the server counted just before it was sent."
    after: Counters | None = None
    "And just after it was answered."
    restored: int | None = None
    "Tokens that were put back into the slot from a file before it."
    verdict: str | None = None
    "What the provider says of the miss."
    kept_seconds: float | None = None
    "For how long the provider keeps what was in its cache after it, where the log says so."

    def __repr__(self) -> str:
        cached, prompt = ("?" if each is None else f"{each:,}" for each in (self.usage.cached_tokens, self.usage.prompt_tokens))
        return f"Seen(session {self.session!r}, epoch {self.epoch}, request {self.request}: {cached} of {prompt} tokens cached)"

    @property
    def answered(self) -> datetime | None:
        """The moment of its ``time``."""
        try:
            moment = None if self.time is None else datetime.fromisoformat(self.time)
        except (ValueError, TypeError):
            raise InvalidConfig("Seen.time", f"{ascii(self.time)[:40]} is no moment", "Write it as RFC 3339 says") from None
        if moment is not None and moment.tzinfo is None:
            raise InvalidConfig("Seen.time", f"{self.time} names no zone", "Add its offset, such as Z")
        return moment

    @property
    def kept(self) -> int | None:
        """Tokens that a slot holds after it: prompt and completion less the last sampled token."""
        prompt, written = self.usage.prompt_tokens, self.usage.completion_tokens
        return None if prompt is None or written is None else prompt + max(0, written - 1)

    @property
    def held_in(self) -> int | None:
        """The slot that it was answered in: the one it was pinned to, or the one that holds as many tokens."""
        if self.slot is not None or self.after is None or self.after.slots is None or self.kept is None:
            return self.slot
        alike = [slot for slot, tokens in enumerate(self.after.slots) if tokens == self.kept]
        return alike[0] if len(alike) == 1 else None

    def counted(self) -> dict[str, Any]:
        """The counters, as evidence."""
        known = (("before", self.before), ("after", self.after))
        return {name: decode(encode(counters)) for name, counters in known if counters is not None}


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


def seen_in(session: _Session, tokens: Callable[[bytes], TokenView | None] | None = None) -> Iterator[Seen]:
    """Every request of a session, as its log tells it: bodies rebuilt, counters and tokens as they were recorded at a loss.

    Parameters
    ----------
    session : Session
        Or anything with epochs.
    tokens : callable, optional
        Renders a body, such as ``server.tokens``; without it tokens are known where a loss recorded them.

    Yields
    ------
    Seen
        In order.
    """
    for epoch in session.epochs:
        yield from _seen_in(epoch, tokens)


def _seen_in(epoch: _Epoch, tokens: Callable[[bytes], TokenView | None] | None) -> Iterator[Seen]:
    start, last = epoch.start, None
    for at, record, request in replayed(start, epoch.baseline, epoch.records):
        body = request.body
        now = Seen(
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


def _with(evidence: dict[str, Any], previous: Seen | None, now: Seen) -> tuple[Seen | None, Seen]:
    """Two requests, with what a loss has recorded of them."""
    counters = evidence.get("counters", {})
    before, after = (_counters(counters.get("now", {}).get(name)) for name in ("before", "after"))
    rendered = evidence.get("rendered")
    found = None if rendered is None else Rendered(**rendered)
    now = replace(now, before=before, after=after, rendered=found, restored=evidence.get("restored_tokens"))
    if previous is not None:
        known = {name: _counters(counters.get("previous", {}).get(name)) for name in ("before", "after")}
        previous = replace(previous, before=known["before"] or previous.before, after=known["after"] or previous.after)
    return previous, now


def _counters(value: dict[str, Any] | None) -> Counters | None:
    return None if value is None else msgspec.convert(value, Counters)
