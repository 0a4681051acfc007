"""Chat messages, tool calls and tool schemas as they are sent, as frozen msgspec Structs.

A member that is ``UNSET`` is not sent. Tool calls of the model are kept as the bytes that the server sent (``msgspec.Raw``).
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
    """Base class of records and their parts. Decoding an unknown member is an error.

    The garbage collector does not track instances, because values from JSON have no reference cycles. Subclasses repeat
    ``frozen`` and ``kw_only``, because the type checker requires it.
    """


class Lined(StrictStruct, frozen=True, kw_only=True):
    """Base class of records whose repr is one line and leaves out members that are absent or None."""

    def __repr__(self) -> str:
        members = ((name, getattr(self, name)) for name in self.__struct_fields__ if name != "time")
        facts = [(name, _one_line(value)) for name, value in members if value is not msgspec.UNSET and value is not None]
        return Card(type(self).__name__, facts, spare=[name for name, value in facts if value in ("True", "False")]).text()


def _one_line(value: object) -> str:
    return f"{value:,}" if type(value) is int else " ".join(str(value).split())


class Extra(StrictStruct, frozen=True, kw_only=True):
    """Members that the server put into an assistant message and `ChatMessage` lacks. They are sent back unchanged."""

    reasoning_name: str | UnsetType = UNSET
    "Name of the member that contained the reasoning, if it was not ``reasoning_content``."
    members: dict[str, Raw] | UnsetType = UNSET
    "Members that loopkit does not know, in the server's order; each value is the JSON that the server sent."


class ToolCallFunction(msgspec.Struct, frozen=True, gc=False):
    """Name and arguments of a tool call. Other members are ignored when decoding, but the log keeps their bytes."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A tool call that the model made: its id, and the function with its arguments."""

    id: str
    function: ToolCallFunction


class FunctionSchema(StrictStruct, frozen=True, kw_only=True):
    """Name, description and parameters of a tool, as they are sent to the model."""

    name: str
    description: str | UnsetType = UNSET
    parameters: dict[str, Any]
    "JSON schema of the arguments. Its members are sent in this order."
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
    "Further members. They are sent as members of the message, not inside a member ``extra``."


def encode_message(message: ChatMessage) -> bytes:
    """Return a message as JSON bytes for a request. Members that are UNSET are left out, and null stays null.

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
