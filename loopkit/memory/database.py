"""The SQLite index of a memory: its tables, what each line of ``nodes.jsonl`` adds, and a dump.

The database is derived from the lines of ``nodes.jsonl``, so it can be deleted at any time. SQLite enforces foreign keys and
checks. Write-ahead logging needs shared memory, so it is used only on file systems that are known to be local.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import assert_never

from loopkit.contract.provenance import Record
from loopkit.encoding import encode, encode_texts, sha256
from loopkit.memory.lines import ChunkLine, Line, NodeLine, QueryLine, RunLine, SourceLine, StepLine
from loopkit.memory.nodes import Level, MemoryNode

__all__ = ["VERSION", "apply", "connect", "create", "dump_lines", "is_local", "record_keys"]

VERSION = 2
"Version of the tables. A database with another version is rebuilt from ``nodes.jsonl``."

_SCHEMA = """
CREATE TABLE place (line INTEGER NOT NULL, offset INTEGER NOT NULL, crc INTEGER NOT NULL);
INSERT INTO place VALUES (1, 0, 0);
CREATE TABLE source (source TEXT PRIMARY KEY, path TEXT) WITHOUT ROWID;
CREATE TABLE query (query_id TEXT PRIMARY KEY, project TEXT NOT NULL, text TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE run (
    run_id TEXT PRIMARY KEY, project TEXT NOT NULL, task TEXT NOT NULL CHECK (task IN ('ingest', 'build')), time TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE node (
    seq INTEGER PRIMARY KEY,
    sha256 TEXT NOT NULL UNIQUE CHECK (length(sha256) = 64),
    level TEXT NOT NULL CHECK (level IN ('L0', 'L1', 'L2')),
    project TEXT NOT NULL,
    query_id TEXT REFERENCES query,
    run_id TEXT NOT NULL REFERENCES run,
    t INTEGER NOT NULL CHECK (t >= 1),
    text TEXT NOT NULL,
    CHECK ((level = 'L1') = (query_id IS NOT NULL))
);
CREATE TABLE edge (
    child TEXT NOT NULL REFERENCES node (sha256), parent TEXT NOT NULL REFERENCES node (sha256), PRIMARY KEY (child, parent)
) WITHOUT ROWID;
CREATE TABLE chunk (
    seq INTEGER PRIMARY KEY,
    sha256 TEXT NOT NULL CHECK (length(sha256) = 64),
    project TEXT NOT NULL,
    run_id TEXT NOT NULL REFERENCES run,
    t INTEGER NOT NULL CHECK (t >= 1),
    tokens INTEGER NOT NULL CHECK (tokens >= 0),
    records INTEGER NOT NULL CHECK (records >= 1),
    node TEXT NOT NULL REFERENCES node (sha256),
    source TEXT NOT NULL,
    offset INTEGER NOT NULL,
    line INTEGER NOT NULL,
    UNIQUE (project, sha256)
);
CREATE INDEX chunk_node ON chunk (node);
CREATE INDEX chunk_run ON chunk (run_id, t);
CREATE TABLE step (
    seq INTEGER PRIMARY KEY,
    query_id TEXT REFERENCES query,
    previous TEXT REFERENCES node (sha256),
    chunk TEXT NOT NULL,
    result TEXT REFERENCES node (sha256)
);
CREATE UNIQUE INDEX step_key ON step (chunk, ifnull(query_id, ''), ifnull(previous, ''));
CREATE TABLE latest (
    project TEXT NOT NULL, query_id TEXT NOT NULL, node TEXT NOT NULL REFERENCES node (sha256), PRIMARY KEY (project, query_id)
) WITHOUT ROWID;
CREATE TABLE record (key BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE VIRTUAL TABLE node_text USING fts5 (text, content = 'node', content_rowid = 'seq', tokenize = 'unicode61');
CREATE VIRTUAL TABLE word USING fts5vocab ('node_text', 'row');
"""
_TABLES = ("place", "source", "query", "run", "node", "edge", "chunk", "step", "latest", "record")
_LOCAL = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs"}


def is_local(path: Path, mounts: str | None = None) -> bool:
    r"""Return True if a path is on a file system that is known to be local.

    Parameters
    ----------
    path : Path
        A file or directory, existing or not.
    mounts : str, optional
        Text of a mount table, by default of ``/proc/self/mountinfo``. If that file cannot be read, the result is False.

    Examples
    --------
    >>> table = "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:9 / /far rw shared:1 - nfs4 srv:/ rw"
    >>> is_local(Path("/home/a"), table), is_local(Path("/far/a"), table)
    (True, False)
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
        except OSError:
            return False
    real = os.path.realpath(path)
    best, kind = "", ""
    for row in mounts.splitlines():
        fields, _, rest = row.partition(" - ")
        point = fields.split()[4].replace("\\040", " ")
        if len(point) >= len(best) and (real + "/").startswith(point.rstrip("/") + "/"):
            best, kind = point, rest.split()[0]
    return kind in _LOCAL


def connect(path: Path | str, *, to_write: bool = False) -> sqlite3.Connection:
    """Open a SQLite database with foreign keys enforced.

    Parameters
    ----------
    path : Path or str
        The file, created if missing; ``""`` opens a temporary database.
    to_write : bool
        True if the caller writes and has locked the directory. Only a writer sets the journal mode, because setting it fails
        while other processes read a new database.
    """
    db = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA foreign_keys = ON")
        if to_write:
            wal = is_local(Path(path))
            db.execute(f"PRAGMA journal_mode = {'WAL' if wal else 'DELETE'}")
            db.execute(
                f"PRAGMA synchronous = {'NORMAL' if wal else 'FULL'}"
            )  # nodes.jsonl is synced, and this can be rebuilt from it
    except BaseException:
        db.close()
        raise
    return db


def create(db: sqlite3.Connection) -> None:
    """Drop all tables and create them again, empty. The caller has begun a transaction."""
    for table in ("word", "node_text", "record", "latest", "step", "chunk", "edge", "node", "run", "query", "source", "place"):
        db.execute(f"DROP TABLE IF EXISTS {table}")
    for statement in _SCHEMA.split(";\n"):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {VERSION}")


def record_keys(project: str, record: Record) -> list[bytes]:
    """Return the one or two keys of a record, by which it is recognised when it is ingested again.

    Two records of a project are the same if they share a key. The first key covers text, source and offset. The second covers
    text, role and time, whatever the file. A record without a time has only the first key.
    """
    fields: list[tuple[str | int, ...]] = [(project, record.text, record.provenance.source, record.provenance.offset)]
    if record.timestamp is not None:
        fields.append((project, record.text, record.role, record.timestamp))
    return [bytes.fromhex(sha256(encode_texts(each, "record"))[:32]) for each in fields]


def apply(db: sqlite3.Connection, line: Line, offset: int) -> None:
    """Insert the content of a line into the tables. Rows that exist already stay as they are.

    Only the tables ``source`` and ``latest`` are updated to the newest value.

    Parameters
    ----------
    db : Connection
        The database; the caller has begun a transaction.
    line : Line
        The decoded line. Decoding has checked that its hashes match its content.
    offset : int
        Byte offset of the line in ``nodes.jsonl``.

    Raises
    ------
    ValueError
        If the line refers to a node, query or run that no earlier line added, or a chunk and its node have different texts.
    """
    try:
        _apply(db, line, offset)
    except sqlite3.IntegrityError as error:
        raise ValueError(f"it contradicts the lines before it: {error}") from error


def _apply(db: sqlite3.Connection, line: Line, offset: int) -> None:
    match line:
        case SourceLine():
            db.execute("INSERT OR REPLACE INTO source VALUES (?, ?)", (line.source, line.path))
        case QueryLine():
            db.execute("INSERT INTO query VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (line.query, line.project, line.text))
        case RunLine():
            db.execute(
                "INSERT INTO run VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", (line.run, line.project, line.task, line.time)
            )
        case NodeLine():
            _apply_node(db, line.node)
        case ChunkLine():
            chunk = line.chunk
            if MemoryNode.of(Level.L0, line.project, None, line.run, chunk.t, chunk.text, ()).sha256 != line.node:
                raise ValueError(f"the text of chunk {chunk.sha256} differs from that of its node {line.node}")
            first = chunk.records[0].provenance
            row = (chunk.sha256, line.project, line.run, chunk.t, chunk.tokens, len(chunk.records), line.node)
            db.execute(
                "INSERT INTO chunk VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (*row, first.source, first.offset, offset),
            )
            keys = ((key,) for record in chunk.records for key in record_keys(line.project, record))
            db.executemany("INSERT OR IGNORE INTO record VALUES (?)", keys)
        case StepLine():
            step = (line.query, line.previous, line.chunk, line.result)
            made = db.execute("INSERT INTO step VALUES (NULL, ?, ?, ?, ?) ON CONFLICT DO NOTHING", step)
            latest = "INSERT OR REPLACE INTO latest SELECT project, ifnull(query_id, ''), sha256 FROM node WHERE sha256 = ?"
            if made.rowcount:
                db.execute(latest, (line.result,))
        case _:
            assert_never(line)


def _apply_node(db: sqlite3.Connection, node: MemoryNode) -> None:
    row = (node.sha256, node.level, node.project, node.query_id, node.run_id, node.t, node.text)
    made = db.execute("INSERT INTO node VALUES (NULL, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (sha256) DO NOTHING", row)
    if made.rowcount:
        db.execute("INSERT INTO node_text (rowid, text) VALUES (?, ?)", (made.lastrowid, node.text))
    edges = ((node.sha256, parent) for parent in node.parents)
    db.executemany("INSERT OR IGNORE INTO edge VALUES (?, ?)", edges)


def dump_lines(db: sqlite3.Connection) -> Iterator[bytes]:
    """Yield every row of every table in a fixed order, one JSON array per line. The full-text index is left out."""
    for table in _TABLES:
        what, order = ("hex(key)", "key") if table == "record" else ("*", "1, 2")
        for row in db.execute(f"SELECT {what} FROM {table} ORDER BY {order}"):  # noqa: S608  names of our own
            yield encode([table, *row]) + b"\n"
