"""A log of OpenAI-style bodies into losses with causes and the bytes that differ, against the fastest neighbour that says causes.

Processor seconds on the same file, each in a process of its own, imports apart. prefixguard is told whose request each is, and is
left out where it is not installed.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.bench_claude_code import run
from tests.benchmarks.bodies import write_bodies
from tests.benchmarks.table import Row

OURS = """
import json, sys, time
from loopkit.logs.loading import load

started = time.process_time()
logs = load(sys.argv[1], progress=False)
usage, losses = logs.usage, logs.cache_loss
spent = time.process_time() - started
differing = sum('"byte":' in text for text in losses["evidence"])
print(json.dumps({"seconds": spent, "requests": len(usage), "breaks": differing}))
"""
THEIRS = """
import json, sys, time
from prefixguard import PrefixGuard

started = time.process_time()
guard = PrefixGuard(static_lint=False)
with open(sys.argv[1], "rb") as file:
    for line in file:
        row = json.loads(line)
        guard.observe(messages=row["body"]["messages"], tools=row["body"]["tools"], session=row["session_id"])
summary = guard.summary()
spent = time.process_time() - started
print(json.dumps({"seconds": spent, "requests": len(guard.history), "breaks": summary["breaks"]}))
"""


def measure(*, small: bool = False) -> list[Row]:
    talks, requests, rounds = (32, 40, 1) if small else (64, 60, 3)
    there = importlib.util.find_spec("prefixguard") is not None
    mine: list[float] = []
    theirs: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "requests.jsonl"
        size, breaks = write_bodies(path, talks, requests)
        for _ in range(rounds):
            for script, times in [(OURS, mine), *([(THEIRS, theirs)] if there else [])]:
                told = json.loads(run([sys.executable, "-c", script, str(path)])[1])
                times.append(told.pop("seconds"))
                assert told == {"requests": talks * requests, "breaks": breaks}
    work = f"{size / 1e6:.0f} MB of OpenAI-style bodies, {talks * requests:,} requests, to causes with differing bytes"
    ours = statistics.median(mine)
    if not there:
        return [Row(f"{work}; prefixguard is not installed", f"{ours:.2f} s", "none", 1, 1)]
    other = statistics.median(theirs)
    return [Row(f"{work}, against prefixguard", f"{ours:.2f} s", f"{other:.2f} s", other / ours, 3, at_most=False)]
