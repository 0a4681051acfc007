"""Events of a turn, and `Turn`, its result. A logged record is an event too."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from loopkit.cache.losses.cause_texts import because
from loopkit.contract.records import CacheLoss, EpochEnd, ToolResult, Usage, UsageRecord
from loopkit.reprs import Card, counted
from loopkit.server.completion.deltas import Delta

__all__ = ["OnEvent", "RequestSent", "Stopped", "ToolCalled", "Turn", "TurnEvent", "add_up"]


class RequestSent(NamedTuple):
    """Event just before a request is sent."""

    request: int
    "Number of the request within the epoch, from 1."
    request_bytes: int
    "Size of the body in bytes."
    new_bytes: int
    "Size of the body less the size of the previous body in the epoch: the bytes that were added."


class ToolCalled(NamedTuple):
    """Event just before a tool call is run or denied."""

    call: int
    "Number of the call within the session, from 1."
    name: str
    "Name of the tool."
    arguments: str
    "Arguments as the model wrote them: JSON text."


class Stopped(NamedTuple):
    """Event at the end of a turn."""

    reason: str
    "Why it ended; see ``Turn.stop``."


TurnEvent: TypeAlias = RequestSent | Delta | ToolCalled | ToolResult | UsageRecord | CacheLoss | EpochEnd | Stopped
OnEvent: TypeAlias = Callable[[TurnEvent], object]


@dataclasses.dataclass(frozen=True)
class Turn:
    """Result of one turn; made by ``Loop.ask`` and ``Loop.go_on``."""

    text: str
    "Text of the last completion. If the turn was interrupted, this is the part that arrived; it is not logged."
    reasoning: str
    "Reasoning of the last completion; empty if the server sent none."
    stop: str
    """Why the turn ended:

    - ``done``: the model stopped.
    - ``request_limit``, ``repeated_call``, ``reasoning_limit``: a limit ended the turn; see :class:`Limits`.
    - ``cut_off``: the completion reached its token limit inside a tool call. That completion is not logged.
    - ``malformed_call``: the arguments of a tool call were not JSON. That completion is not logged.
    - ``context_full``: the context is full, so the epoch ended. ``Loop.ask`` opens the next epoch. A message that did not fit is
      not logged: ask it again. If tool results wait for a response, call ``Loop.go_on``, which also opens the next epoch.
    - ``server_truncated``: the server dropped part of the prompt.
    - ``interrupted``: ``Loop.stop`` was called."""
    requests: tuple[UsageRecord, ...]
    "One usage record per request."
    tool_calls: tuple[ToolResult, ...]
    "One result per tool call."
    losses: tuple[CacheLoss, ...]
    "One `CacheLoss` for each request that processed prompt tokens again which should have been cached."
    elapsed: float
    "Duration of the whole turn in seconds, including tools."

    @property
    def usage(self) -> Usage:
        """Sums of the token counts over the requests of the turn. A count that no response reported is None."""
        return add_up(record.usage for record in self.requests)

    def _card(self) -> Card:
        usage = self.usage
        counts = [
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("processed", usage.read_tokens),
            ("lost", sum(loss.lost_tokens for loss in self.losses)),
            ("written", usage.completion_tokens),
        ]
        facts = [(name, "not reported" if count is None else f"{count:,}") for name, count in counts]
        if self.losses:
            largest = max(self.losses, key=lambda loss: loss.lost_tokens)
            others = len({loss.cause for loss in self.losses}) - 1
            more = f" and for {counted(others, 'other cause')}" if others else ""
            facts.append(("why", f"{because(largest.cause)}{more}"))
        calls = f", {counted(len(self.tool_calls), 'call')}" if self.tool_calls else ""
        return Card(f"Turn {self.stop}, {counted(len(self.requests), 'request')}{calls}", facts if self.requests else [])

    def __repr__(self) -> str:
        return self._card().text()

    def _repr_html_(self) -> str:
        return self._card().html()


def add_up(usages: Iterable[Usage]) -> Usage:
    """Return a `Usage` with the sum of each count over several responses. A count that no response reported is None.

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
