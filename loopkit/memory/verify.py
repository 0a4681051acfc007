"""Verification of a memory: hashes and edges derived again from its lines and compared with the database. Changes nothing."""

from __future__ import annotations

from itertools import zip_longest
from typing import NamedTuple

from loopkit.errors import LogError, SessionIOError, TornLog
from loopkit.memory.database import dump_lines
from loopkit.memory.store import REBUILD, Store

__all__ = ["Verification", "verify"]

_COUNTS = "SELECT (SELECT count(*) FROM node), (SELECT count(*) FROM edge), (SELECT count(*) FROM chunk)"
_MISSING_EDGES = """
WITH made (child, parent) AS (
    SELECT result, previous FROM step WHERE previous IS NOT NULL
    UNION SELECT result, chunk FROM step WHERE query_id IS NULL
    UNION SELECT result, node FROM step JOIN query USING (query_id)
    JOIN chunk ON sha256 = step.chunk AND chunk.project = query.project
)
SELECT child, parent FROM made WHERE child IS NOT NULL EXCEPT SELECT child, parent FROM edge
"""


class Verification(NamedTuple):
    """The result of :meth:`Memory.verify`: the numbers of nodes, edges and chunks, and a sentence for each fault."""

    nodes: int
    edges: int
    chunks: int
    faults: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True if every check passed."""
        return not self.faults


def verify(store: Store) -> Verification:
    """Derive every hash and edge again from ``nodes.jsonl`` and compare the database with them."""
    faults: list[str] = []
    with store.fresh() as fresh:
        try:
            store.catch_up(fresh)
        except (TornLog, SessionIOError) as error:
            faults.append(str(error))
        faults += [f"{store.lines}: {name} lacks its edge to {parent}" for name, parent in fresh.execute(_MISSING_EDGES)]
        try:
            with store.reading() as db:
                db.execute("INSERT INTO node_text (node_text, rank) VALUES ('integrity-check', 1)")
                pairs = zip_longest(dump_lines(fresh), dump_lines(db), fillvalue=b"nothing")
                other = next(((want, got) for want, got in pairs if want != got), None)
                if other and not faults:
                    want, got = (text[:100].decode("utf-8", "replace").strip() for text in other)
                    faults.append(f"{store.database}: it has {got}, but the lines give {want}. {REBUILD}")
        except (TornLog, LogError, SessionIOError) as error:
            if str(error) not in faults:
                faults.append(str(error))
        nodes, edges, chunks = fresh.execute(_COUNTS).fetchone()
    return Verification(nodes, edges, chunks, tuple(faults))
