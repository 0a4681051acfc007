"""pi sessions: ``~/.pi/agent/sessions/<directory>/<time>_<id>.jsonl``, versions 1 (a list) to 3 (a tree).

Every entry but the first names its parent, so a person may go back and branch. ``input`` leaves out what was cached. A fork's
file begins with copies of its parent's entries. The bodies are not in the log, so losses are judged by counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import astuple

from loopkit.contract.provenance import Provenance, Record, Role
from loopkit.contract.records import Usage
from loopkit.logs.foreign.entries import CANNOT_BE, Call, Compaction, Conversation, Entry, Link, Said, can_be, rfc3339
from loopkit.logs.foreign.text_source import Line, Source
from loopkit.server.completion.usage import LARGEST

__all__ = ["NAME", "entries", "recognises"]

NAME = "pi"

SILENT = {"model_change", "thinking_level_change", "context_edit", "custom", "label", "session_info"}
"Kinds that no frame holds."
ROLES = {"user": Role.User, "toolResult": Role.ToolResult, "system": Role.System}
ENGINES = {
    "anthropic": "anthropic",
    **dict.fromkeys(("openai", "openai-codex", "azure-openai-responses"), "openai"),
    **dict.fromkeys(("google", "google-vertex"), "gemini"),
    "deepseek": "deepseek",
}
FAILED = ("error", "aborted")
HOUR, MINUTES = 3600.0, 300.0


class _Usage(Struct, rename="camel"):
    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    cache_write1h: int | None = msgspec.field(name="cacheWrite1h", default=None)
    reasoning: int | None = None

    def normal(self) -> Usage:
        known = self.input is not None and self.cache_read is not None
        return Usage(
            prompt_tokens=self.input + self.cache_read + (self.cache_write or 0) if known else None,  # type: ignore[operator]
            cached_tokens=self.cache_read,
            cache_write_tokens=self.cache_write,
            completion_tokens=self.output,
            reasoning_tokens=self.reasoning,
        )


class _Block(Struct):
    type: str | None = None


class _Text(_Block):
    text: Any = None
    name: Any = None
    arguments: Raw = Raw()


B = TypeVar("B", bound=_Block)


class _Message(Struct, Generic[B], rename="camel"):
    role: str | None = None
    content: list[B] | str | None = None
    summary: str | None = None
    tool_name: str | None = None
    provider: str | None = None
    model: str | None = None
    response_model: str | None = None
    response_id: str | None = None
    usage: _Usage | None = None
    stop_reason: str | None = None
    timestamp: int | float | str | None = None


class _Line(Struct, Generic[B], rename="camel"):
    type: str | None = None
    kind: str | None = None
    id: str | None = None
    parent_id: str | None = None
    timestamp: str | None = None
    parent_session: str | None = None
    message: _Message[B] | None = None
    content: list[B] | str | None = None
    summary: str | None = None
    provider: str | None = None
    model: str | None = None
    usage: _Usage | None = None


_lean = msgspec.json.Decoder(_Line[_Block])
_full = msgspec.json.Decoder(_Line[_Text])


def recognises(head: bytes) -> bool:
    """Whether a file that begins so is a session of pi.

    Examples
    --------
    >>> recognises(b'{"type":"session","version":3,"id":"a","cwd":"."}')
    True
    """
    first = head.lstrip().split(b"\n", 1)[0].replace(b" ", b"")
    return b'"type":"session"' in first and b'"id":' in first and b'"cwd":' in first


def entries(source: Source, *, texts: bool) -> Iterator[Entry]:
    """What a session says."""
    reading = _Reading(source)
    if texts:
        for line, full in source.placed(_full):
            yield from reading.line(full, line)
    else:
        for one in source.decoded(_lean):
            yield from reading.line(one, None)


class _Reading:
    """What has to be known of the lines before."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._session: str | None = None
        self._last: _Message[Any] | None = None
        "The last answer: what stands without a model of its own was asked of its model."

    def line(self, one: _Line[Any], place: Line | None) -> Iterator[Entry]:
        kind = one.type or "none"
        if kind == "session":
            self._session = one.id
            if one.id is not None:
                yield Conversation(session=one.id, parent=_id_in(one.parent_session))
            return
        if self._session is None:
            self._source.left_out("entries before the session's first line")
            return
        link: dict[str, Any] = {"session": self._session, "id": one.id, "parent": one.parent_id, "time": one.timestamp}
        if kind == "message" and one.message is not None:
            yield from self._message(one, one.message, link, place)
        elif kind == "usage" and one.usage is not None:
            yield self._call(one, one.usage, link)
        elif kind == "compaction":
            if one.usage is not None:  # its prompt is none of the conversation's
                yield self._call(one, one.usage, {**link, "id": f"{one.id} summary", "parent": None})
            yield Compaction(**link)
            if one.summary is not None and place is not None:
                yield Said(**{**link, "id": None}, role=Role.User, record=_record(Role.User, one.summary, link, place))
        elif kind in ("branch_summary", "custom_message"):
            text = None if place is None else one.summary if kind == "branch_summary" else _text_of(one.content)
            yield Said(**link, role=Role.User, record=_record(Role.User, text, link, place))
        else:
            if kind not in SILENT:
                self._source.left_out(f"entries of the type {kind[:40]!a}")
            yield Link(**link)

    def _message(self, one: _Line[Any], message: _Message[Any], link: dict[str, Any], place: Line | None) -> Iterator[Entry]:
        if message.role != "assistant":
            role = ROLES.get(message.role or "", Role.User)
            text = None if place is None else message.summary if message.content is None else _text_of(message.content)
            yield Said(
                **link,
                role=role,
                asks=message.role == "user",
                results=int(role is Role.ToolResult),
                tool=message.tool_name,
                record=_record(role, text, link, place),
            )
            return
        usage = (message.usage or _Usage()).normal()
        if message.stop_reason in FAILED and not (usage.prompt_tokens or usage.completion_tokens):
            self._source.left_out(f"answers that ended in {message.stop_reason}")
            yield Link(**link)
            return
        self._last = message
        yield self._call(one, message.usage or _Usage(), link)
        if place is not None:
            blocks = message.content if isinstance(message.content, list) else []
            calls = [f"{block.name}({bytes(block.arguments).decode()})" for block in blocks if block.type == "toolCall"]
            text = "\n".join([each for each in (_text_of(message.content), *calls) if each])
            yield Said(**{**link, "id": None}, role=Role.Assistant, record=_record(Role.Assistant, text, link, place))

    def _call(self, one: _Line[Any], usage: _Usage, link: dict[str, Any]) -> Call:
        asked, last = one.message, self._last
        if not can_be(*astuple(usage)):
            self._source.left_out(CANNOT_BE)
            usage = _Usage()
        model = one.model or (None if last is None else last.response_model or last.model)
        provider = one.provider or (None if last is None else last.provider)
        started = None if asked is None else asked.timestamp
        written = usage.cache_write or usage.cache_write1h
        return Call(
            **link,
            key=(asked and asked.response_id) or f"{link['id']} {started or one.timestamp}",
            model=model,
            engine=ENGINES.get(provider or ""),
            usage=usage.normal(),
            finish=None if asked is None else asked.stop_reason,
            sent=int(started * 1000) if isinstance(started, (int, float)) and 0 <= started < LARGEST else None,
            kept_seconds=None if not written or provider != "anthropic" else HOUR if usage.cache_write1h else MINUTES,
        )


def _id_in(parent: str | None) -> str | None:
    """The id of a parent session, which the log names by its file."""
    return None if parent is None else parent.replace("\\", "/").rpartition("/")[2].removesuffix(".jsonl").rpartition("_")[2]


def _record(role: Role, text: str | None, link: dict[str, Any], place: Line | None) -> Record | None:
    if place is None or text is None:
        return None
    return Record(role, text, rfc3339(link["time"]), Provenance(link["session"], place.offset))


def _text_of(content: list[Any] | str | None) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block.text for block in content or () if block.type == "text" and isinstance(block.text, str))
