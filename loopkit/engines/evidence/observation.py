"""What is known of one request when a loss is diagnosed: its usage, body, tokens and the server's counters around it.

These facts can be written to a log and read again. A diagnosis from a log is therefore the same as one on the running server.
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
    """Result of comparing a prompt with the previous prompt and its completion, token by token."""

    reusable: int
    "Number of leading tokens that a cache could reuse; at most one less than the prompt has."
    exact: bool
    "True if `reusable` is exact, False if it is a lower bound."
    how: Literal["extends", "parts", "rewritten", "dropped", "retokenised"]
    """Relation to the previous prompt. ``extends``: the prompt continues the previous prompt and its completion. ``parts``: it
    differs from the previous prompt itself. The other values mean that the prompt continues the previous prompt, but not the
    completion. ``rewritten``: the completion's text has changed. ``dropped``: a text of the completion is missing.
    ``retokenised``: the text is the same, but split into other tokens."""
    token: int
    "Position of the first differing token; for ``extends``, the number of tokens in common."
    where: str | None
    "The part of the request that the first differing token comes from, such as ``messages[3].content``; None if unknown."
    was: str = ""
    "Text around the first difference in the previous prompt or its completion."
    now: str = ""
    "Text around the first difference in this prompt."


class Counters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server's counters at one time. A field is None if the server does not report it."""

    slots: tuple[int | None, ...] | None = None
    "Number of tokens in each slot, by the slot's number; None for a slot without a conversation."
    read: int | None = None
    "Prompt tokens processed since the server started."
    cached: int | None = None
    "Prompt tokens taken from the cache since the server started."
    written: int | None = None
    "Completion tokens generated since the server started."
    build: str | None = None
    "Build of the server, as it reports it."
    host_cache_mib: int | None = None
    "Size of the host cache in MiB; 0 if it is off."

    @property
    def tokens(self) -> int | None:
        """Prompt tokens (processed and cached) and completion tokens since the server started; None if unknown."""
        return None if self.read is None or self.written is None else self.read + (self.cached or 0) + self.written

    def went_back(self, earlier: Counters) -> bool:
        """Return True if a counter is smaller than it was earlier, which shows that the server was restarted.

        Parameters
        ----------
        earlier : Counters
            Counters of the same server at an earlier time.
        """
        pairs = ((earlier.read, self.read), (earlier.cached, self.cached), (earlier.written, self.written))
        return any(was is not None and now is not None and now < was for was, now in pairs)

    def tokens_in(self, slot: int | None) -> int | None:
        """Return the number of tokens in a slot; None if unknown.

        Parameters
        ----------
        slot : int or None
            Number of the slot; None if it is not known.
        """
        return self.slots[slot] if self.slots is not None and slot is not None and slot < len(self.slots) else None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Observation:
    """What is known of one request. Everything except the usage may be missing.

    Examples
    --------
    >>> Observation(session="a", request=2, usage=Usage(prompt_tokens=120, cached_tokens=10))
    Observation(session 'a', epoch 0, request 2: 10 of 120 tokens cached)
    """

    usage: Usage
    "Token counts that the server reported."
    session: str | None = None
    "Id of the request's session."
    epoch: int = 0
    "Number of the epoch, from 0. An epoch is a part of a session within which messages are only appended."
    request: int | None = None
    "Number of the request within the epoch."
    time: str | None = None
    "When the response was complete, as RFC 3339 with a time zone."
    elapsed_ms: float | None = None
    "Milliseconds from sending the request until the response was complete."
    slot: int | None = None
    "Number of the llama-server slot that the request asked for; None if it asked for none."
    body: bytes | None = None
    "The request body."
    tokens: TokenView | None = None
    "The tokens of the prompt."
    rendered: TokenComparison | None = None
    "Comparison of the prompt's tokens with the previous request, if a log recorded it. Then `tokens` is not needed."
    engine: str | None = None
    "Name of the server's engine."
    build: str | None = None
    "Build of the server."
    model: str | None = None
    "Name of the model."
    server: str | None = None
    "Address of the server. Requests to another server do not affect its cache."
    context_size: int | None = None
    "Context size of one slot, in tokens."
    before: Counters | None = None
    "The server's counters just before the request."
    after: Counters | None = None
    "The server's counters just after the response."
    restored: int | None = None
    "Number of tokens that were restored into the slot from a file before the request; None if nothing was restored."
    verdict: str | None = None
    "The provider's own reason for a cache miss, such as ``tools_changed``, if the response had one."
    kept_seconds: float | None = None
    "Seconds that the provider keeps the tokens that this request cached, if the log has this number."

    def __repr__(self) -> str:
        cached, prompt = ("?" if each is None else f"{each:,}" for each in (self.usage.cached_tokens, self.usage.prompt_tokens))
        about = f"session {self.session!r}, epoch {self.epoch}, request {self.request}"
        return f"Observation({about}: {cached} of {prompt} tokens cached)"

    @property
    def answered(self) -> datetime | None:
        """When the response was complete, as a `datetime` with a time zone; None if unknown."""
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
        """Tokens in the slot after the response: prompt and completion without the last sampled token; None if unknown."""
        prompt, written = self.usage.prompt_tokens, self.usage.completion_tokens
        return None if prompt is None or written is None else prompt + max(0, written - 1)

    @property
    def used_slot(self) -> int | None:
        """Number of the slot that the request used, or None if unknown.

        This is the slot that the request asked for. Otherwise it is the slot that contains `slot_tokens` tokens after the
        response, if there is exactly one.
        """
        if self.slot is not None or self.after is None or self.after.slots is None or self.slot_tokens is None:
            return self.slot
        alike = [slot for slot, tokens in enumerate(self.after.slots) if tokens == self.slot_tokens]
        return alike[0] if len(alike) == 1 else None

    def counters(self) -> dict[str, Any]:
        """Return the known counters as JSON-compatible dicts, under the keys ``before`` and ``after``."""
        known = (("before", self.before), ("after", self.after))
        return {name: decode(encode(counters)) for name, counters in known if counters is not None}
