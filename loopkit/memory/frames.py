"""A memory as dataframes: nodes, edges, and a node's lineage down to the bytes of its sources.

Every frame has all its columns with fixed dtypes, even without rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pandas as pd

from loopkit.memory.nodes import Level
from loopkit.memory.recall import Evidence, ancestors

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
    """The nodes and records that a node was made from, as three frames. ``plot.provenance`` draws them as a graph."""

    nodes: pd.DataFrame
    "One row per node: the node itself and all nodes it was made from, oldest first."
    edges: pd.DataFrame
    "One row per edge between these nodes: `child` was made from `parent`."
    evidence: pd.DataFrame
    "One row per record of the evidence nodes, with its file and byte offset."


def nodes(db: sqlite3.Connection, only: Iterable[str] | None = None) -> pd.DataFrame:
    """Return a frame with one row per node, in order of creation. With `only`, just the nodes with these hashes."""
    sql = f"SELECT {', '.join(NODES)} FROM node"  # noqa: S608  names of our own
    if only is None:
        return _frame(NODES, db.execute(f"{sql} ORDER BY seq"))
    return _frame(NODES, (row for name in only for row in db.execute(f"{sql} WHERE sha256 = ?", (name,))))


def edges(db: sqlite3.Connection, only: Iterable[str] | None = None) -> pd.DataFrame:
    """Return a frame with one row per edge: `child` was made from `parent`. With `only`, just the edges of these children."""
    if only is None:
        return _frame(EDGES, db.execute("SELECT child, parent FROM edge ORDER BY child, parent"))
    sql = "SELECT child, parent FROM edge WHERE child = ? ORDER BY parent"
    return _frame(EDGES, (row for name in only for row in db.execute(sql, (name,))))


def lineage(db: sqlite3.Connection, sha256: str, evidence: Iterable[Evidence]) -> Lineage:
    """Return the lineage of a node. `evidence` is the result of :func:`loopkit.memory.recall.trace` for the node."""
    names = ancestors(db, sha256)
    rows = ((each.node, each.source, each.path, each.offset, str(each.role), each.text) for each in evidence)
    return Lineage(nodes(db, names), edges(db, names), _frame(EVIDENCE, rows))


def _frame(columns: dict[str, Any], rows: Iterable[Sequence[Any]]) -> pd.DataFrame:
    rows = list(rows)
    made = {name: pd.array([row[at] for row in rows], dtype=dtype) for at, (name, dtype) in enumerate(columns.items())}
    return pd.DataFrame(made)
