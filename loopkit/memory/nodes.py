"""The parts of a memory and their hashes: levels, chunks of evidence, nodes.

Chunks and nodes are named by a hash of their content. In the hashed encoding each field is preceded by its type and length, so
different contents have different encodings. The hash does not cover time and run, so the same content gets the same hash in every
run. Creating or reading a value fails if its hash does not match its content.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Self, TypeVar

import msgspec

from loopkit.contract.provenance import Record
from loopkit.encoding import encode_texts, find_unencodable
from loopkit.errors import EncodeError, InvalidConfig, InvalidId
from loopkit.ids import ProjectId, QueryId, RunId, Sha256Hash
from loopkit.reprs import Card

__all__ = ["Chunk", "Level", "MemoryNode", "as_line", "canonical", "decoder", "need", "need_count"]

T = TypeVar("T")


class Level(StrEnum):
    """The level of a memory node: evidence (L0), memory for a query (L1), synthesis of a project (L2).

    Examples
    --------
    >>> Level("L1")
    <Level.L1: 'L1'>
    >>> Level("l1")
    Traceback (most recent call last):
        ...
    ValueError: 'l1' is not a valid Level
    """

    L0 = "L0"
    "Evidence from transcripts."
    L1 = "L1"
    "The memory for one question, built from evidence."
    L2 = "L2"
    "The synthesis of a project, built from the memories of its questions."


def need(kind: type[str], *values: str) -> None:
    """Raise `InvalidId` if a value is not an identifier of the given kind.

    Examples
    --------
    >>> need(ProjectId, "peru")
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidId: 'peru' is not a ProjectId: it must be made by ProjectId(…), not a bare string
    """
    for value in values:
        if not isinstance(value, kind):
            raise InvalidId(kind.__name__, value, f"made by {kind.__name__}(…), not a bare string")


def need_count(name: str, value: int) -> None:
    """Raise `InvalidConfig` if a value is not an integer of at least 1."""
    if type(value) is not int or not 1 <= value < 1 << 63:
        raise InvalidConfig(name, f"expected an integer of at least 1; got {value!r:.80}", "Give 1 or more")


def canonical(domain: str, *fields: str | int | None) -> bytes:
    r"""Return bytes that identify a list of fields: other fields or another domain always give other bytes.

    Parameters
    ----------
    domain : str
        A name for the meaning of the fields, with a version, such as ``loopkit.memory.node/1``.
    *fields : str, int or None
        The fields, in order. Text is not normalised.

    Returns
    -------
    bytes
        For the domain and each field: a letter for the type (``t``, ``i``, ``n``), the length in eight bytes, and the value.
        The value is text in UTF-8, the digits of a number, or empty for None.

    Raises
    ------
    EncodeError
        If a field has another type, or a text cannot be written as UTF-8.

    Examples
    --------
    >>> canonical("x", "ab", None)[10:]
    b't\x00\x00\x00\x00\x00\x00\x00\x02abn\x00\x00\x00\x00\x00\x00\x00\x00'
    >>> canonical("x", "ab", "c") == canonical("x", "a", "bc")
    False
    """
    parts: list[bytes] = []
    try:
        for field in (domain, *fields):
            tag, data = (
                (b"n", b"") if field is None else (b"t", field.encode()) if isinstance(field, str) else (b"i", b"%d" % field)
            )
            parts += tag, len(data).to_bytes(8, "big"), data
    except (TypeError, UnicodeEncodeError) as error:
        raise EncodeError(*(find_unencodable(field, domain) or (domain, str(error)))) from error
    return b"".join(parts)


def decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return a JSON decoder for a type whose members may be identifiers. Decoding raises ``ValueError`` on invalid input."""
    return msgspec.json.Decoder(kind, dec_hook=lambda made, value: made(value))


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of values that store the SHA-256 of their own content."""

    def to_json(self) -> bytes:
        """Return the value as a JSON object, with its members in declared order.

        Raises
        ------
        EncodeError
            If a text cannot be written as JSON.
        """
        return encode_texts(self, type(self).__name__)

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Decode the output of :meth:`to_json`.

        Raises
        ------
        ValueError
            If `data` is not JSON, has an unknown member or a wrong type, or the hash does not match the content.
        """
        return decoder(cls).decode(data)

    def _check(self, stored: Sha256Hash, found: Sha256Hash) -> None:
        if found != stored:
            why = f"it is {stored!s:.80}, but the content has the hash {found}"
            raise InvalidConfig(f"{type(self).__name__}.sha256", why, "The hash or the content was changed")


