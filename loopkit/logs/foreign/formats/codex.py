"""OpenAI Codex CLI rollouts: ``~/.codex/sessions/<day>/rollout-<time>-<id>.jsonl``.

Lines have no links; their order is the order of the conversation. Usage is logged as a running total, and often repeated, so only
a changed total is a request. ``input_tokens`` includes cached tokens. The file of a fork or sub-agent starts with its parent's
lines, all written in the first second of the file; requests in these lines are copies. The log has no request bodies, so losses
are diagnosed from token counts and times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, replace

from loopkit.contract.provenance import Role
from loopkit.contract.records import Usage
from loopkit.logs.foreign.entries import (
    IMPLAUSIBLE,
    CompactionEntry,
    ConversationStart,
    Entry,
    Link,
    LogTime,
    MessageEntry,
    RequestEntry,
    is_plausible,
    to_microseconds,
)
from loopkit.logs.foreign.logged_exchanges import engine_name
from loopkit.logs.foreign.message_text import call_text, content_text, message_record
from loopkit.logs.foreign.text_source import TextLine, TextSource

__all__ = ["NAME", "entries", "recognises"]

NAME = "codex"

IGNORED = {"world_state", "inter_agent_communication"}
IGNORED_ITEMS = {"reasoning", "local_shell_call", "web_search_call", "compaction"}
"Known types of lines and items that no frame contains."
ROLES = {"user": Role.User, "assistant": Role.Assistant, "system": Role.System, "developer": Role.System}
CALLS = ("function_call", "custom_tool_call")
OUTPUTS = ("function_call_output", "custom_tool_call_output")
SECOND = 1_000_000


class _Counts(Struct):
    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_output_tokens: int | None = None

    def minus(self, other: _Counts) -> _Counts | None:
        """Return the counts since an earlier total, or None if a count decreased."""
        pairs = list(zip(astuple(self), astuple(other)))
        if any(now is not None and was is not None and now < was for now, was in pairs):
            return None
        return _Counts(*(None if now is None else now - (was or 0) for now, was in pairs))

    def to_usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.input_tokens,
            cached_tokens=self.cached_input_tokens,
            cache_write_tokens=self.cache_write_input_tokens,
            completion_tokens=self.output_tokens,
            reasoning_tokens=self.reasoning_output_tokens,
        )


class _TokenCount(Struct):
    total_token_usage: _Counts | None = None
    last_token_usage: _Counts | None = None


class _ContentPart(Struct):
    text: Any = None


class _Payload(Struct):
    """The members used, for all types of lines. Members for texts accept any type, so that an unexpected type is no error."""

    type: str | None = None
    id: str | None = None
    forked_from_id: str | None = None
    forked_from: str | None = None
    model_provider: str | None = None
    model: str | None = None
    role: Any = None
    content: list[_ContentPart] | str | None = None
    name: Any = None
    call_id: Any = None
    arguments: Any = None
    input: Any = None
    output: Any = None
    info: _TokenCount | None = None


class _RolloutLine(Struct):
    timestamp: str | None = None
    type: str | None = None
    payload: _Payload | None = None


_envelope = msgspec.json.Decoder(_RolloutLine)


def recognises(head: bytes) -> bool:
    """Return True if a file with these first bytes is a Codex rollout.

    Examples
    --------
    >>> recognises(b'{"timestamp":"t","type":"session_meta","payload":{"id":"a"}}')
    True
    """
    return b'"session_meta"' in head and b'"payload"' in head


def entries(source: TextSource, *, texts: bool) -> Iterator[Entry]:
    """Yield the entries of a rollout. Messages contain their texts only with ``texts=True``."""
    reader = _RolloutReader(source)
    if texts:
        for place, line in source.decode_with_lines(_envelope):
            yield from reader.entries(line, place)
    else:
        for line in source.decode_lines(_envelope):
            yield from reader.entries(line, None)
    yield from reader.pending()


class _RolloutReader:
    """Turns rollout lines into entries. Keeps what later lines need from earlier ones."""

    def __init__(self, source: TextSource) -> None:
        self._source = source
        self._session: str | None = None
        self._engine: str | None = None
        self._model: str | None = None
        self._inherited: int | None = None
        "Time, in microseconds since 1970, until which a fork's file repeats its parent's lines."
        self._total: _Counts | None = None
        self._segment = 0
        "Number of times that the running totals restarted at a lower count."
        self._sent: LogTime = None
        "Time of the last input to the model."
        self._tools: dict[str, str] = {}
        self._pending: list[MessageEntry] = []
        "A user message that waits for the next line. That line shows whether a person or the client wrote the message."

    def pending(self, *, starts_turn: bool = False) -> list[MessageEntry]:
        """Return the message that waits for the next line, if any. ``starts_turn`` is True if a person wrote it."""
        pending, self._pending = self._pending, []
        return [replace(message, starts_turn=starts_turn) for message in pending]

    def entries(self, line: _RolloutLine, place: TextLine | None) -> Iterator[Entry]:
        kind, payload = line.type or "none", line.payload or _Payload()
        if kind == "session_meta":
            if self._session is None and payload.id is not None:
                yield self._start(payload, line)
            return
        if self._session is None:
            self._source.count_left_out("lines before the session's first line")
            return
        link: dict[str, Any] = {"session": self._session, "time": line.timestamp}
        starts_turn = kind == "event_msg" and payload.type == "user_message"
        if starts_turn and not self._pending:
            yield MessageEntry(**link, role=Role.User, starts_turn=True)
        yield from self.pending(starts_turn=starts_turn)
        if kind == "turn_context":
            self._model = payload.model or self._model
        elif kind == "compacted":
            yield CompactionEntry(**link)
        elif kind == "response_item":
            yield from self._message(payload, link, place)
        elif kind == "event_msg":
            if payload.type == "token_count" and payload.info is not None:
                yield from self._request_entry(payload.info, link)
        elif kind not in IGNORED:
            self._source.count_left_out(f"entries of unknown type {kind[:40]!a}")

    def _start(self, payload: _Payload, line: _RolloutLine) -> ConversationStart:
        parent = payload.forked_from_id or payload.forked_from
        self._session = payload.id
        self._engine = engine_name(payload.model_provider or "openai")  # Codex names only other providers
        started = to_microseconds(line.timestamp)
        if parent is not None and started is not None:
            self._inherited = started + SECOND
        return ConversationStart(session=payload.id or "", parent=parent)

    def _request_entry(self, info: _TokenCount, link: dict[str, Any]) -> Iterator[Entry]:
        total, last = info.total_token_usage, self._total
        if total is None or total == last:
            self._source.count_left_out("repeated token counts" if total is not None else "token counts without a total")
            return
        if not is_plausible(*astuple(total), *astuple(info.last_token_usage or total)):
            self._source.count_left_out(IMPLAUSIBLE)
            return
        since = None if last is None else total.minus(last)
        if last is not None and since is None:
            self._segment += 1
            self._source.count_left_out("running totals that restarted at a lower count")
        self._total = total
        answered = to_microseconds(link["time"])
        yield RequestEntry(
            **link,
            key=f"{self._session} {self._segment} {total.input_tokens} {total.output_tokens}",
            is_copy=self._inherited is not None and answered is not None and answered < self._inherited,
            model=self._model,
            engine=self._engine,
            usage=self._source.check_usage((since or info.last_token_usage or total).to_usage()),
            sent=self._sent,
        )

    def _message(self, item: _Payload, link: dict[str, Any], place: TextLine | None) -> Iterator[Entry]:
        if item.type == "message":
            role = ROLES.get(str(item.role), Role.User)
            text = content_text(item.content)
        elif item.type in CALLS:
            role, text = Role.Assistant, call_text(item.name, item.arguments or item.input or "")
            if isinstance(item.call_id, str) and isinstance(item.name, str):
                self._tools[item.call_id] = item.name
        elif item.type in OUTPUTS:
            role, text = Role.ToolResult, _text_of(item.output)
        else:
            if item.type not in IGNORED_ITEMS:
                self._source.count_left_out(f"items of unknown type {str(item.type)[:40]!a}")
            yield Link(**link)
            return
        if role is not Role.Assistant:
            self._sent = link["time"]
        result = role is Role.ToolResult
        record = None if place is None else message_record(role, text, **link, offset=place.offset)
        tool = self._tools.get(str(item.call_id)) if result else None
        message = MessageEntry(**link, role=role, results=int(result), tool=tool, record=record)
        if role is Role.User:
            self._pending = [message]
        else:
            yield message


def _text_of(output: Any) -> str:
    """Return the text of a tool's output, which is a string, a list of content parts, or an object that contains one of these."""
    if isinstance(output, dict):
        output = output.get("content", output.get("output"))
    return content_text(output)
