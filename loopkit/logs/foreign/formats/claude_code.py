"""Claude Code transcripts: ``~/.claude/projects/<directory>/<session>.jsonl`` and the sub-agents' beside them.

One response is several lines, one a content block, that repeat its usage; only the last has the final count. They have its id in
common, while the request's may be absent or change. ``input_tokens`` leaves out what was cached. A sub-agent, in its own file or
as a side chain of this one, is a session of its own. The system prompt and the tools are not in the log, so losses are judged by
counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from loopkit.contract.provenance import Provenance, Record, Role
from loopkit.contract.records import Usage
from loopkit.logs.foreign.entries import CANNOT_BE, Call, Compaction, Conversation, Entry, Link, Said, rfc3339
from loopkit.logs.foreign.text_source import Line, Source
from loopkit.server.completion.usage import LARGEST

__all__ = ["NAME", "entries", "recognises"]

NAME = "claude_code"

KINDS = {"user", "assistant", "system"}
SILENT = {"attachment", "progress"}
"Kinds that stand between messages, and that no frame holds."
ASIDE = {"summary", "ai-title", "custom-title", "queue-operation", "file-history-snapshot"}
"Known kinds that no message goes on from."
SYNTHETIC = "<synthetic>"
HOUR, MINUTES = 3600.0, 300.0

Count = Annotated[int, Meta(ge=0, le=LARGEST)]


class _Written(Struct, gc=False):
    """Tokens written to the cache, by how long they are kept."""

    ephemeral_5m_input_tokens: Count | None = None
    ephemeral_1h_input_tokens: Count | None = None


class _Details(Struct, gc=False):
    thinking_tokens: Count | None = None


class _Usage(Struct, gc=False):
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation: _Written | None = None
    output_tokens: int | None = None
    output_tokens_details: _Details | None = None

    def normal(self) -> Usage:
        """As it is used here. A gateway that does not say what was cached does not say the whole prompt either."""
        cached, details = self.cache_read_input_tokens, self.output_tokens_details
        known = cached is not None and self.input_tokens is not None
        return Usage(
            prompt_tokens=self.input_tokens + cached + (self.cache_creation_input_tokens or 0) if known else None,  # type: ignore[operator]
            cached_tokens=cached,
            cache_write_tokens=self.cache_creation_input_tokens,
            completion_tokens=self.output_tokens,
            reasoning_tokens=None if details is None else details.thinking_tokens,
        )

    def together(self) -> int:
        """All bits of all counts: below 0 where one is, large where one is."""
        return (
            (self.input_tokens or 0)
            | (self.cache_creation_input_tokens or 0)
            | (self.cache_read_input_tokens or 0)
            | (self.output_tokens or 0)
        )

    def kept_seconds(self) -> float | None:
        written = self.cache_creation
        if written is None or not self.cache_creation_input_tokens:
            return MINUTES if self.cache_creation_input_tokens else None
        return HOUR if written.ephemeral_1h_input_tokens else MINUTES


class _Missed(Struct, gc=False):
    type: str | None = None
    cache_missed_input_tokens: Count | None = None


class _Diagnostics(Struct, gc=False):
    cache_miss_reason: _Missed | None = None


class _Block(Struct, gc=False):
    type: str | None = None


class _Text(_Block, gc=False):
    """All may hold anything: what is not as expected is no text."""

    text: Any = None
    tool_use_id: Any = None
    id: Any = None
    name: Any = None
    input: Raw = Raw()
    content: Any = None


B = TypeVar("B", bound=_Block)


class _Message(Struct, Generic[B], gc=False):
    id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    usage: _Usage | None = None
    diagnostics: _Diagnostics | None = None
    content: list[B] | str | None = None


class _Line(Struct, Generic[B], rename="camel", gc=False):
    parent_uuid: str | None = None
    logical_parent_uuid: str | None = None
    is_sidechain: bool | None = None
    session_id: str | None = None
    agent_id: str | None = None
    type: str | None = None
    subtype: str | None = None
    message: _Message[B] | str | None = None
    is_api_error_message: bool | None = None
    is_meta: bool | None = None
    uuid: str | None = None
    timestamp: str | None = None
    is_compact_summary: bool | None = None


_lean = msgspec.json.Decoder(_Line[_Block])
_full = msgspec.json.Decoder(_Line[_Text])


def recognises(head: bytes) -> bool:
    """Whether a file that begins so is a transcript.

    Examples
    --------
    >>> recognises(b'{"parentUuid":null,"sessionId":"a","type":"user","uuid":"u"}')
    True
    """
    return b'"sessionId"' in head and (b'"parentUuid"' in head or b'"leafUuid"' in head)


def entries(source: Source, *, texts: bool) -> Iterator[Entry]:
    """What a transcript says."""
    reading = _Reading(source)
    if texts:
        return chain.from_iterable(chain(reading.line(one), reading.texts(one, place)) for place, one in source.placed(_full))
    return chain.from_iterable(map(reading.line, source.decoded(_lean)))


class _Reading:
    """What has to be known of the lines before."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._sessions: set[str] = set()
        self._chains: dict[str, str] = {}
        "Of a line in a side chain, the session that the chain is."
        self._boundary: str | None = None
        self._tools: dict[str, str] = {}

    def line(self, one: _Line[Any]) -> Sequence[Entry]:
        """What a line says, but for texts."""
        kind, session, parent, uuid, time = one.type, one.session_id, one.parent_uuid, one.uuid, one.timestamp
        if kind not in KINDS:
            if kind not in SILENT and kind not in ASIDE:
                self._source.left_out(f"entries of the type {str(kind)[:40]!a}")
            if uuid is None or session is None:
                return ()
        elif session is None:
            self._source.left_out(f"entries of the type {kind!a} without a session")
            return ()
        if one.agent_id is not None or one.is_sidechain:
            session, parent = self._chain(one, session)
        message = None if isinstance(one.message, str) else one.message
        entry: Entry
        if kind == "system" and one.subtype == "compact_boundary":
            self._boundary = uuid
            entry = Compaction(session, uuid, parent or one.logical_parent_uuid, time)
        elif message is None or kind not in ("user", "assistant"):
            entry = Link(session, uuid, parent, time)
        elif kind == "assistant":
            entry = self._call(one, message, session, parent)
        elif one.is_compact_summary and (self._boundary is None or parent != self._boundary):
            entry = Compaction(session, uuid, parent, time)  # of a version that writes no boundary
        else:
            blocks = message.content if isinstance(message.content, list) else ()
            results = sum([block.type == "tool_result" for block in blocks])
            asks = not (results or one.is_meta or one.is_compact_summary)
            role = Role.ToolResult if results else Role.User
            entry = Said(session, uuid, parent, time, role=role, asks=asks, results=results)
        if session in self._sessions:
            return (entry,)
        self._sessions.add(session)
        return Conversation(session=session, parent=one.session_id if session != one.session_id else None), entry

    def _chain(self, one: _Line[Any], session: str) -> tuple[str, str | None]:
        """The session that a line of a sub-agent belongs to, and the line in it that it goes on from."""
        parent, uuid = one.parent_uuid, one.uuid
        if one.agent_id is not None:
            return f"{session}:{one.agent_id}", parent
        chain = self._chains.get(parent or "")
        if chain is None:
            parent, chain = None, f"{session}:{uuid}"
        if uuid is not None:
            self._chains[uuid] = chain
        return chain, parent

    def _call(self, one: _Line[Any], message: _Message[Any], session: str, parent: str | None) -> Entry:
        if message.model == SYNTHETIC or one.is_api_error_message:
            self._source.left_out("answers that no model gave")
            return Link(session, one.uuid, parent, one.timestamp)
        usage = message.usage or _Usage()
        if not 0 <= usage.together() <= LARGEST:  # as `can_be` says; asked of every answer
            self._source.left_out(CANNOT_BE)
            usage = _Usage()
        missed = None if message.diagnostics is None else message.diagnostics.cache_miss_reason
        return Call(
            session,
            one.uuid,
            parent,
            one.timestamp,
            key=_key(one, message),
            response=message.id or None,
            side=one.is_sidechain is True or one.agent_id is not None,
            model=message.model,
            engine="anthropic",
            usage=usage.normal(),
            finish=message.stop_reason,
            kept_seconds=usage.kept_seconds(),
            verdict=None if missed is None else missed.type,
            missed=None if missed is None else missed.cache_missed_input_tokens,
        )

    def texts(self, one: _Line[Any], place: Line) -> Iterator[Said]:
        """What was said in a line; each goes on from what the line is."""
        message, kind = one.message, one.type
        if not isinstance(message, _Message) or kind not in ("user", "assistant") or one.session_id is None:
            return
        session = one.session_id
        if one.agent_id is not None or one.is_sidechain:
            session = self._chains.get(one.uuid or "") or f"{session}:{one.agent_id}"
        stands = rfc3339(one.timestamp), Provenance(session, place.offset)
        content = message.content
        for block in [_Text(type="text", text=content)] if isinstance(content, str) else content or ():
            tool = key = None
            if kind == "assistant":
                role, key = Role.Assistant, _key(one, message)
                text = f"{block.name}({bytes(block.input).decode()})" if block.type == "tool_use" else block.text
                if isinstance(block.id, str) and isinstance(block.name, str):
                    self._tools[block.id] = block.name
            elif block.type == "tool_result":
                role, text, tool = Role.ToolResult, _text_of(block.content), self._tools.get(str(block.tool_use_id))
            else:
                role, text = Role.User, block.text
            if isinstance(text, str):
                yield Said(session, time=one.timestamp, role=role, tool=tool, key=key, record=Record(role, text, *stands))


def _key(one: _Line[Any], message: _Message[Any]) -> str:
    """A response's id: of its lines some may name another request, or none. What a side chain tells again it tells in its own."""
    return f"{message.id or one.uuid}{' aside' if one.is_sidechain or one.agent_id is not None else ''}"


def _text_of(content: Any) -> str:
    """The text of a tool's result: a string, or blocks of which some are text."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    texts = (block.get("text") for block in blocks if isinstance(block, dict))
    return "\n".join(text for text in texts if isinstance(text, str))