class Chunk(_Content, frozen=True, forbid_unknown_fields=True):
    """Consecutive records of a transcript, which the model reads in one step.

    Examples
    --------
    >>> from loopkit.contract.provenance import Provenance, Role
    >>> record = Record(Role.User, "hello", None, Provenance("lima/0", 312))
    >>> chunk = Chunk.of(1, [record], 5)
    >>> chunk.sha256 == Chunk.of(7, [record], 6).sha256 == chunk.content_hash()
    True
    >>> print(chunk.text)
    User: hello
    """

    t: int
    "Number of the chunk within its run, from 1."
    records: tuple[Record, ...]
    "The records, in order."
    tokens: int
    "Number of tokens of the text. It exceeds the budget only if the chunk is a single long record."
    sha256: Sha256Hash
    "SHA-256 of the texts, sources and offsets of the records, in hex."

    def __post_init__(self) -> None:
        need_count("Chunk.t", self.t)
        if self.tokens < 0 or not self.records:
            raise InvalidConfig("Chunk", "it needs at least one record and tokens of at least 0")
        self._check(self.sha256, self.content_hash())

    @classmethod
    def of(cls, t: int, records: Iterable[Record], tokens: int) -> Self:
        """Return a chunk of these records, with its hash computed.

        Parameters
        ----------
        t : int
            Number of the chunk within its run, from 1.
        records : iterable of Record
            Records of the chunk, in order.
        tokens : int
            Number of tokens of its text.

        Raises
        ------
        InvalidConfig
            If `records` is empty or contains anything but a Record, or a number is out of range.
        """
        found = tuple(records)
        if other := [each for each in found if not isinstance(each, Record)]:
            raise InvalidConfig("Chunk.records", f"expected a Record; got {other[0]!r:.80}")
        return cls(t, found, tokens, _chunk_hash(found))

    def content_hash(self) -> Sha256Hash:
        """Compute the SHA-256 of the texts, sources and offsets of the records, in hex."""
        return _chunk_hash(self.records)

    @property
    def text(self) -> str:
        """The records as one text. The model reads it, and it is the text of the chunk's evidence node."""
        return "\n\n".join(map(as_line, self.records))


def as_line(record: Record) -> str:
    """Return the role and text of a record, such as ``User: hello``."""
    return f"{record.role}: {record.text}"


def _chunk_hash(records: tuple[Record, ...]) -> Sha256Hash:
    fields: list[str | int] = [len(records)]
    for record in records:
        fields += record.text, record.provenance.source, record.provenance.offset
    return Sha256Hash.of(canonical("loopkit.memory.chunk/1", *fields))


class MemoryNode(_Content, frozen=True, forbid_unknown_fields=True):
    """A node of a memory: a text with its level, its project and the nodes that it was made from.

    Raises
    ------
    InvalidId
        If an identifier is a plain string.
    InvalidConfig
        If the hash does not match the content, a node of level L1 has no query, or a node of another level has one.

    Examples
    --------
    >>> node = MemoryNode.of(Level.L2, ProjectId("lima"), None, RunId("r1"), 1, "It is light until six.", ())
    >>> node.sha256 == MemoryNode.of(Level.L2, ProjectId("lima"), None, RunId("r2"), 9, "It is light until six.", ()).sha256
    True
    >>> node
    MemoryNode L2 efb8cb7f: project lima, t 1, parents 0, text It is light until six.
    >>> MemoryNode.from_json(node.to_json()) == node
    True
    >>> MemoryNode.from_json(node.to_json().replace(b"six", b"ten"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    msgspec.ValidationError: MemoryNode.sha256: it is ..., but the content has the hash ... The hash or the content was changed
    """

    level: Level
    "Level of the node: evidence (L0), memory for one query (L1), or synthesis of a project (L2)."
    project: ProjectId
    "Project that the node belongs to."
    query_id: QueryId | None
    "Id of the query at level L1; None at the other levels."
    run_id: RunId
    "Id of the run that first made the node."
    t: int
    "Number of the chunk or step within that run, from 1."
    text: str
    "Text of the node."
    sha256: Sha256Hash
    "SHA-256 of level, project, query and text, in hex."
    parents: tuple[Sha256Hash, ...]
    "Hashes of the nodes that this node was made from."

    def __post_init__(self) -> None:
        need(Level, self.level)
        need(ProjectId, self.project)
        need(RunId, self.run_id)
        need(Sha256Hash, self.sha256, *self.parents)
        if self.query_id is not None:
            need(QueryId, self.query_id)
        if not isinstance(self.text, str) or (self.level is Level.L1) != (self.query_id is not None):
            raise InvalidConfig(
                "MemoryNode", "the text must be a str, and query_id must be set at level L1 and None at the others"
            )
        need_count("MemoryNode.t", self.t)
        self._check(self.sha256, self.content_hash())

    @classmethod
    def of(
        cls,
        level: Level,
        project: ProjectId,
        query_id: QueryId | None,
        run_id: RunId,
        t: int,
        text: str,
        parents: Iterable[Sha256Hash],
    ) -> Self:
        """Return a node with its hash computed.

        Parameters
        ----------
        level : Level
            Level of the node.
        project : ProjectId
            Project that the node belongs to.
        query_id : QueryId or None
            Id of the query at level L1; None at the other levels.
        run_id : RunId
            Id of the run that makes the node. The hash does not cover it.
        t : int
            Number of the chunk or step within that run, from 1.
        text : str
            Text of the node.
        parents : iterable of Sha256Hash
            Hashes of the nodes that this node was made from.
        """
        return cls(level, project, query_id, run_id, t, text, _node_hash(level, project, query_id, text), tuple(parents))

    def _card(self) -> Card:
        asked = [("query", str(self.query_id))] if self.query_id is not None else []
        facts = [("project", str(self.project)), *asked, ("t", f"{self.t:,}"), ("parents", f"{len(self.parents):,}")]
        return Card(f"MemoryNode {self.level} {self.sha256[:8]}", [*facts, ("text", " ".join(self.text.split()))])

    def __repr__(self) -> str:
        return self._card().text()

    def _repr_html_(self) -> str:
        return self._card().html()

    def content_hash(self) -> Sha256Hash:
        """Compute the SHA-256 of level, project, query and text, in hex."""
        return _node_hash(self.level, self.project, self.query_id, self.text)


def _node_hash(level: Level, project: ProjectId, query_id: QueryId | None, text: str) -> Sha256Hash:
    return Sha256Hash.of(canonical("loopkit.memory.node/1", level, project, query_id, text))
