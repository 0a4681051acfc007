"""Chat messages, tool calls and tool schemas as they are sent, as frozen msgspec Structs.

A member that is ``UNSET`` is not sent. The model's output stays bytes (``msgspec.Raw``).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from loopkit.encoding import encode, encode_texts
from loopkit.reprs import Card

__all__ = [
    "ChatMessage",
    "Extra",
    "FunctionSchema",
    "Lined",
    "StrictStruct",
    "ToolCall",
    "ToolCallFunction",
    "ToolSchema",
    "encode_message",
]


class StrictStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """Base of records and their parts: strict, and not tracked by the garbage collector, because JSON has no cycles.

    The type checker requires frozen and kw_only again in each subclass.
    """


class Lined(StrictStruct, frozen=True, kw_only=True):
    """A part whose repr is one line without absent members."""

    def __repr__(self) -> str:
        members = ((name, getattr(self, name)) for name in self.__struct_fields__ if name != "time")
        facts = [(name, _one_line(value)) for name, value in members if value is not msgspec.UNSET and value is not None]
        return Card(type(self).__name__, facts, spare=[name for name, value in facts if value in ("True", "False")]).text()


def _one_line(value: object) -> str:
    return f"{value:,}" if type(value) is int else " ".join(str(value).split())


class Extra(StrictStruct, frozen=True, kw_only=True):
    """Other members that the server put into an assistant message."""

    reasoning_name: str | UnsetType = UNSET
    "Name of the member with the reasoning, if it was not ``reasoning_content``."
    members: dict[str, Raw] | UnsetType = UNSET
    "Members that loopkit does not know, in order, as bytes."


class ToolCallFunction(msgspec.Struct, frozen=True, gc=False):
    """Name and arguments of a call. Other members are ignored here; the log keeps them."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A tool call of the model."""

    id: str
    function: ToolCallFunction


class FunctionSchema(StrictStruct, frozen=True, kw_only=True):
    """The function of a tool, as the model sees it."""

    name: str
    description: str | UnsetType = UNSET
    parameters: dict[str, Any]
    "JSON schema of the arguments; members keep their order."
    strict: bool | UnsetType = UNSET


class ToolSchema(StrictStruct, frozen=True, kw_only=True):
    """A tool in the form of OpenAI's ``tools``.

    Examples
    --------
    >>> encode(ToolSchema(function=FunctionSchema(name="now", parameters={"type": "object"}))).decode()
    '{"type":"function","function":{"name":"now","parameters":{"type":"object"}}}'
    """

    type: Literal["function"] = "function"
    function: FunctionSchema


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a request. A member that is UNSET is not sent."""

    role: Literal["system", "user", "assistant", "tool"]
    tool_call_id: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    tool_calls: Raw | UnsetType = UNSET
    extra: Extra | UnsetType = UNSET
    "Its members are added to the message; it is not sent as a member itself."


def encode_message(message: ChatMessage) -> bytes:
    """Encode a message for a request. Every member is unchanged, and absent members stay absent.

    Examples
    --------
    >>> encode_message(ChatMessage(role="assistant", content=None, tool_calls=Raw(b'[]')))
    b'{"role":"assistant","content":null,"tool_calls":[]}'
    >>> extra = Extra(reasoning_name="reasoning", members={"signature": Raw(b"1.10")})
    >>> encode_message(ChatMessage(role="assistant", content="4", reasoning_content="2+2", extra=extra))
    b'{"role":"assistant","content":"4","reasoning":"2+2","signature":1.10}'
    """
    if message.extra is UNSET and message.tool_calls is UNSET:
        return encode_texts(message, "message")
    if message.extra is UNSET:
        return encode(message, "message")
    name = message.extra.reasoning_name
    members = {
        "role": message.role,
        "content": message.content,
        "reasoning_content" if name is UNSET else name: message.reasoning_content,
        "tool_calls": message.tool_calls,
    }
    members = {key: value for key, value in members.items() if value is not UNSET}
    if message.extra.members is not UNSET:
        members.update(message.extra.members)
    return encode(members, "message")
