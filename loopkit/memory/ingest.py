"""Evidence comes in: records into chunks, chunks into nodes of level L0; what is there already is not taken twice.

Records are read, counted and written in batches, so memory does not grow with them, and a run that is killed keeps what it
wrote. A record is known again by its place, or by role and time wherever its copy stands: a transcript that grew, was resumed,
forked or moved adds what is new in it. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from loopkit.errors import InvalidConfig
from loopkit.ids import ProjectId, RunId, SessionId, Timestamp
from loopkit.logs.problems import Problem
from loopkit.memory.chunk import Count, Counted, groups
from loopkit.memory.database import record_keys
from loopkit.memory.lines import ChunkLine, NodeLine, RunLine, SourceLine
from loopkit.memory.sources import Transcript
from loopkit.memory.store import Store, Writing
from loopkit.memory.types import Chunk, Level, MemoryNode

__all__ = ["Ingested", "begin_run", "ingest", "new_run"]

BATCH = 1 << 22
"Characters that are written at once, a record counted as a few hundred more: each batch is one sync."


class Ingested(NamedTuple):
    """What came in."""

    run: RunId
    records: int
    "New ones."
    known: int
    "Those that were there already."
    chunks: int
    "New ones, each with its node; two that say the same have one node."
    problems: tuple[Problem, ...] = ()
    "What could not be read, or was left out, where that was to be reported."


def new_run() -> RunId:
    """A name for a run that sorts by time."""
    return RunId(SessionId.new())


def begin_run(writing: Writing, run: RunId, project: ProjectId, task: Literal["ingest", "build"]) -> None:
    """Write a run's line, where it has none.

    Raises
    ------
    InvalidConfig
        When there was a run of that name for something else.
    """
    row = writing.db.execute("SELECT project, task FROM run WHERE run_id = ?", (run,)).fetchone()
    if row is None:
        writing.add(RunLine(time=Timestamp.now(), run=run, project=project, task=task))
    elif row != (project, task):
        raise InvalidConfig("run", f"{run} was a run of {row[1]} in project {row[0]}", "Give another name")


def ingest(store: Store, what: Iterable[Transcript], project: ProjectId, run: RunId, budget: int, count: Count) -> Ingested:
    """Take transcripts in; see :meth:`Memory.ingest`."""
    total = Ingested(run, 0, 0, 0)
    for batch in filter(None, _batches(what, budget, count)):
        with store.writing() as writing:
            for path, group in batch:
                found = _take(writing, project, run, path, group)
                total = total._replace(
                    records=total.records + found,
                    known=total.known + len(group) - found,
                    chunks=total.chunks + bool(found),
                )
    return total


def _batches(what: Iterable[Transcript], budget: int, count: Count) -> Iterator[list[tuple[str | None, list[Counted]]]]:
    batch: list[tuple[str | None, list[Counted]]] = []
    held = 0
    try:
        for transcript in what:
            for group in groups(transcript.records, budget, count):
                batch.append((transcript.path, group))
                held += sum(len(each.record.text) + 400 for each in group)
                if held >= BATCH:
                    yield batch
                    batch, held = [], 0
    except Exception:  # of a source: what was read before it is kept
        yield batch
        raise
    yield batch


def _take(writing: Writing, project: ProjectId, run: RunId, path: str | None, group: list[Counted]) -> int:
    """Write a group's chunk, of the records that are new; gives their number."""
    db = writing.db
    fresh: list[Counted] = []
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
