"""Memory at scale: records ingested in bounded memory, and recall against a LIKE scan of the same texts."""

from __future__ import annotations

import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from loopkit.contract.provenance import Provenance, Record, Role
from loopkit.ids import ProjectId
from loopkit.memory.memory import Memory
from tests.benchmarks.table import Row, interleaved

PROJECT = ProjectId("bench")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
STAMP = "2026-11-{:02}T{:02}:{:02}:{:02}.000000Z"


def said(count: int) -> Iterator[Record]:
    """Sentences of a dozen words from a large vocabulary, some common and most rare, as language has them."""
    rng = random.Random(1)
    words = ["".join(rng.choices(LETTERS, k=rng.randint(2, 9))) for _ in range(20_000)]
    weights = list(accumulate(1 / rank for rank in range(1, len(words) + 1)))
    offset = 0
    for at in range(count):
        text = " ".join(rng.choices(words, cum_weights=weights, k=12)) + f" number{at}"
        time = STAMP.format(at // 86_400 % 28 + 1, at // 3600 % 24, at // 60 % 60, at % 60)
        yield Record(Role.User if at % 2 else Role.Assistant, text, time, Provenance(f"bench/{at // 100_000}", offset))
        offset += len(text) + 60


class Ingest(NamedTuple):
    """How much memory and time an ingest took, in a process of its own."""

    peak: int
    "Bytes, less what the process had before."
    seconds: float
    megabytes: float
    "Of nodes.jsonl."


def ingest(home: Path, count: int, budget: int) -> Ingest:
    command = [sys.executable, "-m", "tests.benchmarks.bench_memory", str(home), str(count), str(budget)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, seconds = done.stdout.split()
    return Ingest(int(peak), float(seconds), (home / "memory" / "nodes.jsonl").stat().st_size / 1e6)


def measure(*, small: bool) -> list[Row]:
    few, many = (20_000, 80_000) if small else (100_000, 1_000_000)
    nodes = 5_000 if small else 100_000
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        less, more = ingest(home / "less", few, 1024), ingest(home / "more", many, 1024)
        ours = f"{more.peak / 1e6:.0f} MB above the imports, {more.seconds:.0f} s, {more.megabytes:.0f} MB of nodes.jsonl"
        theirs = f"{few:,} records: {less.peak / 1e6:.0f} MB"
        rows.append(Row(f"`memory.ingest`, {many:,} records: peak memory", ours, theirs, more.peak / less.peak, 1.5))

        ingest(home / "recall", nodes, 1)
        memory = Memory(home / "recall")
        asked = [record.text.split()[-4:] for record in said(nodes)][:: nodes // 20]
        queries = iter([" ".join(words) for words in asked] * 2)
        words = iter([words[-1] for words in asked] * 2)

        def ours_once() -> None:
            assert memory.recall(next(queries), 5)

        def theirs_once() -> None:
            db = sqlite3.connect(memory.dir / "memory.db")
            assert db.execute("SELECT text FROM node WHERE text LIKE ?", (f"%{next(words)}",)).fetchall()
            db.close()

        mine, other = interleaved(ours_once, theirs_once, len(asked))
        work = f"`memory.recall`, {nodes:,} nodes, four words, a common one among them"
        rows.append(
            Row(work, f"{mine * 1e3:.1f} ms", f"one word with LIKE, {other * 1e3:.1f} ms", mine / other, 1.0 if small else 0.5)
        )
    return rows


def peak() -> int:
    """Bytes; VmHWM, for a child's ru_maxrss begins at its parent's."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


if __name__ == "__main__":
    memory = Memory(sys.argv[1])
    count, budget = int(sys.argv[2]), int(sys.argv[3])
    memory.ingest(said(10), project=ProjectId("warm"))
    before, began = peak(), time.perf_counter()
    assert memory.ingest(said(count), project=PROJECT, budget=budget).records == count
    print(peak() - before, time.perf_counter() - began)
