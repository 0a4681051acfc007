"""Memories made for tests: records of a small world, models that count what they are asked."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path

from loopkit.contract.provenance import Provenance, Record, Role
from loopkit.ids import ProjectId, QueryId, RunId
from loopkit.memory.memory import Memory

PERU = ProjectId("peru")
LIGHT = QueryId("light")
QUESTION = "When is it light?"
TIME = "2026-11-30T07:31:05.000000Z"


def records(texts: Iterable[str], source: str = "notes/0", first: int = 0) -> list[Record]:
    """One record a text, each at its own time, as the lines of a file of 100-byte lines."""
    return [
        Record(Role.User, text, f"2026-11-30T07:31:05.{at:06}Z", Provenance(source, 100 * at))
        for at, text in enumerate(texts, first)
    ]


def filled(home: Path, count: int = 6, run: str = "r1") -> Memory:
    """A memory of one chunk a record."""
    memory = Memory(home)
    memory.ingest(records(f"Fact {at} of Lima." for at in range(count)), project=PERU, run=RunId(run), budget=1)
    return memory


class Model:
    """Keeps the newest facts; every so many calls it says that nothing has changed."""

    def __init__(self, unchanged_every: int = 0, stop_at: int = 0) -> None:
        self.prompts: list[str] = []
        self.unchanged_every, self.stop_at = unchanged_every, stop_at

    @property
    def calls(self) -> int:
        return len(self.prompts)

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        if self.calls == self.stop_at:
            raise KeyboardInterrupt
        if self.unchanged_every and self.calls % self.unchanged_every == 0:
            return "Unchanged."
        before, new = prompt.split("The memory so far:\n")[1].split("\n\nNew:\n")
        return f"{before.removeprefix('(none)')} {new.removeprefix('User: ').strip()}".strip()


def rows(memory: Memory, sql: str) -> list[tuple[object, ...]]:
    """What the database holds, by SQLite alone."""
    db = sqlite3.connect(f"file:{memory.dir / 'memory.db'}?mode=ro", uri=True)
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()


ORPHANS = """
SELECT child, parent FROM edge
WHERE child NOT IN (SELECT sha256 FROM node) OR parent NOT IN (SELECT sha256 FROM node)
"""


def no_orphans(memory: Memory) -> None:
    assert rows(memory, ORPHANS) == []
    assert rows(memory, "PRAGMA foreign_key_check") == []


def build(memory: Memory, model: Callable[[str], str], run: str = "b1") -> int:
    """Build the memory for the one question; gives the calls that were paid for."""
    return memory.build(PERU, LIGHT, QUESTION, model=model, run=RunId(run)).calls
