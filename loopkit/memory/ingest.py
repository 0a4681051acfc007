"""Ingesting evidence: records are grouped into chunks under a token budget, and each chunk becomes a node of level L0.

Records are read and written in batches, so memory use does not grow with them, and a killed run keeps what it wrote. A record
that is already known, by its place or by its role and time, is skipped: a transcript that grew, was resumed, forked or moved
adds only what is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple, TypeAlias

from loopkit.contract.provenance import Record
from loopkit.errors import InvalidConfig
from loopkit.ids import ProjectId, RunId, SessionId, Timestamp
from loopkit.logs.problems import Problem
from loopkit.memory.database import record_keys
from loopkit.memory.lines import ChunkLine, NodeLine, RunLine, SourceLine
from loopkit.memory.nodes import Chunk, Level, MemoryNode, as_line, need_count
from loopkit.memory.sources import Transcript
from loopkit.memory.store import Store, Writing

__all__ = ["Count", "CountedRecord", "Ingested", "begin_run", "estimate_tokens", "group_records", "ingest", "new_run"]

BATCH = 1 << 22
"Characters per batch, with a few hundred more for each record. Each batch is one sync."


class Ingested(NamedTuple):
    """The result of an ingest."""

    run: RunId
    "The run that added the records."
    records: int
    "New records."
    known: int
    "Records that were already there."
    chunks: int
    "New chunks. Chunks with the same text share a node."
    problems: tuple[Problem, ...] = ()
    'What could not be read or was left out, with ``errors="report"``.'


Count: TypeAlias = Callable[[str], int]

BYTES_PER_TOKEN = 3
"Low estimate for text that no server counts, so that chunks are rather too small than too large."


class CountedRecord(NamedTuple):
    """A record and its tokens in a chunk's text."""

    record: Record
    tokens: int


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text that no server counts.

    Examples
    --------
    >>> estimate_tokens("abcd"), estimate_tokens("")
    (2, 0)
    """
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


def group_records(records: Iterable[Record], budget: int, count: Count = estimate_tokens) -> Iterator[list[CountedRecord]]:
    """Group records into chunks. A record is never split.

    Parameters
    ----------
    records : iterable of Record
        In order; read one by one.
    budget : int
        Tokens that a chunk's text may have.
    count : callable
        Returns the tokens of a text.

    Yields
    ------
    list of CountedRecord
        As many whole records as fit, or one record over the budget.

    Examples
    --------
    >>> from loopkit.contract.provenance import Provenance, Role
    >>> texts = ["four", "five", "a long one", "end"]
    >>> records = [Record(Role.User, text, None, Provenance("s", at)) for at, text in enumerate(texts)]
    >>> [[each.record.text for each in group] for group in group_records(records, 25, len)]
    [['four', 'five'], ['a long one'], ['end']]
    """
    need_count("budget", budget)
    group: list[CountedRecord] = []
    spent = 0
    for record in records:
        tokens = count(as_line(record) + "\n\n")
        if group and spent + tokens > budget:
            yield group
            group, spent = [], 0
        group.append(CountedRecord(record, tokens))
        spent += tokens
    if group:
        yield group


def new_run() -> RunId:
    """Return a new run id. Ids sort by time."""
    return RunId(SessionId.new())


def begin_run(writing: Writing, run: RunId, project: ProjectId, task: Literal["ingest", "build"]) -> None:
    """Write a run's line if it has none.

    Raises
    ------
    InvalidConfig
        If a run of that name did something else.
    """
    row = writing.db.execute("SELECT project, task FROM run WHERE run_id = ?", (run,)).fetchone()
    if row is None:
        writing.add(RunLine(time=Timestamp.now(), run=run, project=project, task=task))
    elif row != (project, task):
        raise InvalidConfig("run", f"{run} is already a run of {row[1]} in project {row[0]}", "Use another name")


def ingest(store: Store, what: Iterable[Transcript], project: ProjectId, run: RunId, budget: int, count: Count) -> Ingested:
    """Ingest transcripts; see :meth:`Memory.ingest`."""
    total = Ingested(run, 0, 0, 0)
    for batch in filter(None, _batches(what, budget, count)):
        with store.writing() as writing:
            for path, group in batch:
                found = _write_chunk(writing, project, run, path, group)
                total = total._replace(
                    records=total.records + found,
                    known=total.known + len(group) - found,
                    chunks=total.chunks + bool(found),
                )
    return total


def _batches(what: Iterable[Transcript], budget: int, count: Count) -> Iterator[list[tuple[str | None, list[CountedRecord]]]]:
    batch: list[tuple[str | None, list[CountedRecord]]] = []
    size = 0
    try:
        for transcript in what:
            for group in group_records(transcript.records, budget, count):
                batch.append((transcript.path, group))
                size += sum(len(each.record.text) + 400 for each in group)
                if size >= BATCH:
                    yield batch
                    batch, size = [], 0
    except Exception:  # a source failed: keep what was read before
        yield batch
        raise
    yield batch


def _write_chunk(writing: Writing, project: ProjectId, run: RunId, path: str | None, group: list[CountedRecord]) -> int:
    """Write a chunk of the records that are new. Return their number."""
    db = writing.db
    fresh: list[CountedRecord] = []
    seen: set[bytes] = set()
    for each in group:
        keys = record_keys(project, each.record)
        known = db.execute("SELECT 1 FROM record WHERE key IN (?, ?)", (keys[0], keys[-1])).fetchone()
        if known is None and seen.isdisjoint(keys):
            fresh.append(each)
            seen.update(keys)
    for source in dict.fromkeys(each.record.provenance.source for each in group):
        row = db.execute("SELECT path FROM source WHERE source = ?", (source,)).fetchone()
        is_new = row is None and any(each.record.provenance.source == source for each in fresh)
        if is_new or (row is not None and path is not None and row[0] != path):
            writing.add(SourceLine(time=Timestamp.now(), source=source, path=path))
    if not fresh:
        return 0
    begin_run(writing, run, project, "ingest")
    t = 1 + int(db.execute("SELECT ifnull(max(t), 0) FROM chunk WHERE run_id = ?", (run,)).fetchone()[0])
    chunk = Chunk.of(t, (each.record for each in fresh), sum(each.tokens for each in fresh))
    node = MemoryNode.of(Level.L0, project, None, run, t, chunk.text, ())
    if db.execute("SELECT 1 FROM node WHERE sha256 = ?", (node.sha256,)).fetchone() is None:
        writing.add(NodeLine(time=Timestamp.now(), node=node))
    writing.add(ChunkLine(time=Timestamp.now(), project=project, run=run, node=node.sha256, chunk=chunk))
    return len(fresh)
