"""The parts of a memory and their hashes: levels, chunks of evidence, nodes.

A hash covers a canonical encoding, in which each field is preceded by its type and length, so that different contents never share
an encoding. Time and run are not included: the same input in another run gives the same chunk and node. A stored hash that does
not match its content is refused, when a value is made and when it is read.
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
    "The memory for one query."
    L2 = "L2"
    "The synthesis of a project."


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
    r"""Encode fields uniquely: other fields or another domain give other bytes.

    Parameters
    ----------
    domain : str
        The meaning of the fields, with its version.
    *fields : str, int or None
        Each field is encoded as a letter for its type, the length of its bytes in eight bytes, and its bytes: text as UTF-8
        without normalisation, numbers as digits.

    Returns
    -------
    bytes

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
    """Return a strict JSON decoder for a type with identifiers. It raises ``ValueError``."""
    return msgspec.json.Decoder(kind, dec_hook=lambda made, value: made(value))


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value with the hash of its content."""

    def to_json(self) -> bytes:
        """Return a JSON object with its members in declared order.

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
            If it is not JSON, has an unknown member or a wrong type, or its hash does not match its content.
        """
        return decoder(cls).decode(data)

    def _check(self, stored: Sha256Hash, found: Sha256Hash) -> None:
        if found != stored:
            why = f"it is {stored!s:.80}, but the content has the hash {found}"
            raise InvalidConfig(f"{type(self).__name__}.sha256", why, "The hash or the content was changed")


class Chunk(_Content, frozen=True, forbid_unknown_fields=True):
    """Consecutive records that a model reads at once.

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
    "The records."
    tokens: int
    "Tokens of its text. A single record may exceed the budget."
    sha256: Sha256Hash
    "Hash of the records' texts and provenance."

    def __post_init__(self) -> None:
        need_count("Chunk.t", self.t)
        if self.tokens < 0 or not self.records:
            raise InvalidConfig("Chunk", "it needs at least one record and tokens of at least 0")
        self._check(self.sha256, self.content_hash())

    @classmethod
    def of(cls, t: int, records: Iterable[Record], tokens: int) -> Self:
        """Return a chunk with the hash of its records.

        Parameters
        ----------
        t : int
            Number of the chunk within its run, from 1.
        records : iterable of Record
            Records of the chunk, in order.
        tokens : int
            Tokens of its text. A single record may exceed the budget.

        Raises
        ------
        InvalidConfig
            If `records` contains something else than a Record.
        """
        found = tuple(records)
        if other := [each for each in found if not isinstance(each, Record)]:
            raise InvalidConfig("Chunk.records", f"expected a Record; got {other[0]!r:.80}")
        return cls(t, found, tokens, _chunk_hash(found))

    def content_hash(self) -> Sha256Hash:
        """Return the SHA-256 of the records' texts and provenance."""
        return _chunk_hash(self.records)

    @property
    def text(self) -> str:
        """The text that a model reads, which is also the text of its evidence node."""
        return "\n\n".join(map(as_line, self.records))


def as_line(record: Record) -> str:
    """Return a record as a line of a conversation."""
    return f"{record.role}: {record.text}"


def _chunk_hash(records: tuple[Record, ...]) -> Sha256Hash:
    fields: list[str | int] = [len(records)]
    for record in records:
        fields += record.text, record.provenance.source, record.provenance.offset
    return Sha256Hash.of(canonical("loopkit.memory.chunk/1", *fields))


class MemoryNode(_Content, frozen=True, forbid_unknown_fields=True):
    """One node of a memory.

    Raises
    ------
    InvalidId
        If an identifier is a plain string.
    InvalidConfig
        If the hash does not match the content, or only one of level L1 and a query is given.

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
    "The tier."
    project: ProjectId
    "The project."
    query_id: QueryId | None
    "The query; only at level L1."
    run_id: RunId
    "The run that first made it."
    t: int
    "The step of that run, from 1."
    text: str
    "The content."
    sha256: Sha256Hash
    "Hash of level, project, query and text."
    parents: tuple[Sha256Hash, ...]
    "Hashes of the nodes it was made from."

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
        """Return a node with the hash of its content.

        Parameters
        ----------
        level : Level
            Tier of the node.
        project : ProjectId
            Project that the node belongs to.
        query_id : QueryId or None
            The query; only at level L1.
        run_id : RunId
            The run that first made it; not part of the hash.
        t : int
            The step of that run, from 1.
        text : str
            Text of the node.
        parents : iterable of Sha256Hash
            Hashes of the nodes that it was made from.
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
        """Return the SHA-256 of level, project, query and text."""
        return _node_hash(self.level, self.project, self.query_id, self.text)


def _node_hash(level: Level, project: ProjectId, query_id: QueryId | None, text: str) -> Sha256Hash:
    return Sha256Hash.of(canonical("loopkit.memory.node/1", level, project, query_id, text))
