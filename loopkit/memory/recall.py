"""Reading memory: search by words, and trace a node to the bytes it comes from.

Texts are returned as stored. Like all text from outside, they are neutralised later, when a session logs them.
"""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from loopkit.contract.provenance import Provenance, Role
from loopkit.errors import InvalidConfig, InvalidId, LogError
from loopkit.ids import ProjectId, QueryId, RunId, Sha256Hash
from loopkit.memory.nodes import Level, MemoryNode, need
from loopkit.memory.store import Store
from loopkit.reprs import Card

__all__ = [
    "SHOWN",
    "Evidence",
    "Recalled",
    "ancestors",
    "find_node",
    "for_model",
    "need_project",
    "read_node",
    "recall",
    "text_of",
    "trace",
]

COMMON = 1_000
"If too few nodes contain all words, nodes with any of them are searched; words in more nodes than this are then ignored."

PRINTED = 8
"Number of hash digits that are printed, and the least that :func:`find_node` accepts."

SHOWN = 3
"Largest number of nodes, and of sources per node, that the ``recall`` tool shows to the model."

_ANCESTORS = """
WITH RECURSIVE above (sha256) AS (
    VALUES (?) UNION SELECT parent FROM edge JOIN above ON child = sha256
)
SELECT sha256 FROM above JOIN node USING (sha256) ORDER BY node.seq
"""


_SEARCH = """
SELECT sha256, rank FROM node_text JOIN node ON seq = node_text.rowid
WHERE node_text MATCH ? AND (level = 'L0' OR sha256 IN (SELECT node FROM latest)) ORDER BY rank LIMIT ?
"""


class Recalled(NamedTuple):
    """A search result: a node, its score and its sources."""

    node: MemoryNode
    "The node that was found."
    score: float
    "BM25 score; higher is better."
    provenance: tuple[Provenance, ...]
    "For each chunk that the node was made from, the source and byte offset of its first record."

    def __repr__(self) -> str:
        first, *others = (f"{place.source}@{place.offset}" for place in self.provenance)
        facts = [("score", f"{self.score:.3g}"), ("from", first + (f" and {len(others):,} more" if others else ""))]
        return Card(
            f"Recalled {self.node.level} {self.node.sha256[:PRINTED]}", [*facts, ("text", " ".join(self.node.text.split()))]
        ).text()


class Evidence(NamedTuple):
    """A record that a node was made from, with its place in the source."""

    node: Sha256Hash
    "Hash of the evidence node (level L0) whose text includes the record."
    source: str
    "Name of the transcript, such as ``<session>/0``."
    path: str | None
    "File of the transcript; None if the records came from a pipe, a socket or a list."
    offset: int
    "Byte offset of the record's line in the transcript."
    role: Role
    "Role of the author: user, assistant or tool result."
    text: str
    "Text of the record, as ingested."
    line: str | None
    "The line that is now at this offset of the file; None if the file cannot be read."


def find_node(store: Store, name: str) -> Sha256Hash:
    """Return the full hash of the node whose hash begins with `name`.

    A hash of 64 digits is returned as it is, without a check that the node exists.

    Raises
    ------
    LogError
        If no node's hash begins with these digits.
    InvalidConfig
        If the hashes of several nodes do.
    InvalidId
        If `name` is not the beginning of a hash.
    """
    if not isinstance(name, str) or not re.fullmatch(rf"[0-9a-f]{{{PRINTED},64}}", name):
        raise InvalidId("Sha256Hash", name, f"64 lowercase hex digits, or at least the first {PRINTED}")
    if len(name) == 64:
        return Sha256Hash(name)
    sql = "SELECT sha256 FROM node WHERE sha256 > ? AND sha256 < ? || 'g' ORDER BY sha256"
    with store.reading() as db:
        rows = db.execute(sql, (name, name)).fetchall()
    if len(rows) > 1:
        some = ", ".join(found for (found,) in rows[:3])
        raise InvalidConfig("node", f"{len(rows):,} nodes begin with {name}: {some}", "Give more digits")
    if not rows:
        raise _unknown(name)
    return Sha256Hash(rows[0][0])


def _unknown(name: str) -> LogError:
    then = "List nodes with memory.nodes(), or search with `loopkit memory recall WORDS`"
    return LogError("memory", f"there is no node {name}", then)


def read_node(db: sqlite3.Connection, sha256: str) -> MemoryNode:
    """Read a node and check its hash.

    Raises
    ------
    LogError
        If there is no such node, or its content does not match its hash.
    """
    sql = "SELECT level, project, query_id, run_id, t, text FROM node WHERE sha256 = ?"
    row = db.execute(sql, (sha256,)).fetchone()
    if row is None:
        raise _unknown(sha256)
    level, project, query, run, t, text = row
    parents = db.execute("SELECT parent FROM edge JOIN node ON sha256 = parent WHERE child = ? ORDER BY seq", (sha256,))
    try:
        return MemoryNode(
            Level(level),
            ProjectId(project),
            None if query is None else QueryId(query),
            RunId(run),
            t,
            text,
            Sha256Hash(sha256),
            tuple(Sha256Hash(parent) for (parent,) in parents),
        )
    except ValueError as error:
        raise LogError("memory.db", str(error), "Run `loopkit memory rebuild` to rebuild it from nodes.jsonl") from error


