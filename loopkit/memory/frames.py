"""A memory as dataframes: nodes and edges, all of them or a node's lineage down to the bytes of its sources.

Every frame has its columns with their dtypes, of an empty memory too. Knows the tables, and nothing of how they are drawn.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pandas as pd

from loopkit.memory.recall import Evidence, ancestors
from loopkit.memory.types import Level

__all__ = ["Lineage", "edges", "lineage", "nodes"]

STRING, COUNT = pd.StringDtype(), pd.Int64Dtype()
NODES = {
    "sha256": STRING,
    "level": pd.CategoricalDtype(list(Level), ordered=True),
    "project": STRING,
    "query_id": STRING,
    "run_id": STRING,
    "t": COUNT,
    "text": STRING,
}
EDGES = {"child": STRING, "parent": STRING}
EVIDENCE = {"node": STRING, "source": STRING, "path": STRING, "offset": COUNT, "role": STRING, "text": STRING}


class Lineage(NamedTuple):
    """Where a node comes from; what ``plot.provenance`` draws."""

    nodes: pd.DataFrame
    "The node and all that it was made from, evidence first."
    edges: pd.DataFrame
    "Between these."
    evidence: pd.DataFrame
    "The records of each evidence node, with file and byte offset."


def nodes(db: sqlite3.Connection, only: Iterable[str] | None = None) -> pd.DataFrame:
    """A row is a node, in the order in which they were made."""
    sql = f"SELECT {', '.join(NODES)} FROM node"  # noqa: S608  names of our own
    if only is None:
        return _frame(NODES, db.execute(f"{sql} ORDER BY seq"))
    return _frame(NODES, (row for name in only for row in db.execute(f"{sql} WHERE sha256 = ?", (name,))))


def edges(db: sqlite3.Connection, only: Iterable[str] | None = None) -> pd.DataFrame:
    """A row says that a node was made from another."""
    if only is None:
        return _frame(EDGES, db.execute("SELECT child, parent FROM edge ORDER BY child, parent"))
    sql = "SELECT child, parent FROM edge WHERE child = ? ORDER BY parent"
    return _frame(EDGES, (row for name in only for row in db.execute(sql, (name,))))


def lineage(db: sqlite3.Connection, sha256: str, evidence: Iterable[Evidence]) -> Lineage:
    """A node's frames."""
    names = ancestors(db, sha256)
    rows = ((each.node, each.source, each.path, each.offset, str(each.role), each.text) for each in evidence)
    return Lineage(nodes(db, names), edges(db, names), _frame(EVIDENCE, rows))


def _frame(columns: dict[str, Any], rows: Iterable[Sequence[Any]]) -> pd.DataFrame:
    held = list(rows)
    made = {name: pd.array([row[at] for row in held], dtype=dtype) for at, (name, dtype) in enumerate(columns.items())}
    return pd.DataFrame(made)
