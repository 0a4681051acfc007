"""Proving a session (every line checked, every request rebuilt and hashed) against SHA-256 of the log's bytes plus its parse."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import orjson

from loopkit.session.verify import verify
from tests.benchmarks.long_log import long_session
from tests.benchmarks.table import Row, interleaved


def measure(*, small: bool) -> list[Row]:
    rows = []
    medians = []
    for messages in (500, 1_000) if small else (2_500, 10_000):
        with tempfile.TemporaryDirectory() as home:
            session = long_session(Path(home), messages)
            path = session.dir / "0.jsonl"

            def ours(directory: Path = session.dir) -> None:
                assert verify(directory).ok

            def theirs(path: Path = path) -> list[object]:
                data = path.read_bytes()
                hashlib.sha256(data).hexdigest()
                return [orjson.loads(line) for line in data.split(b"\n")[:-1]]

            mine, other = interleaved(ours, theirs, 15)
            medians.append(mine)
            work = f"`verify`, {path.stat().st_size / 1e6:.1f} MB, {sum(1 for _ in session.requests())} requests"
            rows.append(Row(work, f"{mine * 1e3:.0f} ms", f"SHA-256 and orjson, {other * 1e3:.0f} ms", mine / other, 3.0))
    factor = 2 if small else 4
    growth = medians[1] / medians[0] / factor
    rows.append(Row(f"`verify`, {factor} × the log", "time a byte", "that of the shorter", growth, 1.5))
    return rows
