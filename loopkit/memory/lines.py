"""The lines of ``nodes.jsonl``, the truth of a memory: what came in, what was asked, what was made of it.

A line is a JSON object framed as a session's are: ``kind``, ``time``, its members in declared order, ``crc``. Unknown kinds and
members are refused, and so is a hash that its content does not give. Knows nothing of files or of the database made from them.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from loopkit.encoding import encode_texts
from loopkit.ids import ProjectId, QueryId, RunId, Sha256Hash, Timestamp
from loopkit.memory.types import Chunk, MemoryNode, decoder

__all__ = ["ChunkLine", "Line", "NodeLine", "QueryLine", "RunLine", "SourceLine", "StepLine", "decode_line", "encode_line"]


class _Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    time: Timestamp


class SourceLine(_Line, frozen=True, kw_only=True, tag="source"):
    """Where a transcript lies; the last line of a source counts."""

    source: str
    path: str | None
    "Its file; None for what came through a pipe or a socket."


class QueryLine(_Line, frozen=True, kw_only=True, tag="query"):
    """What a memory is built for."""

    query: QueryId
    project: ProjectId
    text: str


class RunLine(_Line, frozen=True, kw_only=True, tag="run"):
    """A run that adds to the memory."""

    run: RunId
    project: ProjectId
    task: Literal["ingest", "build"]


class ChunkLine(_Line, frozen=True, kw_only=True, tag="chunk"):
    """Evidence, with the node that says it."""

    project: ProjectId
    run: RunId
    node: Sha256Hash
    "Level L0, of the same text."
    chunk: Chunk


class NodeLine(_Line, frozen=True, kw_only=True, tag="node"):
    """A node; one that is there already, with parents that it did not have."""

    node: MemoryNode


class StepLine(_Line, frozen=True, kw_only=True, tag="step"):
    """A model call that was paid for: what it was given, and what came of it."""

    query: QueryId | None
    "None in a project's synthesis."
    previous: Sha256Hash | None
    "The memory so far; None at the first step."
    chunk: Sha256Hash
    "What was read; in a synthesis the node of a query."
    result: Sha256Hash | None
    "The memory after it; None where nothing changed."


Line: TypeAlias = SourceLine | QueryLine | RunLine | ChunkLine | NodeLine | StepLine
_decoder: msgspec.json.Decoder[Line] = decoder(Line)  # type: ignore[arg-type]  # a union is no type to the type checker


def decode_line(data: bytes) -> Line:
    """Decode a line without its ``crc``; raises ``ValueError``."""
    return _decoder.decode(data)


def encode_line(line: Line) -> bytes:
    """Encode a line without its ``crc``.

    Raises
    ------
    EncodeError
        When a text holds what JSON cannot.

    Examples
    --------
    >>> encode_line(SourceLine(time=Timestamp("2026-11-30T07:31:05.000000Z"), source="lima/0", path=None))
    b'{"kind":"source","time":"2026-11-30T07:31:05.000000Z","source":"lima/0","path":null}'
    """
    return encode_texts(line, str(line.__struct_config__.tag))
