"""Loops: turns of a session against a server, with tools, limits and epochs.

A turn is a message of the user and everything up to the model's final response: requests and tool calls. An epoch is a part of a
session whose requests all begin with the same system prompt and tools. `loopkit.start` and `loopkit.resume` open a `Loop`. This
module also exports the types of its arguments, results and events.
"""

from loopkit.contract.drift import Drift
from loopkit.contract.messages import ToolCall
from loopkit.contract.records import CacheLoss, EpochEnd, ToolResult, Usage, UsageRecord
from loopkit.loop.epochs import Carry, OnFull
from loopkit.loop.events import OnEvent, RequestSent, Stopped, ToolCalled, Turn, TurnEvent
from loopkit.loop.limits import Limits
from loopkit.loop.loop import Loop
from loopkit.loop.opening import resume, start
from loopkit.loop.parking import Parked
from loopkit.loop.tools.execution import Allow, Denied, Failed, Ok, Outcome, PythonPort, ToolPort
from loopkit.loop.tools.registry import Registry, SearchableMemory
from loopkit.loop.tools.schemas import AnyTool, JsonTool
from loopkit.server.completion.deltas import ReasoningDelta, TextDelta

__all__ = [
    "Allow",
    "AnyTool",
    "CacheLoss",
    "Carry",
    "Denied",
    "Drift",
    "EpochEnd",
    "Failed",
    "JsonTool",
    "Limits",
    "Loop",
    "Ok",
    "OnEvent",
    "OnFull",
    "Outcome",
    "Parked",
    "PythonPort",
    "ReasoningDelta",
    "Registry",
    "RequestSent",
    "SearchableMemory",
    "Stopped",
    "TextDelta",
    "ToolCall",
    "ToolCalled",
    "ToolPort",
    "ToolResult",
    "Turn",
    "TurnEvent",
    "Usage",
    "UsageRecord",
    "resume",
    "start",
]


def __dir__() -> list[str]:
    return list(__all__)
