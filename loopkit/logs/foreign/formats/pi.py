"""pi sessions: ``~/.pi/agent/sessions/<directory>/<time>_<id>.jsonl``, messages in a tree, versions 1 to 3.

Every entry except the first names its parent entry, because a person can go back to an entry and start a branch there. ``input``
excludes cached tokens. The file of a fork starts with copies of its parent's entries. The log has no request bodies, so losses
are diagnosed from token counts and times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import astuple

from loopkit import engines
from loopkit.contract.provenance import Record, Role
from loopkit.contract.records import Usage
from loopkit.logs.foreign.entries import (
    IMPLAUSIBLE,
    CompactionEntry,
    ConversationStart,
    Entry,
    Link,
    MessageEntry,
    RequestEntry,
    is_plausible,
)
from loopkit.logs.foreign.logged_exchanges import engine_name
from loopkit.logs.foreign.message_text import call_text, content_text, message_record
from loopkit.logs.foreign.text_source import TextLine, TextSource
from loopkit.server.completion.usage import LARGEST

__all__ = ["NAME", "entries", "recognises"]

NAME = "pi"

IGNORED = {"model_change", "thinking_level_change", "context_edit", "custom", "label", "session_info"}
"Known types that no frame contains."
ROLES = {"user": Role.User, "toolResult": Role.ToolResult, "system": Role.System}
FAILED = ("error", "aborted")


class _PiUsage(Struct, rename="camel"):
    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    cache_write1h: int | None = msgspec.field(name="cacheWrite1h", default=None)
    reasoning: int | None = None

    def to_usage(self) -> Usage:
        known = self.input is not None and self.cache_read is not None
        return Usage(
            prompt_tokens=self.input + self.cache_read + (self.cache_write or 0) if known else None,  # type: ignore[operator]
            cached_tokens=self.cache_read,
            cache_write_tokens=self.cache_write,
            completion_tokens=self.output,
            reasoning_tokens=self.reasoning,
        )


class _PiBlock(Struct):
    type: str | None = None


class _PiTextBlock(_PiBlock):
    text: Any = None
    name: Any = None
    arguments: Raw = Raw()


B = TypeVar("B", bound=_PiBlock)


class _PiMessage(Struct, Generic[B], rename="camel"):
    role: str | None = None
    content: list[B] | str | None = None
    summary: str | None = None
    tool_name: str | None = None
    provider: str | None = None
    model: str | None = None
    response_model: str | None = None
    response_id: str | None = None
    usage: _PiUsage | None = None
    stop_reason: str | None = None
    timestamp: int | float | str | None = None


class _SessionEntry(Struct, Generic[B], rename="camel"):
    type: str | None = None
    kind: str | None = None
    id: str | None = None
    parent_id: str | None = None
    timestamp: str | None = None
    parent_session: str | None = None
    message: _PiMessage[B] | None = None
    content: list[B] | str | None = None
    summary: str | None = None
    provider: str | None = None
    model: str | None = None
    usage: _PiUsage | None = None


_lean = msgspec.json.Decoder(_SessionEntry[_PiBlock])
_full = msgspec.json.Decoder(_SessionEntry[_PiTextBlock])


def recognises(head: bytes) -> bool:
    """Return True if a file with these first bytes is a pi session.

    Examples
    --------
    >>> recognises(b'{"type":"session","version":3,"id":"a","cwd":"."}')
    True
    """
    first = head.lstrip().split(b"\n", 1)[0].replace(b" ", b"")
    return b'"type":"session"' in first and b'"id":' in first and b'"cwd":' in first


def entries(source: TextSource, *, texts: bool) -> Iterator[Entry]:
    """Yield the entries of a session. Messages contain their texts only with ``texts=True``."""
    reader = _SessionReader(source)
    if texts:
        for place, full in source.decode_with_lines(_full):
            yield from reader.entries(full, place)
    else:
        for entry in source.decode_lines(_lean):
            yield from reader.entries(entry, None)


class _SessionReader:
    """Turns the lines of a session into entries. Keeps what later lines need from earlier ones."""

    def __init__(self, source: TextSource) -> None:
        self._source = source
        self._session: str | None = None
        self._last: _PiMessage[Any] | None = None
        "The last response. Usage entries that name no model or provider get those of this response."

    def entries(self, entry: _SessionEntry[Any], place: TextLine | None) -> Iterator[Entry]:
        kind = entry.type or "none"
        if kind == "session":
            self._session = entry.id
            if entry.id is not None:
                yield ConversationStart(session=entry.id, parent=_session_id_of(entry.parent_session))
            return
        if self._session is None:
            self._source.count_left_out("entries before the session's first line")
            return
        link: dict[str, Any] = {"session": self._session, "id": entry.id, "parent": entry.parent_id, "time": entry.timestamp}
        if kind == "message" and entry.message is not None:
            yield from self._message(entry, entry.message, link, place)
        elif kind == "usage" and entry.usage is not None:
            yield self._request_entry(entry, entry.usage, link)
        elif kind == "compaction":
            if entry.usage is not None:  # the summary has a prompt of its own
                yield self._request_entry(entry, entry.usage, {**link, "id": f"{entry.id} summary", "parent": None})
            yield CompactionEntry(**link)
            if entry.summary is not None and place is not None:
                yield MessageEntry(**{**link, "id": None}, role=Role.User, record=_record(Role.User, entry.summary, link, place))
        elif kind in ("branch_summary", "custom_message"):
            text = None if place is None else entry.summary if kind == "branch_summary" else _text_of(entry.content)
            yield MessageEntry(**link, role=Role.User, record=_record(Role.User, text, link, place))
        else:
            if kind not in IGNORED:
                self._source.count_left_out(f"entries of unknown type {kind[:40]!a}")
            yield Link(**link)

    def _message(
        self, entry: _SessionEntry[Any], message: _PiMessage[Any], link: dict[str, Any], place: TextLine | None
    ) -> Iterator[Entry]:
        if message.role != "assistant":
            role = ROLES.get(message.role or "", Role.User)
            text = None if place is None else message.summary if message.content is None else _text_of(message.content)
            yield MessageEntry(
                **link,
                role=role,
                starts_turn=message.role == "user",
                results=int(role is Role.ToolResult),
                tool=message.tool_name,
                record=_record(role, text, link, place),
            )
            return
        usage = (message.usage or _PiUsage()).to_usage()
        if message.stop_reason in FAILED and not (usage.prompt_tokens or usage.completion_tokens):
            self._source.count_left_out(f"responses that ended with stop reason {message.stop_reason!r}")
            yield Link(**link)
            return
        self._last = message
        yield self._request_entry(entry, message.usage or _PiUsage(), link)
        if place is not None:
            blocks = message.content if isinstance(message.content, list) else []
            calls = [call_text(block.name, block.arguments) for block in blocks if block.type == "toolCall"]
            text = "\n".join([each for each in (_text_of(message.content), *calls) if each])
            yield MessageEntry(**{**link, "id": None}, role=Role.Assistant, record=_record(Role.Assistant, text, link, place))

    def _request_entry(self, entry: _SessionEntry[Any], usage: _PiUsage, link: dict[str, Any]) -> RequestEntry:
        message, last = entry.message, self._last
        if not is_plausible(*astuple(usage)):
            self._source.count_left_out(IMPLAUSIBLE)
            usage = _PiUsage()
        model = entry.model or (None if last is None else last.response_model or last.model)
        provider = entry.provider or (None if last is None else last.provider)
        started = None if message is None else message.timestamp
        cache_write = usage.cache_write or usage.cache_write1h
        engine = engine_name(provider)
        ttl = engines.find(engine).cache_write_seconds(one_hour=bool(usage.cache_write1h))
        return RequestEntry(
            **link,
            key=(message and message.response_id) or f"{link['id']} {started or entry.timestamp}",
            model=model,
            engine=engine,
            usage=usage.to_usage(),
            finish_reason=None if message is None else message.stop_reason,
            sent=int(started * 1000) if isinstance(started, (int, float)) and 0 <= started < LARGEST else None,
            kept_seconds=ttl if cache_write else None,
        )


def _session_id_of(parent: str | None) -> str | None:
    """Return the id of the parent session, which is part of its file name; None if there is no parent."""
    return None if parent is None else parent.replace("\\", "/").rpartition("/")[2].removesuffix(".jsonl").rpartition("_")[2]


def _record(role: Role, text: str | None, link: dict[str, Any], place: TextLine | None) -> Record | None:
    if place is None or text is None:
        return None
    return message_record(role, text, session=link["session"], time=link["time"], offset=place.offset)


def _text_of(content: list[Any] | str | None) -> str:
    return content_text(content if isinstance(content, str) else [block for block in content or () if block.type == "text"])
