"""What happens during a turn, one small value each, and what it came to.

Records are their own events: a tool result, a usage record, a cache loss and the end of an epoch are handed on as they were
logged. Knows nothing of who looks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from loopkit.contract.records import CacheLoss, EpochEnd, ToolResult, Usage, UsageRecord
from loopkit.reprs import Card, counted
from loopkit.server.completion.assembly import Delta

__all__ = ["OnEvent", "RequestSent", "Stopped", "ToolCalled", "Turn", "TurnEvent", "add_up"]


class RequestSent(NamedTuple):
    """A request is about to be sent."""

    request: int
    "1, 2, 3, … within the epoch."
    request_bytes: int
    new_bytes: int
    "Of these, behind the last request's."


class ToolCalled(NamedTuple):
    """A tool is about to be called."""

    call: int
    "The number of the call within the session."
    name: str
    arguments: str
    "JSON, as the model wrote it."


class Stopped(NamedTuple):
    """The turn ended."""

    reason: str
    "See ``Turn.stop``."


TurnEvent: TypeAlias = RequestSent | Delta | ToolCalled | ToolResult | UsageRecord | CacheLoss | EpochEnd | Stopped
OnEvent: TypeAlias = Callable[[TurnEvent], object]


@dataclasses.dataclass(frozen=True)
class Turn:
    """What one question came to; made by ``Loop.ask`` and ``Loop.go_on``."""

    text: str
    "What the model said last; where the turn was interrupted, the part that came, which is not logged."
    reasoning: str
    "What it thought before it said so; empty where the server showed nothing."
    stop: str
    """Why the turn ended: ``done``, ``request_limit``, ``repeated_call``, ``reasoning_limit``, ``cut_off``, ``malformed_call``,
    ``context_full``, ``server_truncated`` or ``interrupted``. After ``context_full`` the next ``Loop.ask`` opens the next epoch,
    and so does ``Loop.go_on`` where tool results wait for an answer; a message that did not fit was not logged: ask it again."""
    requests: tuple[UsageRecord, ...]
    "One for each request of the turn."
    tool_calls: tuple[ToolResult, ...]
    "One for each tool call, with its result."
    losses: tuple[CacheLoss, ...]
    "One for each request that read again what the cache should have had."
    elapsed: float
    "Seconds."

    @property
    def usage(self) -> Usage:
        """The turn's usage, summed over its requests; None where a server did not say."""
        return add_up(record.usage for record in self.requests)

    def _card(self) -> Card:
        usage = self.usage
        counts = [
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("read", usage.read_tokens),
            ("lost", sum(loss.lost_tokens for loss in self.losses)),
            ("written", usage.completion_tokens),
        ]
        facts = [(name, "not reported" if count is None else f"{count:,}") for name, count in counts]
        calls = f", {counted(len(self.tool_calls), 'call')}" if self.tool_calls else ""
        return Card(f"Turn {self.stop}, {counted(len(self.requests), 'request')}{calls}", facts if self.requests else [])

    def __repr__(self) -> str:
        return self._card().text()

    def _repr_html_(self) -> str:
        return self._card().html()


def add_up(usages: Iterable[Usage]) -> Usage:
    """Sum usage, member by member; a member that nobody reported stays None.

    Examples
    --------
    >>> total = add_up([Usage(prompt_tokens=10, cached_tokens=4), Usage(prompt_tokens=20)])
    >>> total.prompt_tokens, total.cached_tokens, total.reasoning_tokens
    (30, 4, None)
    """
    known: dict[str, float] = {}
    for usage in usages:
        for name in Usage.__struct_fields__:
            value = getattr(usage, name)
            if value is not None:
                known[name] = known.get(name, 0) + value
    return Usage(**known)  # type: ignore[arg-type]  # counts stay int and milliseconds float, member by member
