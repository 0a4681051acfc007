"""Claude Code transcripts into frames with losses and causes, against the tools that audit them; and the memory of it.

Processor seconds on the same files, each in a process of its own, less what that took to start: imports and one
file here, ``--help`` there. A neighbour that is not installed is left out.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.table import Row
from tests.benchmarks.transcripts import write_transcripts

OURS = """
import json, re, sys, time
from pathlib import Path
from loopkit.logs.loading import load

first = load(next(Path(sys.argv[1]).rglob("*.jsonl")), progress=False)
first.usage, first.cache_loss  # what pandas makes ready once
started = time.process_time()
logs = load(sys.argv[1], progress=False)
usage, losses = logs.usage, logs.cache_loss
spent = time.process_time() - started
with open("/proc/self/status") as file:
    peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", file.read())[1]) * 1024
names = ["prompt_tokens", "cached_tokens", "cache_write_tokens", "completion_tokens"]
found = {"seconds": spent, "peak": peak, "calls": len(usage), "losses": len(losses), "lost": int(losses["lost_tokens"].sum())}
print(json.dumps({**found, **{name: int(usage[name].sum()) for name in names}}))
"""
LIMIT = 200 << 20


def neighbours(config: Path) -> dict[str, list[str]]:
    """The command of each neighbour that is there."""
    projects = str(config / "projects")
    commands = {
        "claude-cache-audit": ["--all", "--json", "--config-dir", str(config)],
        "cachemiss": ["--root", projects, "ledger", "--since", "all", "--json"],
        "kvleak": ["audit", "--path", projects, "--json"],
    }
    where = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    found = {name: shutil.which(name, path=where) for name in commands}
    return {name: [path, *commands[name]] for name, path in found.items() if path is not None}


def run(command: list[str]) -> tuple[float, str]:
    """Processor seconds of a process, and what it prints."""
    before = os.times()
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return spent, done.stdout


def agree(ours: dict[str, int], name: str, theirs: Any) -> None:
    """Hold our totals to theirs, but for the output: they take it from a message's first line, where it is not yet known."""
    if name == "cachemiss":
        read, written = theirs["cache_read"], theirs["cache_creation"]
        assert (ours["calls"], ours["prompt_tokens"]) == (theirs["calls"], theirs["prompt_tokens"])
        assert (ours["cached_tokens"], ours["cache_write_tokens"]) == (read, written)
    if name == "claude-cache-audit":
        tokens = {kind: split["tokens"] for kind, split in theirs["usage_split"].items()}
        headline = theirs["rebuilds"]["headline"]
        assert ours["calls"] == theirs["totals"]["requests"]
        assert ours["cached_tokens"] == tokens["cache_read"]
        assert ours["cache_write_tokens"] == tokens["cache_write_5m"] + tokens["cache_write_1h"]
        assert ours["losses"] == headline["count"]
        # of each loss it counts the previous request's three uncached tokens, too, which no break point had kept
        assert ours["lost"] == headline["rewritten_tokens"] - 3 * headline["count"]


def measure(*, small: bool = False) -> list[Row]:
    files, calls, rounds = (96, 200, 3) if small else (480, 200, 3)
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory)
        megabytes = write_transcripts(config, files, calls) / 1e6
        work = f"{megabytes:.0f} MB of Claude Code transcripts, {files * calls:,} calls, to frames with causes"
        there = neighbours(config)
        mine: list[float] = []
        theirs: dict[str, list[float]] = {name: [] for name in there}
        ours: dict[str, int] = {}
        for _ in range(rounds):
            told = json.loads(run([sys.executable, "-c", OURS, str(config / "projects")])[1])
            mine.append(told.pop("seconds"))
            ours = told
            for name, command in there.items():
                started, _ = run([command[0], "--help"])
                seconds, printed = run(command)
                theirs[name].append(seconds - started)
                agree(ours, name, json.loads(printed))
    second = statistics.median(mine)
    rows = [Row(f"{work}; peak memory", f"{ours['peak'] / 2**20:.0f} MiB", "200 MiB", ours["peak"] / LIMIT, 1)]
    for name, times in theirs.items():
        other = statistics.median(times)
        rows.append(Row(f"{work}, against {name}", f"{second:.2f} s", f"{other:.2f} s", other / second, 1, at_most=False))
    if not there:
        rows.append(Row(f"{work}; no neighbour is installed", f"{second:.2f} s", "none", 1, 1))
    return rows
