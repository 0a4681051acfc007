"""Claude Code transcripts: ``~/.claude/projects/<directory>/<session>.jsonl``, and those of sub-agents beside them.

A response takes several lines, one per content block. Each line repeats the usage, and only the last line has the final counts.
All lines of a response have the same response id, but request ids may be missing or differ. ``input_tokens`` excludes cached
tokens. A sub-agent is a session of its own, whether it has its own file or is a side chain in its parent's file. The log lacks
system prompt and tools, so losses are diagnosed from token counts and times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from loopkit.contract.provenance import Role
from loopkit.contract.records import Usage
from loopkit.engines.anthropic import FIVE_MINUTES, ONE_HOUR, Anthropic
from loopkit.logs.foreign.entries import (
    IMPLAUSIBLE,
    CompactionEntry,
    ConversationStart,
    Entry,
    Link,
    MessageEntry,
    RequestEntry,
)
from loopkit.logs.foreign.message_text import call_text, content_text, message_record
from loopkit.logs.foreign.text_source import TextLine, TextSource
from loopkit.server.completion.usage import LARGEST

__all__ = ["NAME", "entries", "recognises"]

NAME = "claude_code"

KINDS = {"user", "assistant", "system"}
IGNORED_LINKED = {"attachment", "progress"}
"Entry types that no frame contains, but that are part of the chain of parents."
IGNORED = {"summary", "ai-title", "custom-title", "queue-operation", "file-history-snapshot"}
"Entry types that no frame contains and that have no links to other entries."
SYNTHETIC = "<synthetic>"

Count = Annotated[int, Meta(ge=0, le=LARGEST)]


class _CacheWrites(Struct, gc=False):
    """Tokens written to the cache, by time to live."""

    ephemeral_5m_input_tokens: Count | None = None
    ephemeral_1h_input_tokens: Count | None = None


class _Details(Struct, gc=False):
    thinking_tokens: Count | None = None


class _ClaudeUsage(Struct, gc=False):
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation: _CacheWrites | None = None
    output_tokens: int | None = None
    output_tokens_details: _Details | None = None

    def to_usage(self) -> Usage:
        """Return the usage. If the count of cached tokens is missing, as with some gateways, the prompt size is unknown."""
        cached, details = self.cache_read_input_tokens, self.output_tokens_details
        known = cached is not None and self.input_tokens is not None
        return Usage(
            prompt_tokens=self.input_tokens + cached + (self.cache_creation_input_tokens or 0) if known else None,  # type: ignore[operator]
            cached_tokens=cached,
            cache_write_tokens=self.cache_creation_input_tokens,
            completion_tokens=self.output_tokens,
            reasoning_tokens=None if details is None else details.thinking_tokens,
        )

    def combined_bits(self) -> int:
        """Return the bitwise or of all counts. The result is negative or too large if any count is."""
        return (
            (self.input_tokens or 0)
            | (self.cache_creation_input_tokens or 0)
            | (self.cache_read_input_tokens or 0)
            | (self.output_tokens or 0)
        )

    def kept_seconds(self) -> float | None:
        written = self.cache_creation
        if written is None or not self.cache_creation_input_tokens:
            return FIVE_MINUTES if self.cache_creation_input_tokens else None
        return ONE_HOUR if written.ephemeral_1h_input_tokens else FIVE_MINUTES


class _CacheMiss(Struct, gc=False):
    type: str | None = None
    cache_missed_input_tokens: Count | None = None


class _Diagnostics(Struct, gc=False):
    cache_miss_reason: _CacheMiss | None = None


class _ClaudeBlock(Struct, gc=False):
    type: str | None = None


class _ClaudeTextBlock(_ClaudeBlock, gc=False):
    """A content block with its text. Members accept any type, so that an unexpected type is no error."""

    text: Any = None
    tool_use_id: Any = None
    id: Any = None
    name: Any = None
    input: Raw = Raw()
    content: Any = None


B = TypeVar("B", bound=_ClaudeBlock)


class _ClaudeMessage(Struct, Generic[B], gc=False):
    id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    usage: _ClaudeUsage | None = None
    diagnostics: _Diagnostics | None = None
    content: list[B] | str | None = None


class _TranscriptLine(Struct, Generic[B], rename="camel", gc=False):
    parent_uuid: str | None = None
    logical_parent_uuid: str | None = None
    is_sidechain: bool | None = None
    session_id: str | None = None
    agent_id: str | None = None
    type: str | None = None
    subtype: str | None = None
    message: _ClaudeMessage[B] | str | None = None
    is_api_error_message: bool | None = None
    is_meta: bool | None = None
    uuid: str | None = None
    timestamp: str | None = None
    is_compact_summary: bool | None = None


_lean = msgspec.json.Decoder(_TranscriptLine[_ClaudeBlock])
_full = msgspec.json.Decoder(_TranscriptLine[_ClaudeTextBlock])


def recognises(head: bytes) -> bool:
    """Return True if a file with these first bytes is a Claude Code transcript.

    Examples
    --------
    >>> recognises(b'{"parentUuid":null,"sessionId":"a","type":"user","uuid":"u"}')
    True
    """
    return b'"sessionId"' in head and (b'"parentUuid"' in head or b'"leafUuid"' in head)


def entries(source: TextSource, *, texts: bool) -> Iterator[Entry]:
    """Yield the entries of a transcript. Messages contain their texts only with ``texts=True``."""
    reader = _TranscriptReader(source)
    if texts:
        return chain.from_iterable(
            chain(reader.entries(line), reader.messages(line, place)) for place, line in source.decode_with_lines(_full)
        )
    return chain.from_iterable(map(reader.entries, source.decode_lines(_lean)))


class _TranscriptReader:
    """Turns transcript lines into entries. Keeps what later lines need from earlier ones."""

    def __init__(self, source: TextSource) -> None:
        self._source = source
        self._sessions: set[str] = set()
        self._chains: dict[str, str] = {}
        "Session of each line of a side chain, by the id of the line."
        self._boundary: str | None = None
        self._tools: dict[str, str] = {}

    def entries(self, line: _TranscriptLine[Any]) -> Sequence[Entry]:
        """Return the entries of a line: its request, message or link, but no texts."""
        kind, session, parent, uuid, time = line.type, line.session_id, line.parent_uuid, line.uuid, line.timestamp
        if kind not in KINDS:
            if kind not in IGNORED_LINKED and kind not in IGNORED:
                self._source.count_left_out(f"entries of unknown type {str(kind)[:40]!a}")
            if uuid is None or session is None:
                return ()
        elif session is None:
            self._source.count_left_out(f"entries of type {kind!a} without a session")
            return ()
        if line.agent_id is not None or line.is_sidechain:
            session, parent = self._chain(line, session)
        message = None if isinstance(line.message, str) else line.message
        entry: Entry
        if kind == "system" and line.subtype == "compact_boundary":
            self._boundary = uuid
            entry = CompactionEntry(session, uuid, parent or line.logical_parent_uuid, time)
        elif message is None or kind not in ("user", "assistant"):
            entry = Link(session, uuid, parent, time)
        elif kind == "assistant":
            entry = self._request_entry(line, message, session, parent)
        elif line.is_compact_summary and (self._boundary is None or parent != self._boundary):
            entry = CompactionEntry(session, uuid, parent, time)  # some versions write no boundary line
        else:
            blocks = message.content if isinstance(message.content, list) else ()
            results = sum([block.type == "tool_result" for block in blocks])
            starts_turn = not (results or line.is_meta or line.is_compact_summary)
            role = Role.ToolResult if results else Role.User
            entry = MessageEntry(session, uuid, parent, time, role=role, starts_turn=starts_turn, results=results)
        if session in self._sessions:
            return (entry,)
        self._sessions.add(session)
        return ConversationStart(session=session, parent=line.session_id if session != line.session_id else None), entry

    def _chain(self, line: _TranscriptLine[Any], session: str) -> tuple[str, str | None]:
        """Return the session of a sub-agent's line, and the id of its parent line in that session."""
        parent, uuid = line.parent_uuid, line.uuid
        if line.agent_id is not None:
            return f"{session}:{line.agent_id}", parent
        chain = self._chains.get(parent or "")
        if chain is None:
            parent, chain = None, f"{session}:{uuid}"
        if uuid is not None:
            self._chains[uuid] = chain
        return chain, parent

    def _request_entry(self, line: _TranscriptLine[Any], message: _ClaudeMessage[Any], session: str, parent: str | None) -> Entry:
        if message.model == SYNTHETIC or line.is_api_error_message:
            self._source.count_left_out("synthetic responses that Claude Code wrote itself")
            return Link(session, line.uuid, parent, line.timestamp)
        usage = message.usage or _ClaudeUsage()
        if not 0 <= usage.combined_bits() <= LARGEST:  # `is_plausible`, inlined because it runs for every response
            self._source.count_left_out(IMPLAUSIBLE)
            usage = _ClaudeUsage()
        missed = None if message.diagnostics is None else message.diagnostics.cache_miss_reason
        return RequestEntry(
            session,
            line.uuid,
            parent,
            line.timestamp,
            key=_key(line, message),
            response=message.id or None,
            is_side_chain=line.is_sidechain is True or line.agent_id is not None,
            model=message.model,
            engine=Anthropic.name,
            usage=usage.to_usage(),
            finish_reason=message.stop_reason,
            kept_seconds=usage.kept_seconds(),
            verdict=None if missed is None else missed.type,
            missed_tokens=None if missed is None else missed.cache_missed_input_tokens,
        )

    def messages(self, line: _TranscriptLine[Any], place: TextLine) -> Iterator[MessageEntry]:
        """Yield a message for each content block of a line. They come after the line's own entry."""
        message, kind = line.message, line.type
        if not isinstance(message, _ClaudeMessage) or kind not in ("user", "assistant") or line.session_id is None:
            return
        session = line.session_id
        if line.agent_id is not None or line.is_sidechain:
            session = self._chains.get(line.uuid or "") or f"{session}:{line.agent_id}"
        content = message.content
        for block in [_ClaudeTextBlock(type="text", text=content)] if isinstance(content, str) else content or ():
            tool = key = None
            if kind == "assistant":
                role, key = Role.Assistant, _key(line, message)
                text = call_text(block.name, block.input) if block.type == "tool_use" else block.text
                if isinstance(block.id, str) and isinstance(block.name, str):
                    self._tools[block.id] = block.name
            elif block.type == "tool_result":
                role, text, tool = Role.ToolResult, content_text(block.content), self._tools.get(str(block.tool_use_id))
            else:
                role, text = Role.User, block.text
            if isinstance(text, str):
                record = message_record(role, text, session=session, time=line.timestamp, offset=place.offset)
                yield MessageEntry(session, time=line.timestamp, role=role, tool=tool, key=key, record=record)


def _key(line: _TranscriptLine[Any], message: _ClaudeMessage[Any]) -> str:
    """Return the key of a request: its response id, because request ids are unreliable. Side chains have keys of their own."""
    return f"{message.id or line.uuid}{' side chain' if line.is_sidechain or line.agent_id is not None else ''}"
