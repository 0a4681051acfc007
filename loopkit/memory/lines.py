"""The lines of ``nodes.jsonl``: sources, queries, runs, chunks, nodes and steps.

A line is a JSON object like those of a session's log: ``kind``, ``time``, its members in declared order, ``crc``. Unknown kinds,
unknown members and hashes that do not match their content are refused.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from loopkit.encoding import encode_texts
from loopkit.ids import ProjectId, QueryId, RunId, Sha256Hash, Timestamp
from loopkit.memory.nodes import Chunk, MemoryNode, decoder

__all__ = ["ChunkLine", "Line", "NodeLine", "QueryLine", "RunLine", "SourceLine", "StepLine", "decode_line", "encode_line"]


class _Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    time: Timestamp


class SourceLine(_Line, frozen=True, kw_only=True, tag="source"):
    """Where a transcript is. The last line of a source counts."""

    source: str
    path: str | None
    "Its file; None if it came through a pipe or a socket."


class QueryLine(_Line, frozen=True, kw_only=True, tag="query"):
    """A question that a memory is built for."""

    query: QueryId
    project: ProjectId
    text: str


class RunLine(_Line, frozen=True, kw_only=True, tag="run"):
    """A run that adds to the memory."""

    run: RunId
    project: ProjectId
    task: Literal["ingest", "build"]


class ChunkLine(_Line, frozen=True, kw_only=True, tag="chunk"):
    """A chunk of evidence and its node."""

    project: ProjectId
    run: RunId
    node: Sha256Hash
    "The node of level L0 with the same text."
    chunk: Chunk


class NodeLine(_Line, frozen=True, kw_only=True, tag="node"):
    """A node, or further parents of a node that exists."""

    node: MemoryNode


class StepLine(_Line, frozen=True, kw_only=True, tag="step"):
    """A finished model call: its input and its result."""

    query: QueryId | None
    "None in a synthesis."
    previous: Sha256Hash | None
    "The memory so far; None at the first step."
    chunk: Sha256Hash
    "Hash of the chunk that was read; in a synthesis, of a query's node."
    result: Sha256Hash | None
    "The memory after the step; None if nothing changed."


Line: TypeAlias = SourceLine | QueryLine | RunLine | ChunkLine | NodeLine | StepLine
_decoder: msgspec.json.Decoder[Line] = decoder(Line)  # type: ignore[arg-type]  # mypy does not accept a union as a type object


def decode_line(data: bytes) -> Line:
    """Decode a line without its ``crc``. Raises ``ValueError`` if it is not valid."""
    return _decoder.decode(data)


def encode_line(line: Line) -> bytes:
    """Encode a line without its ``crc``.

    Raises
    ------
    EncodeError
        If a text cannot be written as JSON.

    Examples
    --------
    >>> encode_line(SourceLine(time=Timestamp("2026-11-30T07:31:05.000000Z"), source="lima/0", path=None))
    b'{"kind":"source","time":"2026-11-30T07:31:05.000000Z","source":"lima/0","path":null}'
    """
    return encode_texts(line, str(line.__struct_config__.tag))
