"""Types that public signatures name and that no other public module exports, for annotations and `isinstance`.

Most are results of methods: loopkit creates the objects, and a caller only reads them. Each type is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loopkit.cache.losses.findings import HasDiagnose
    from loopkit.contract.baseline import CoreSchemas
    from loopkit.contract.messages import ChatMessage, Extra, FunctionSchema, ToolCallFunction, ToolSchema
    from loopkit.contract.records import Assistant, Carried, Forked, ServerFacts, SessionStart, TagsFacts
    from loopkit.contract.request import Chunks, Request
    from loopkit.ids import CallId, SessionId, Sha256Hash
    from loopkit.logs.frames.columns import MakeMessages
    from loopkit.loop.tools.registry import Bound
    from loopkit.server.completion.assembly import Completion
    from loopkit.server.doctor.checks import Check, Doctor
    from loopkit.server.llama_api import SlotState
    from loopkit.server.transport.cancellation import Cancellation
    from loopkit.session.journal import Fault
    from loopkit.session.store import Epoch
    from loopkit.session.verify import Verification

__all__ = [
    "Assistant",
    "Bound",
    "CallId",
    "Cancellation",
    "Carried",
    "ChatMessage",
    "Check",
    "Chunks",
    "Completion",
    "CoreSchemas",
    "Doctor",
    "Epoch",
    "Extra",
    "Fault",
    "Forked",
    "FunctionSchema",
    "HasDiagnose",
    "MakeMessages",
    "Request",
    "ServerFacts",
    "SessionId",
    "SessionStart",
    "Sha256Hash",
    "SlotState",
    "TagsFacts",
    "ToolCallFunction",
    "ToolSchema",
    "Verification",
]

_MODULES = {
    "Assistant": "contract.records",
    "Bound": "loop.tools.registry",
    "CallId": "ids",
    "Cancellation": "server.transport.cancellation",
    "Carried": "contract.records",
    "ChatMessage": "contract.messages",
    "Check": "server.doctor.checks",
    "Chunks": "contract.request",
    "Completion": "server.completion.assembly",
    "CoreSchemas": "contract.baseline",
    "Doctor": "server.doctor.checks",
    "Epoch": "session.store",
    "Extra": "contract.messages",
    "Fault": "session.journal",
    "Forked": "contract.records",
    "FunctionSchema": "contract.messages",
    "HasDiagnose": "cache.losses.findings",
    "MakeMessages": "logs.frames.columns",
    "Request": "contract.request",
    "ServerFacts": "contract.records",
    "SessionId": "ids",
    "SessionStart": "contract.records",
    "Sha256Hash": "ids",
    "SlotState": "server.llama_api",
    "TagsFacts": "contract.records",
    "ToolCallFunction": "contract.messages",
    "ToolSchema": "contract.messages",
    "Verification": "session.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"loopkit.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
