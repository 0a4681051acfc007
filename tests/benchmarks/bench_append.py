"""Appending one record against raw write and fdatasync of the same bytes, on a disk, in interleaved pairs."""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

from msgspec import Raw

from loopkit.contract.baseline import Baseline
from loopkit.contract.records import Assistant, LogRecord, ServerFacts, TagsFacts, ToolResult, Usage, UsageRecord, encode_record
from loopkit.encoding import encode
from loopkit.ids import SessionId, Timestamp
from loopkit.session.journal import close_line
from loopkit.session.session import Session
from tests.benchmarks.table import Row, seconds

CONTENT = "The quick brown fox jumps over the lazy dog.\n" * 10


def _raw(fd: int, data: bytes) -> None:
    os.write(fd, data)
    os.fdatasync(fd)


def _asking(request: int) -> list[LogRecord]:
    """A request that was answered with eight calls, so that eight results can be appended."""
    function = {"name": "read", "arguments": "{}"}
    calls = [{"id": f"c{number}", "type": "function", "function": function} for number in range(8)]
    usage = UsageRecord(
        time=Timestamp.now(),
        request=request,
        request_sha256="0" * 64,
        request_bytes=1,
        usage=Usage(),
        finish_reason=None,
        response_id=None,
        attempts=1,
        elapsed_ms=1.0,
    )
    return [Assistant(time=Timestamp.now(), content=None, tool_calls=Raw(encode(calls))), usage]


def measure(*, small: bool) -> list[Row]:
    rounds = 200 if small else 1_000
    with tempfile.TemporaryDirectory(dir=".") as home:  # where the checkout lies, for a disk: the system's own may be memory
        baseline = Baseline("Be brief.", ())
        facts = {"server": ServerFacts(), "tags": TagsFacts(id="default-1")}
        with Session.create(home, SessionId("appends"), baseline, slot=None, options={}, **facts) as session:  # type: ignore[arg-type]
            raw = os.open(Path(home) / "raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            pairs: list[tuple[float, float]] = []
            try:
                while len(pairs) < rounds:
                    session.extend(_asking(len(pairs) // 8 + 1))
                    for call in session.pending:
                        record = ToolResult(
                            time=Timestamp.now(),
                            call=session.next_call(),
                            tool_call_id=call.id,
                            name="read",
                            content=CONTENT,
                            truncated=False,
                            status="ok",
                        )
                        line = close_line(encode_record(record)[:-1], 0)[0]
                        pairs.append((seconds(lambda r=record: session.append(r)), seconds(lambda b=line: _raw(raw, b))))  # type: ignore[misc]
            finally:
                os.close(raw)
    mine, other = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
    allowed = other + max(0.15 * other, 40e-6)
    return [
        Row(
            f"`append`, {rounds} pairs, as a share of what is allowed",
            f"{mine * 1e6:.0f} µs",
            f"write + fdatasync, {other * 1e6:.0f} µs; allowed {allowed * 1e6:.0f} µs",
            mine / allowed,
            1.0,
        )
    ]
