"""OpenAI Codex CLI rollouts: ``~/.codex/sessions/<day>/rollout-<time>-<id>.jsonl``.

A list of lines without links. Requests are counted by running totals that are written again and again: one is a request only
where the total has changed. ``input_tokens`` has the cached ones in it. The file of a fork or sub-agent begins with its
parent's lines, all written in its first second; they are history here. Bodies are not in the log, so losses are judged by
counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, replace

from loopkit.contract.provenance import Provenance, Record, Role
from loopkit.contract.records import Usage
from loopkit.encoding import encode
from loopkit.logs.foreign.entries import (
    CANNOT_BE,
    Call,
    Compaction,
    Conversation,
    Entry,
    Link,
    Said,
    When,
    can_be,
    moment,
    rfc3339,
)
from loopkit.logs.foreign.text_source import Line, Source

__all__ = ["NAME", "entries", "recognises"]

NAME = "codex"

SILENT = {"world_state", "inter_agent_communication"}
UNTOLD = {"reasoning", "local_shell_call", "web_search_call", "compaction"}
"Kinds of items that no frame holds."
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

    def less(self, other: _Counts) -> _Counts | None:
        """What came since; None where one fell."""
        pairs = list(zip(astuple(self), astuple(other)))
        if any(now is not None and was is not None and now < was for now, was in pairs):
            return None
        return _Counts(*(None if now is None else now - (was or 0) for now, was in pairs))

    def normal(self) -> Usage:
        return Usage(
            prompt_tokens=self.input_tokens,
            cached_tokens=self.cached_input_tokens,
            cache_write_tokens=self.cache_write_input_tokens,
            completion_tokens=self.output_tokens,
            reasoning_tokens=self.reasoning_output_tokens,
        )


class _Info(Struct):
    total_token_usage: _Counts | None = None
    last_token_usage: _Counts | None = None


class _Part(Struct):
    text: Any = None


class _Payload(Struct):
    """Of every type the members that are used; those of texts may hold anything: what is not as expected is no text."""

    type: str | None = None
    id: str | None = None
    forked_from_id: str | None = None
    forked_from: str | None = None
    model_provider: str | None = None
    model: str | None = None
    role: Any = None
    content: list[_Part] | str | None = None
    name: Any = None
    call_id: Any = None
    arguments: Any = None
    input: Any = None
    output: Any = None
    info: _Info | None = None


class _Line(Struct):
    timestamp: str | None = None
    type: str | None = None
    payload: _Payload | None = None


_envelope = msgspec.json.Decoder(_Line)


def recognises(head: bytes) -> bool:
    """Whether a file that begins so is a rollout.

    Examples
    --------
    >>> recognises(b'{"timestamp":"t","type":"session_meta","payload":{"id":"a"}}')
    True
    """
    return b'"session_meta"' in head and b'"payload"' in head


def entries(source: Source, *, texts: bool) -> Iterator[Entry]:
    """What a rollout says."""
    reading = _Reading(source)
    if texts:
        for line, one in source.placed(_envelope):
            yield from reading.line(one, line)
    else:
        for one in source.decoded(_envelope):
            yield from reading.line(one, None)
    yield from reading.held()


class _Reading:
    """What has to be known of the lines before."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._session: str | None = None
        self._engine: str | None = None
        self._model: str | None = None
        self._inherited: int | None = None
        "Until this moment a fork's file repeats its parent's lines."
        self._total: _Counts | None = None
        self._segment = 0
        "How often the totals fell."
        self._sent: When = None
        "When the model was last given something."
        self._tools: dict[str, str] = {}
        self._held: list[Said] = []
        "A message with the role of a user: a person's where the next line says so, else put in by the client."

    def held(self, *, asks: bool = False) -> list[Said]:
        """The message that waits for the next line."""
        held, self._held = self._held, []
        return [replace(said, asks=asks) for said in held]

    def line(self, one: _Line, place: Line | None) -> Iterator[Entry]:
        kind, payload = one.type or "none", one.payload or _Payload()
        if kind == "session_meta":
            if self._session is None and payload.id is not None:
                yield self._begin(payload, one)
            return
        if self._session is None:
            self._source.left_out("lines before the session's first one")
            return
        link: dict[str, Any] = {"session": self._session, "time": one.timestamp}
        asks = kind == "event_msg" and payload.type == "user_message"
        if asks and not self._held:
            yield Said(**link, role=Role.User, asks=True)
        yield from self.held(asks=asks)
        if kind == "turn_context":
            self._model = payload.model or self._model
        elif kind == "compacted":
            yield Compaction(**link)
        elif kind == "response_item":
            yield from self._item(payload, link, place)
        elif kind == "event_msg":
            if payload.type == "token_count" and payload.info is not None:
                yield from self._counted(payload.info, link)
        elif kind not in SILENT:
            self._source.left_out(f"entries of the type {kind[:40]!a}")

    def _begin(self, payload: _Payload, one: _Line) -> Conversation:
        parent = payload.forked_from_id or payload.forked_from
        self._session = payload.id
        self._engine = "openai" if payload.model_provider in (None, "openai") else None
        started = moment(one.timestamp)
        if parent is not None and started is not None:
            self._inherited = started + SECOND
        return Conversation(session=payload.id or "", parent=parent)

    def _counted(self, info: _Info, link: dict[str, Any]) -> Iterator[Entry]:
        total, last = info.total_token_usage, self._total
        if total is None or total == last:
            self._source.left_out("token counts told again" if total is not None else "token counts without a total")
            return
        if not can_be(*astuple(total), *astuple(info.last_token_usage or total)):
            self._source.left_out(CANNOT_BE)
            return
        since = None if last is None else total.less(last)
        if last is not None and since is None:
            self._segment += 1
            self._source.left_out("running totals that fell, and began anew")
        self._total = total
        answered = moment(link["time"])
        yield Call(
            **link,
            key=f"{self._session} {self._segment} {total.input_tokens} {total.output_tokens}",
            copied=self._inherited is not None and answered is not None and answered < self._inherited,
            model=self._model,
            engine=self._engine,
            usage=self._source.possible((since or info.last_token_usage or total).normal()),
            sent=self._sent,
        )

    def _item(self, item: _Payload, link: dict[str, Any], place: Line | None) -> Iterator[Entry]:
        if item.type == "message":
            role = ROLES.get(str(item.role), Role.User)
            texts = [item.content] if isinstance(item.content, str) else [part.text for part in item.content or ()]
            text = "\n".join(each if isinstance(each, str) else "" for each in texts)
        elif item.type in CALLS:
            given = item.arguments or item.input or ""
            role, text = Role.Assistant, f"{item.name}({given if isinstance(given, str) else encode(given).decode()})"
            if isinstance(item.call_id, str) and isinstance(item.name, str):
                self._tools[item.call_id] = item.name
        elif item.type in OUTPUTS:
            role, text = Role.ToolResult, _text_of(item.output)
        else:
            if item.type not in UNTOLD:
                self._source.left_out(f"items of the type {str(item.type)[:40]!a}")
            yield Link(**link)
            return
        if role is not Role.Assistant:
            self._sent = link["time"]
        result = role is Role.ToolResult
        record = None if place is None else Record(role, text, rfc3339(link["time"]), Provenance(link["session"], place.offset))
        tool = self._tools.get(str(item.call_id)) if result else None
        said = Said(**link, role=role, results=int(result), tool=tool, record=record)
        if role is Role.User:
            self._held = [said]
        else:
            yield said


def _text_of(output: Any) -> str:
    """The text of a tool's output: a string, parts of text, or an object that holds one of these."""
    if isinstance(output, dict):
        output = output.get("content", output.get("output"))
    if isinstance(output, list):
        return "\n".join(str(part.get("text", "")) for part in output if isinstance(part, dict))
    return output if isinstance(output, str) else ""
