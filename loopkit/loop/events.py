"""What happens during a turn, one small value each.

Records are their own events: a tool result, a usage record, a cache loss and the end of an epoch are handed on as they were
logged. Knows nothing of who looks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from loopkit.records import CacheLoss, EpochEnd, ToolResult, UsageRecord
from loopkit.server.stream import Delta

__all__ = ["OnEvent", "RequestSent", "Stopped", "ToolCalled", "TurnEvent"]


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