def need_project(store: Store, project: ProjectId) -> None:
    """Raise a `LogError` if the project has no evidence. The message lists the known projects."""
    need(ProjectId, project)
    with store.reading() as db:
        known = [name for (name,) in db.execute("SELECT DISTINCT project FROM chunk ORDER BY project")]
    if project not in known:
        then = f"Known here: {', '.join(known)}" if known else "Nothing was taken in here yet"
        raise LogError(str(store.dir), f"there is no project {project}", then)


def text_of(db: sqlite3.Connection, sha256: str) -> str:
    """Return the text of a node, which must exist."""
    return str(db.execute("SELECT text FROM node WHERE sha256 = ?", (sha256,)).fetchone()[0])


def ancestors(db: sqlite3.Connection, sha256: str) -> list[str]:
    """Return the hashes of a node and of all nodes that it was made from, oldest first."""
    return [name for (name,) in db.execute(_ANCESTORS, (sha256,))]


def recall(db: sqlite3.Connection, query: str, k: int) -> tuple[Recalled, ...]:
    """Search the texts of the nodes for words; see :meth:`Memory.recall`."""
    words = list(dict.fromkeys(re.findall(r"[^\W_]+", query)))
    found = _search(db, " ".join(map(_quoted, words)), k) if words else {}
    if len(found) < k and len(words) > 1:
        held = {word: number for word in words if (number := _nodes_with(db, word))}
        rare = [word for word in held if held[word] <= COMMON] or sorted(held, key=held.__getitem__)[:1]
        found |= {name: score for name, score in _search(db, " OR ".join(map(_quoted, rare)), k).items() if name not in found}
    results = []
    for name, score in list(found.items())[:k]:
        begin = (Provenance(chunk.source, chunk.offset) for chunk in _chunks(db, ancestors(db, name)))
        results.append(Recalled(read_node(db, name), score, tuple(begin)))
    return tuple(results)


def _quoted(word: str) -> str:
    return f'"{word}"'


def _nodes_with(db: sqlite3.Connection, word: str) -> int:
    plain = "".join(char for char in unicodedata.normalize("NFD", word.lower()) if not unicodedata.combining(char))
    row = db.execute("SELECT doc FROM word WHERE term = ?", (plain,)).fetchone()
    return row[0] if row else 0


def _search(db: sqlite3.Connection, match: str, k: int) -> dict[str, float]:
    if not match:
        return {}
    return {name: -rank for name, rank in db.execute(_SEARCH, (match, k))}


class _Chunk(NamedTuple):
    node: str
    source: str
    offset: int
    "Byte offset of the chunk's first record in the source."
    line: int
    "Byte offset of the chunk's line in ``nodes.jsonl``."


def _chunks(db: sqlite3.Connection, nodes: Iterable[str]) -> list[_Chunk]:
    sql = "SELECT node, source, offset, line FROM chunk WHERE node = ? ORDER BY seq"
    return [_Chunk(*row) for node in nodes for row in db.execute(sql, (node,))]


def trace(store: Store, sha256: str) -> tuple[Evidence, ...]:
    """Return the records that a node was made from, each with its file and offset; see :meth:`Memory.trace`."""
    with store.reading() as db:
        read_node(db, sha256)
        chunks = [(Sha256Hash(each.node), store.chunk(each.line)) for each in _chunks(db, ancestors(db, sha256))]
        paths = dict(db.execute("SELECT source, path FROM source").fetchall())
    results = []
    for node, record in ((node, record) for node, chunk in chunks for record in chunk.records):
        source, offset = record.provenance.source, record.provenance.offset
        path = paths.get(source)
        results.append(Evidence(node, source, path, offset, record.role, record.text, _line_at(path, offset)))
    return tuple(results)


def _line_at(path: str | None, offset: int) -> str | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.readline(1 << 26).decode("utf-8", "replace").rstrip("\n")
    except OSError:  # the file was moved or removed; the text of the record is still in the memory
        return None


def for_model(results: Sequence[Recalled]) -> list[dict[str, Any]]:
    """Return search results in the form that the ``recall`` tool shows to the model: level, text and sources, without hashes."""
    found = []
    for each in results:
        places = [f"{place.source}@{place.offset}" for place in each.provenance]
        more = {"more": len(places) - SHOWN} if len(places) > SHOWN else {}
        found.append({"level": str(each.node.level), "text": each.node.text, "from": places[:SHOWN], **more})
    return found
