"""A session's log into its usage frame, against DuckDB and pandas on the same file, by seconds of one core; and its memory."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from pathlib import Path
from time import process_time

import duckdb
import pandas as pd
from msgspec import Raw

from loopkit.logs.load import load
from loopkit.records import (
    Assistant,
    LogRecord,
    ServerFacts,
    SessionStart,
    TagsFacts,
    ToolResult,
    Usage,
    UsageRecord,
    User,
    encode_record,
)
from loopkit.session.journal import close_line
from tests.benchmarks.table import Row, interleaved

LETTERS = "abcdefghijklmnopqrstuvwxyz"
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
with log as (select *, row_number() over () as line from read_ndjson('{}', columns = {})),
placed as (
    select *, sum((kind = 'user')::int) over (order by line) as turn, lead(lost_tokens) over (order by line) as lost from log
)
select turn, request, time, unnest(usage), usage.prompt_tokens - usage.cached_tokens as read_tokens,
    expected_tokens, expected_exact, reusable_tokens, coalesce(lost, 0) as lost_tokens, shortfall,
    usage.cached_tokens / usage.prompt_tokens as reuse, finish_reason, request_bytes,
    request_bytes - coalesce(lag(request_bytes) over (order by line), 0) as new_bytes, request_sha256
from placed where kind = 'usage'
"""
"The columns of the usage frame; DuckDB checks no crc."

PEAK = """
import re, sys
from loopkit.logs.load import load

def peak():
    with open("/proc/self/status") as file:
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", file.read())[1]) * 1024

before = peak()
frame = load(sys.argv[1], progress=False).usage
grown = peak() - before
print(grown, frame.memory_usage(deep=True).sum())
"""
"VmHWM, for a child's ru_maxrss begins at its parent's."


def write_log(home: Path, megabytes: float) -> Path:
    """Write a session of turns that each read two files: three requests, some 6,000 bytes of text."""
    rng = random.Random(1)
    words = ["".join(rng.choices(LETTERS, k=rng.randint(2, 9))) for _ in range(500)]
    path = home / "sessions" / "big" / "0.jsonl"
    path.parent.mkdir(parents=True)
    clock = crc = size = 0

    def time() -> str:
        nonlocal clock
        clock += 1
        return (
            f"2026-11-{clock // 86400 + 1:02}T{clock // 3600 % 24:02}:{clock // 60 % 60:02}:{clock % 60:02}.{clock % 1000:03}000Z"
        )

    def text(count: int) -> str:
        return " ".join(rng.choices(words, k=count))

    def put(record: LogRecord) -> None:
        nonlocal crc, size
        line, crc = close_line(encode_record(record)[:-1], crc)
        size += file.write(line)

    with path.open("wb") as file:
        facts = ServerFacts(engine="llama.cpp", model="m", context_size=1 << 20)
        start = {"slot": 0, "baseline_sha256": "a" * 64, "options": {}, "server": facts, "tags": TagsFacts(id="default")}
        put(SessionStart(time=time(), session="big", epoch=0, **start))  # type: ignore[arg-type]
        request = call = 0
        prompt = 1000
        while size < megabytes * 1e6:
            put(User(time=time(), content=text(30)))
            for step in range(3):
                request += 1
                prompt += 300
                name = f"call_{request}"
                made = b'[{"id":"%b","type":"function","function":{"name":"read","arguments":"{}"}}]' % name.encode()
                put(
                    Assistant(time=time(), content=text(60), tool_calls=Raw(made))
                    if step < 2
                    else Assistant(time=time(), content=text(90))
                )
                numbers = Usage(
                    prompt_tokens=prompt,
                    cached_tokens=prompt - 300,
                    completion_tokens=90,
                    ttft_ms=41.5,
                    prompt_ms=40.25,
                    predicted_ms=300.125,
                )
                put(
                    UsageRecord(
                        time=time(),
                        request=request,
                        request_sha256=f"{rng.getrandbits(256):064x}",
                        request_bytes=4 * prompt,
                        usage=numbers,
                        expected_tokens=prompt - 300,
                        expected_exact=True,
                        reusable_tokens=prompt - 300,
                        finish_reason="tool_calls" if step < 2 else "stop",
                        response_id=f"chatcmpl-{request}",
                        attempts=1,
                        elapsed_ms=341.5,
                    )
                )
                if step < 2:
                    call += 1
                    put(
                        ToolResult(
                            time=time(),
                            call=call,
                            tool_call_id=name,
                            name="read",
                            content=text(rng.choice([50, 100, 300, 800])),
                            truncated=False,
                            status="ok",
                        )
                    )
    return path


def measure(*, small: bool = False) -> list[Row]:
    with tempfile.TemporaryDirectory() as directory:
        path = write_log(Path(directory), 10 if small else 150)
        megabytes = path.stat().st_size / 1e6
        connection = duckdb.connect()
        connection.execute("set threads = 1")
        query = QUERY.format(path, DECLARED)

        def ours() -> int:
            return len(load(path, progress=False).usage)

        def theirs() -> int:
            return len(connection.execute(query).df())

        mine_frame, their_frame = load(path, progress=False).usage, connection.execute(query).df()
        for name in ("turn", "read_tokens", "new_bytes", "lost_tokens"):
            assert mine_frame[name].tolist() == their_frame[name].tolist(), name
        del mine_frame, their_frame
        mine, duck = interleaved(ours, theirs, 7 if small else 5, process_time)
        again, pandas = interleaved(ours, lambda: pd.read_json(path, lines=True), 3, process_time)
        command = [sys.executable, "-c", PEAK, str(path)]
        grown, frame = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
        allowed = 3 * frame + (64 << 20)
    return [
        Row(
            f"`load(…).usage`, {megabytes:.0f} MB, against DuckDB read_ndjson",
            f"{mine:.3f} s, {megabytes / mine:,.0f} MB/s",
            f"{duck:.3f} s",
            duck / mine,
            1,
            at_most=False,
        ),
        Row(
            f"`load(…).usage`, {megabytes:.0f} MB, against pandas read_json",
            f"{again:.3f} s, {megabytes / again:,.0f} MB/s",
            f"{pandas:.3f} s",
            pandas / again,
            10,
            at_most=False,
        ),
        Row(
            "`load(…).usage`, peak memory over the imports'",
            f"{grown / 1e6:.0f} MB",
            f"{allowed / 1e6:.0f} MB",
            grown / allowed,
            1,
        ),
    ]
