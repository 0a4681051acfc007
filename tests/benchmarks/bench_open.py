"""Opening a log (typed, unknown members, crc, order and canonical form checked) against orjson of every line."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import orjson

from loopkit.session.session import Session
from tests.benchmarks.long_log import long_session
from tests.benchmarks.table import Row, interleaved


def measure(*, small: bool) -> list[Row]:
    with tempfile.TemporaryDirectory() as home:
        session = long_session(Path(home), 1_000 if small else 10_000)
        path = session.dir / "0.jsonl"
        kept: list[Any] = [None, None]

        def ours() -> None:
            kept[0] = None
            kept[0] = Session.read(home, session.id).records

        def theirs() -> None:
            kept[1] = None
            with path.open("rb") as file:
                kept[1] = [orjson.loads(line) for line in file]

        ours()
        theirs()
        assert len(kept[0]) == len(kept[1])
        mine, other = interleaved(ours, theirs, 41)
        work = f"`open`, {path.stat().st_size / 1e6:.1f} MB in {len(kept[0])} lines"
        return [Row(work, f"{mine * 1e3:.1f} ms", f"orjson.loads of every line, {other * 1e3:.1f} ms", mine / other, 1.5)]
