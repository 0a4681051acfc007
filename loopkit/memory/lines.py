"""The lines of ``nodes.jsonl``: sources, queries, runs, chunks, nodes and steps.

Each line is a JSON object with ``kind``, ``time``, the members of its kind in declared order, and a checksum ``crc``, as in the
log of a session. Decoding refuses unknown kinds, unknown members, and hashes that do not match their content.
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
    """The file of a transcript. A later line for the same source replaces an earlier one."""

    source: str
    path: str | None
    "Path of the transcript's file; None if the records came from a pipe, a socket or a list."


class QueryLine(_Line, frozen=True, kw_only=True, tag="query"):
    """A question that a memory is built for: its id, project and text."""

    query: QueryId
    project: ProjectId
    text: str


class RunLine(_Line, frozen=True, kw_only=True, tag="run"):
    """A run: the calls with one run id, which ingest transcripts or build memory for a project."""

    run: RunId
    project: ProjectId
    task: Literal["ingest", "build"]


class ChunkLine(_Line, frozen=True, kw_only=True, tag="chunk"):
    """A chunk of evidence, and the hash of the node with its text."""

    project: ProjectId
    run: RunId
    node: Sha256Hash
    "Hash of the node of level L0 with the text of the chunk."
    chunk: Chunk


class NodeLine(_Line, frozen=True, kw_only=True, tag="node"):
    """A node. If the node exists already, only its new parents are added."""

    node: MemoryNode


class StepLine(_Line, frozen=True, kw_only=True, tag="step"):
    """A finished step of a build, which is one model call: hashes of its input and of its result."""

    query: QueryId | None
    "The query that the memory is built for; None in the synthesis of a project."
    previous: Sha256Hash | None
    "Hash of the memory node before the step; None while there is no memory yet."
    chunk: Sha256Hash
    "Hash of the chunk that the model read. In a synthesis, the hash of a query's memory node."
    result: Sha256Hash | None
    "Hash of the memory node that the step made; None if the model changed nothing."


Line: TypeAlias = SourceLine | QueryLine | RunLine | ChunkLine | NodeLine | StepLine
_decoder: msgspec.json.Decoder[Line] = decoder(Line)  # type: ignore[arg-type]  # mypy does not accept a union as a type object


def decode_line(data: bytes) -> Line:
    """Decode the JSON of a line without its ``crc`` member.

    Raises
    ------
    ValueError
        If it is not JSON, has an unknown kind or member, or a hash does not match its content.
    """
    return _decoder.decode(data)


def encode_line(line: Line) -> bytes:
    """Return a line as JSON, without its ``crc`` member and without a line end.

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
