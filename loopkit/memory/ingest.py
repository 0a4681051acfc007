"""Ingesting evidence: records are grouped into chunks under a token budget, and each chunk becomes a node of level L0.

Level L0 is the lowest of the three levels of a memory: the evidence. Records are read and written in batches, so memory use does
not grow with their number, and a killed run keeps its finished batches. Records that were ingested before are skipped, so a
transcript that grew, was resumed, forked or moved adds only its new records. A record is recognised by its text and place, or by
its text, role and time.
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
"Size at which a batch is written and synced to disk: characters of text plus 400 per record."


class Ingested(NamedTuple):
    """The result of :meth:`Memory.ingest`."""

    run: RunId
    "Id of the run that added the records."
    records: int
    "Number of records that were added."
    known: int
    "Number of records that were skipped because the memory already contains them."
    chunks: int
    "Number of chunks that were added. Chunks with the same text share a node."
    problems: tuple[Problem, ...] = ()
    'Files and lines that could not be read, with ``errors="report"``; otherwise empty.'


Count: TypeAlias = Callable[[str], int]

BYTES_PER_TOKEN = 3
"Bytes of UTF-8 per token in estimates. The value is low, so chunks become too small rather than too large."


class CountedRecord(NamedTuple):
    """A record, and the number of tokens that it adds to the text of its chunk."""

    record: Record
    tokens: int


def estimate_tokens(text: str) -> int:
    """Return an estimate of the number of tokens in a text, for use without a server's tokenizer.

    Examples
    --------
    >>> estimate_tokens("abcd"), estimate_tokens("")
    (2, 0)
    """
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


def group_records(records: Iterable[Record], budget: int, count: Count = estimate_tokens) -> Iterator[list[CountedRecord]]:
    """Group consecutive records into chunks of at most `budget` tokens. A record is never split.

    Parameters
    ----------
    records : iterable of Record
        The records in order. They are read one by one.
    budget : int
        Largest number of tokens in a chunk.
    count : callable
        Function that returns the number of tokens of a text.

    Yields
    ------
    list of CountedRecord
        The records of one chunk: as many as fit, or a single record that alone exceeds the budget.

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
    """Return a new run id. Sorted as text, ids are in the order of their creation."""
    return RunId(SessionId.new())


def begin_run(writing: Writing, run: RunId, project: ProjectId, task: Literal["ingest", "build"]) -> None:
    """Add a line for a run, unless the memory has one already.

    Raises
    ------
    InvalidConfig
        If the existing run belongs to another project or another task.
    """
    row = writing.db.execute("SELECT project, task FROM run WHERE run_id = ?", (run,)).fetchone()
    if row is None:
        writing.add(RunLine(time=Timestamp.now(), run=run, project=project, task=task))
    elif row != (project, task):
        raise InvalidConfig("run", f"{run} is already a run of {row[1]} in project {row[0]}", "Use another name")


def ingest(store: Store, what: Iterable[Transcript], project: ProjectId, run: RunId, budget: int, count: Count) -> Ingested:
    """Add the new records of transcripts to a memory; see :meth:`Memory.ingest`."""
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
    except Exception:  # a transcript cannot be read: the records before the error are written first
        yield batch
        raise
    yield batch


def _write_chunk(writing: Writing, project: ProjectId, run: RunId, path: str | None, group: list[CountedRecord]) -> int:
    """Write the new records of a group as one chunk. Return the number of new records."""
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
