"""What happens during a turn, one small value each.

Records are their own events: a usage record and a cache loss are handed on as they were logged. Knows nothing of who looks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from loopkit.records import CacheLoss, UsageRecord
from loopkit.server.stream import Progress, ReasoningDelta, TextDelta, ToolCallDelta

__all__ = ["OnEvent", "RequestSent", "Stopped", "TurnEvent"]


class RequestSent(NamedTuple):
    """A request is about to be sent."""

    request: int
    "1, 2, 3, … within the epoch."
    request_bytes: int
    new_bytes: int
    "Of these, behind the last request's."


class Stopped(NamedTuple):
    """The turn ended."""

    reason: str
    "See ``Turn.stop``."


TurnEvent: TypeAlias = RequestSent | Progress | TextDelta | ReasoningDelta | ToolCallDelta | UsageRecord | CacheLoss | Stopped
OnEvent: TypeAlias = Callable[[TurnEvent], None]
