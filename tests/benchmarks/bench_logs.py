"""Logs into their usage frame, one long and ten thousand short, against DuckDB and pandas, by seconds of one core; and memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from time import process_time

import duckdb
import pandas as pd

from loopkit.logs.loading import load
from tests.benchmarks.agent_logs import write_home, write_log
from tests.benchmarks.table import Row, interleaved

DECLARED = {
    "kind": "VARCHAR",
    "time": "TIMESTAMPTZ",
    "request": "BIGINT",
    "request_sha256": "VARCHAR",
    "request_bytes": "BIGINT",
    "usage": "STRUCT(prompt_tokens BIGINT, cached_tokens BIGINT, cache_write_tokens BIGINT, completion_tokens BIGINT, "
    "reasoning_tokens BIGINT, ttft_ms DOUBLE, prompt_ms DOUBLE, predicted_ms DOUBLE)",
    "expected_tokens": "BIGINT",
    "expected_exact": "BOOLEAN",
    "reusable_tokens": "BIGINT",
    "lost_tokens": "BIGINT",
    "shortfall": "VARCHAR",
    "finish_reason": "VARCHAR",
}
QUERY = """
with log as (select *, row_number() over () as line from read_ndjson('{logs}', columns = {columns}, filename = true)),
placed as (
    select *, sum((kind = 'user')::int) over session as turn, lead(lost_tokens) over session as lost
    from log window session as ({session})
)
select turn, request, time, unnest(usage), usage.prompt_tokens - usage.cached_tokens as read_tokens,
    expected_tokens, expected_exact, reusable_tokens, coalesce(lost, 0) as lost_tokens, shortfall,
    usage.cached_tokens / usage.prompt_tokens as reuse, finish_reason, request_bytes,
    request_bytes - coalesce(lag(request_bytes) over ({session}), 0) as new_bytes, request_sha256
from placed where kind = 'usage'
"""
"The columns of the usage frame; DuckDB checks no crc."

PEAK = """
import re, sys
from loopkit.logs.loading import load

def peak():
    with open("/proc/self/status") as file:
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", file.read())[1]) * 1024

before = peak()
frame = load(sys.argv[1], progress=False).usage
grown = peak() - before
print(grown, frame.memory_usage(deep=True).sum())
"""
"VmHWM, for a child's ru_maxrss begins at its parent's."


def measure(*, small: bool = False) -> list[Row]:
    with tempfile.TemporaryDirectory() as directory:
        path = write_log(Path(directory), 10 if small else 200)
        megabytes = path.stat().st_size / 1e6
        rows = _compared(f"{megabytes:.0f} MB in one log", path, path, megabytes, rounds=7 if small else 5)
    with tempfile.TemporaryDirectory() as directory:
        sessions = 100 if small else 10_000
        megabytes = write_home(Path(directory), sessions, 100) / 1e6
        logs = Path(directory) / "sessions" / "*" / "0.jsonl"
        rows += _compared(f"{megabytes:,.0f} MB in {sessions:,} sessions", Path(directory), logs, megabytes, rounds=3)
    return rows


def _compared(what: str, home: Path, logs: Path, megabytes: float, *, rounds: int) -> list[Row]:
    """One home or log by its usage frame, against the two on the pattern ``logs``."""
    connection = duckdb.connect()
    connection.execute("set threads = 1")
    paths = [logs] if logs.exists() else sorted(logs.parents[1].glob("*/0.jsonl"))
    session = "order by line" if logs.exists() else "partition by filename order by line"
    query = QUERY.format(logs=logs, columns=DECLARED, session=session)

    def ours() -> pd.DataFrame:
        return load(home, progress=False).usage

    def duck() -> pd.DataFrame:
        return connection.execute(query).df()

    def pandas() -> pd.DataFrame:
        return pd.concat([pd.read_json(path, lines=True) for path in paths])

    mine, theirs = ours(), duck()
    for name in ("turn", "read_tokens", "new_bytes", "lost_tokens"):
        assert len(mine) == len(theirs)
        assert mine[name].sum() == theirs[name].sum(), name
    del mine, theirs
    by_us, by_duck = interleaved(ours, duck, rounds, process_time)
    again, by_pandas = interleaved(ours, pandas, 3 if len(paths) == 1 else 1, process_time)
    command = [sys.executable, "-c", PEAK, str(home)]
    grown, frame = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    allowed = 3 * frame + (64 << 20)
    work = f"`load(…).usage`, {what}"
    speed = f"{by_us:.3f} s, {megabytes / by_us:,.0f} MB/s"
    return [
        Row(f"{work}, against DuckDB read_ndjson", speed, f"{by_duck:.3f} s", by_duck / by_us, 1, at_most=False),
        Row(f"{work}, against pandas read_json", f"{again:.3f} s", f"{by_pandas:.3f} s", by_pandas / again, 10, at_most=False),
        Row(f"{work}, peak memory over the imports'", f"{grown / 1e6:.0f} MB", f"{allowed / 1e6:.0f} MB", grown / allowed, 1),
    ]
