"""What is known of one request when a loss is diagnosed: its usage, body, tokens and the server's counters around it.

These are facts only. They can be written to a log and read again, so that a diagnosis is the same live and afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec

from loopkit.contract.records import Usage
from loopkit.encoding import decode, encode
from loopkit.engines.evidence.tokens import TokenView
from loopkit.errors import InvalidConfig

__all__ = ["Counters", "Observation", "TokenComparison"]


class TokenComparison(NamedTuple):
    """How far a prompt continues the previous prompt and its completion, in tokens."""

    reusable: int
    "Tokens that a cache could reuse; at most the prompt's tokens less one."
    exact: bool
    "True if `reusable` is exact, False if it is a lower bound."
    how: Literal["extends", "parts", "rewritten", "dropped", "retokenised"]
    """``extends``: the prompt continues the previous one. ``parts``: it differs within the previous prompt. ``rewritten``,
    ``dropped``, ``retokenised``: the completion is in the prompt in another spelling, not at all, or as other tokens."""
    token: int
    "Position of the first differing token; for ``extends`` the end of the common part."
    where: str | None
    "The part of the request that this token comes from, such as ``messages[3].content``."
    was: str = ""
    "Text around that position in the previous prompt."
    now: str = ""
    "Text around that position in this prompt."


class Counters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server's counters at one time. None if the server does not report a value."""

    slots: tuple[int | None, ...] | None = None
    "Tokens in each slot; None for a slot without a conversation."
    read: int | None = None
    "Prompt tokens processed since the server started."
    cached: int | None = None
    "Prompt tokens taken from the cache since the server started."
    written: int | None = None
    "Completion tokens since the server started."
    build: str | None = None
    "Build of the server."
    host_cache_mib: int | None = None
    "Size of the host cache in MiB; 0 if it is off."

    @property
    def tokens(self) -> int | None:
        """All tokens since the server started."""
        return None if self.read is None or self.written is None else self.read + (self.cached or 0) + self.written

    def went_back(self, earlier: Counters) -> bool:
        """Return True if a counter is smaller than before, so that another process counts now.

        Parameters
        ----------
        earlier : Counters
            Counters from before.
        """
        pairs = ((earlier.read, self.read), (earlier.cached, self.cached), (earlier.written, self.written))
        return any(was is not None and now is not None and now < was for was, now in pairs)

    def tokens_in(self, slot: int | None) -> int | None:
        """Return the tokens in a slot; None if unknown.

        Parameters
        ----------
        slot : int or None
            Number of the slot; None if it is not known.
        """
        return self.slots[slot] if self.slots is not None and slot is not None and slot < len(self.slots) else None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Observation:
    """One recorded request. Everything except the usage may be missing.

    Examples
    --------
    >>> Observation(session="a", request=2, usage=Usage(prompt_tokens=120, cached_tokens=10))
    Observation(session 'a', epoch 0, request 2: 10 of 120 tokens cached)
    """

    usage: Usage
    "Token counts that the server reported."
    session: str | None = None
    "Id of its session."
    epoch: int = 0
    "Number of its epoch."
    request: int | None = None
    "Number of the request within the epoch."
    time: str | None = None
    "When the response was complete, RFC 3339."
    elapsed_ms: float | None = None
    "Milliseconds from sending the request until then."
    slot: int | None = None
    "The slot that the request named."
    body: bytes | None = None
    "The request body."
    tokens: TokenView | None = None
    "The tokens of its prompt."
    rendered: TokenComparison | None = None
    "How its tokens continue the previous request, if that is already known."
    engine: str | None = None
    "Name of the server's engine."
    build: str | None = None
    "Build of the server."
    model: str | None = None
    "Name of the model."
    server: str | None = None
    "Address of the server. Requests to another server do not affect its cache."
    context_size: int | None = None
    "Tokens that one slot can hold."
    before: Counters | None = None
    "The server's counters just before the request."
    after: Counters | None = None
    "The server's counters just after the response."
    restored: int | None = None
    "Tokens restored into the slot from a file before the request."
    verdict: str | None = None
    "What the provider itself says about a cache miss."
    kept_seconds: float | None = None
    "Seconds that the provider keeps what this request cached, if the log says so."

    def __repr__(self) -> str:
        cached, prompt = ("?" if each is None else f"{each:,}" for each in (self.usage.cached_tokens, self.usage.prompt_tokens))
        about = f"session {self.session!r}, epoch {self.epoch}, request {self.request}"
        return f"Observation({about}: {cached} of {prompt} tokens cached)"

    @property
    def answered(self) -> datetime | None:
        """When the response was complete."""
        fix = "Use RFC 3339, such as 2026-11-30T07:31:05Z"
        try:
            answered = None if self.time is None else datetime.fromisoformat(self.time)
        except (ValueError, TypeError):
            raise InvalidConfig("Observation.time", f"{ascii(self.time)[:40]} is not a timestamp", fix) from None
        if answered is not None and answered.tzinfo is None:
            raise InvalidConfig("Observation.time", f"{self.time} has no time zone", fix)
        return answered

    @property
    def slot_tokens(self) -> int | None:
        """Tokens in the slot after the response: prompt and completion less the last sampled token."""
        prompt, written = self.usage.prompt_tokens, self.usage.completion_tokens
        return None if prompt is None or written is None else prompt + max(0, written - 1)

    @property
    def used_slot(self) -> int | None:
        """The slot of the request: the one it named, or the only one with the right number of tokens afterwards."""
        if self.slot is not None or self.after is None or self.after.slots is None or self.slot_tokens is None:
            return self.slot
        alike = [slot for slot, tokens in enumerate(self.after.slots) if tokens == self.slot_tokens]
        return alike[0] if len(alike) == 1 else None

    def counters(self) -> dict[str, Any]:
        """Return the counters in the form that evidence stores."""
        known = (("before", self.before), ("after", self.after))
        return {name: decode(encode(counters)) for name, counters in known if counters is not None}
