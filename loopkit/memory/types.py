"""What a memory is made of: levels, chunks of evidence, nodes; each is its content, and its name is the hash of that.

A hash is over a canonical encoding of the meaning: tagged with its domain, every field with its type and length before it, so
that no two contents share an encoding. Neither time nor run is in it: the same input in another run is the same chunk and the
same node. A stored hash that the content does not give is refused, when a value is made and when it is read. Knows nothing of
files, models or how text is cut.
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

__all__ = ["Chunk", "Level", "MemoryNode", "canonical", "decoder", "need", "need_count"]

T = TypeVar("T")


class Level(StrEnum):
    """The tier of a node, written so in JSON and SQL.

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
    "Evidence: what was said."
    L1 = "L1"
    "Memory for one query."
    L2 = "L2"
    "Synthesis for a project."


def need(kind: type[str], *values: str) -> None:
    """Refuse a bare string, or anything else, where an identifier belongs.

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
    """Refuse what counts nothing."""
    if type(value) is not int or not 1 <= value < 1 << 63:
        raise InvalidConfig(name, f"{value!r:.80} is not a whole number from 1 on")


def canonical(domain: str, *fields: str | int | None) -> bytes:
    r"""Encode fields so that no other domain and no other fields give the same bytes.

    Parameters
    ----------
    domain : str
        What the fields mean, with the version of that.
    *fields : str, int or None
        Each becomes its type's letter, the length of its bytes in eight bytes, and these: text as UTF-8 just as it is, without
        any folding of case, space or Unicode; numbers as digits.

    Raises
    ------
    EncodeError
        When one is none of these, or a text that UTF-8 has no bytes for.

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
    """A strict decoder of JSON for a type that holds identifiers; what it raises is a ``ValueError``."""
    return msgspec.json.Decoder(kind, dec_hook=lambda made, value: made(value))


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value that holds the hash of its content."""

    def to_json(self) -> bytes:
        """One JSON object, members in declared order.

        Raises
        ------
        EncodeError
            When a text holds what JSON cannot.
        """
        return encode_texts(self, type(self).__name__)

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Decode what :meth:`to_json` gave.

        Raises
        ------
        ValueError
            Says why: not JSON, an unknown member, a wrong type, or a hash that the content does not give.
        """
        return decoder(cls).decode(data)

    def _check(self, stored: Sha256Hash, found: Sha256Hash) -> None:
        if found != stored:
            why = f"it is {stored!s:.80}, but the content gives {found}"
            raise InvalidConfig(f"{type(self).__name__}.sha256", why, "Something changed the one or the other")


class Chunk(_Content, frozen=True, forbid_unknown_fields=True):
    """Records that are read at once, in order.

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
    "1-based within a run."
    records: tuple[Record, ...]
    tokens: int
    "Of its text; over the budget where one record is."
    sha256: Sha256Hash
    "Over the texts of the records and their provenance."

    def __post_init__(self) -> None:
        need_count("Chunk.t", self.t)
        if self.tokens < 0 or not self.records:
            raise InvalidConfig("Chunk", "it has tokens from 0, and at least one record")
        self._check(self.sha256, self.content_hash())

    @classmethod
    def of(cls, t: int, records: Iterable[Record], tokens: int) -> Self:
        """Make one, with its hash."""
        held = tuple(records)
        if other := [each for each in held if not isinstance(each, Record)]:
            raise InvalidConfig("Chunk.records", f"{other[0]!r:.80} is not a Record")
        return cls(t, held, tokens, _chunk_hash(held))

    def content_hash(self) -> Sha256Hash:
        """SHA-256 over the texts of the records and their provenance."""
        return _chunk_hash(self.records)

    @property
    def text(self) -> str:
        """What a model is given of it, and what its evidence node says."""
        return "\n\n".join(map(said, self.records))


def said(record: Record) -> str:
    """A record as a line of a conversation."""
    return f"{record.role}: {record.text}"


def _chunk_hash(records: tuple[Record, ...]) -> Sha256Hash:
    fields: list[str | int] = [len(records)]
    for record in records:
        fields += record.text, record.provenance.source, record.provenance.offset
    return Sha256Hash.of(canonical("loopkit.memory.chunk/1", *fields))


class MemoryNode(_Content, frozen=True, forbid_unknown_fields=True):
    """One piece of memory.

    Raises
    ------
    InvalidId
        When an identifier is a bare string.
    InvalidConfig
        When the hash is not the content's, or a query stands where none belongs.

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
    msgspec.ValidationError: MemoryNode.sha256: it is ..., but the content gives ... Something changed the one or the other
    """

    level: Level
    project: ProjectId
    query_id: QueryId | None
    "At L1 and nowhere else."
    run_id: RunId
    "The run that made it first."
    t: int
    "The step of that run, from 1."
    text: str
    sha256: Sha256Hash
    "Over level, project, query and text."
    parents: tuple[Sha256Hash, ...]
    "What it was made from."

    def __post_init__(self) -> None:
        need(Level, self.level)
        need(ProjectId, self.project)
        need(RunId, self.run_id)
        need(Sha256Hash, self.sha256, *self.parents)
        if self.query_id is not None:
            need(QueryId, self.query_id)
        if not isinstance(self.text, str) or (self.level is Level.L1) != (self.query_id is not None):
            raise InvalidConfig("MemoryNode", "it has a text, and a query at level L1 and at no other")
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
        """Make one, with its hash."""
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
        """SHA-256 over level, project, query and text."""
        return _node_hash(self.level, self.project, self.query_id, self.text)


def _node_hash(level: Level, project: ProjectId, query_id: QueryId | None, text: str) -> Sha256Hash:
    return Sha256Hash.of(canonical("loopkit.memory.node/1", level, project, query_id, text))
