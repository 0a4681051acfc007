"""Mutated logs: refused with file and line, or equal to the original or an earlier state of it; never another session.

``LOOPKIT_MUTATIONS`` sets how many (3,000).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopkit.contract.records import LogRecord
from loopkit.errors import TornLog
from loopkit.ids import SessionId
from loopkit.session.session import Session
from tests.session.build import create, group, result

ID = SessionId("lima")
MUTATIONS = int(os.environ.get("LOOPKIT_MUTATIONS", "3000"))


class Original(NamedTuple):
    home: Path
    path: Path
    data: bytes
    records: list[LogRecord]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    home = tmp_path_factory.mktemp("home")
    with create(home) as session:
        session.extend(group(session, "Is it light in é?", None, ids=["a", "b"]))
        session.append(result(1, "a"))
        session.append(result(2, "b", "07:32 \u2028 é 😀"))
        session.extend(group(session, None, "Yes.\n", loss=4))
        session.extend(group(session, "And now?", ""))
    path = session.dir / "0.jsonl"
    return Original(home, path, path.read_bytes(), list(session.records))


def mutated(draw: Callable[[st.SearchStrategy[Any]], Any], data: bytes) -> bytes:
    kind: str = draw(
        st.sampled_from(["flip", "set", "cut", "remove", "insert", "swap", "double", "drop", "join", "repeat", "zero"])
    )
    at: int = draw(st.integers(0, max(len(data) - 1, 0)))
    other: int = draw(st.integers(0, max(len(data) - 1, 0)))
    low, high = min(at, other), max(at, other)
    lines = data.split(b"\n")
    line, another = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, len(lines) - 1))
    if kind == "flip" and data:
        return data[:at] + bytes([data[at] ^ (1 << draw(st.integers(0, 7)))]) + data[at + 1 :]
    if kind == "set" and data:
        return data[:at] + bytes([draw(st.sampled_from(b'\0\n\r"{}[],:0a \xff'))]) + data[at + 1 :]
    if kind == "cut":
        return data[:at]
    if kind == "remove":
        return data[:low] + data[high:]
    if kind == "insert":
        return data[:at] + bytes(draw(st.binary(max_size=5))) + data[at:]
    if kind == "repeat":
        return data[:high] + data[low:]
    if kind == "zero":
        return data[:low] + b"\0" * (high - low) + data[high:]
    if kind == "swap":
        lines[line], lines[another] = lines[another], lines[line]
    elif kind == "double":
        lines.insert(another, lines[line])
    elif kind == "drop":
        del lines[line]
    elif line + 1 < len(lines):
        lines[line : line + 2] = [lines[line] + lines[line + 1]]
    return b"\n".join(lines)


@pytest.mark.slow
@settings(max_examples=MUTATIONS, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_mutated_log_is_refused_or_is_what_it_was(original: Original, data: st.DataObject) -> None:
    log = original.data
    for _ in range(data.draw(st.integers(1, 3))):
        log = mutated(data.draw, log)
    original.path.write_bytes(log)
    torn: TornLog | None = None
    records: list[LogRecord] = []
    try:
        records = list(Session.read(original.home, ID).records)
    except TornLog as error:
        torn = error
    if torn is None:
        assert records == original.records[: len(records)]
        assert original.data.startswith(log)
    else:
        assert torn.path == str(original.path)
        assert 1 <= torn.line <= log.count(b"\n") + 1
        assert 0 <= torn.offset <= len(log)
        assert log != original.data
    assert original.path.read_bytes() == log
