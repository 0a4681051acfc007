"""A session is read while another process writes it: up to a whole group, and never called torn."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from loopkit.errors import TornLog
from loopkit.ids import SessionId
from loopkit.logs.loading import load
from loopkit.session.concurrent_reads import retry_unfinished
from loopkit.session.session import Session
from loopkit.session.verify import verify
from tests.session.build import BASELINE, create, end, group

ID = SessionId("lima")
ROOT = Path(__file__).parents[2]
WRITER = """
import sys
from pathlib import Path
from tests.session.build import BASELINE, create, end, group
session = create(Path(sys.argv[1]))
print("made", flush=True)
for number in range(1, 161):
    session.extend(group(session, "u" * (10, 70_000, 400_000)[number % 3], "é" * (10, 50_000)[number % 2]))
    if number % 4 == 0:
        session.append(end())
        session.next_epoch(BASELINE)
"""


def test_a_session_that_another_process_writes_is_sound_at_every_moment(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"made\n"
        read = [0]
        while writer.poll() is None:
            session = Session.read(tmp_path, ID)
            assert verify(tmp_path).faults == ()
            loaded = len(load(tmp_path).usage)
            requests = sum(1 for _ in session.requests())
            assert read[-1] <= requests <= loaded
            read.append(requests)
    assert writer.returncode == 0
    assert len(set(read)) > 2
    assert len(load(tmp_path).usage) == 160


@pytest.mark.parametrize("cut", range(1, 1500, 97))
def test_a_write_that_stands_still_is_left_out(tmp_path: Path, cut: int) -> None:
    """The writer was stopped in the middle of a write: what is before it can be read."""
    with create(tmp_path) as session:
        session.extend(group(session, "One."))
        log = session.dir / "0.jsonl"
        before = log.read_bytes()
        session.extend(group(session, "Two."))
        whole = log.read_bytes()
        log.write_bytes(whole[: min(len(before) + cut, len(whole) - 1)])
        seen = Session.read(tmp_path, ID)
        assert seen.records == session.records[:4]
        assert verify(tmp_path).faults == ()
        assert verify(tmp_path).requests == 1
        assert len(load(tmp_path).usage) == 1
    for what in (lambda: Session.read(tmp_path, ID), lambda: load(tmp_path)):
        with pytest.raises(TornLog):
            what()
    assert not verify(tmp_path).ok


def test_an_epoch_in_the_making_is_not_there_yet(tmp_path: Path) -> None:
    with create(tmp_path) as session:
        session.extend(group(session, "One."))
        session.append(end())
        session.next_epoch(BASELINE)
        for left in (b"", b'{"kind":"session_start","time":"2026'):
            (session.dir / "1.jsonl").write_bytes(left)
            assert Session.read(tmp_path, ID).epoch == 0
            assert verify(tmp_path).faults == ()
            assert len(load(tmp_path).epochs) == 1


def test_damage_before_the_end_is_a_fault_while_it_is_written(tmp_path: Path) -> None:
    with create(tmp_path) as session:
        session.extend(group(session, "One."))
        log = session.dir / "0.jsonl"
        log.write_bytes(log.read_bytes().replace(b"One.", b"Two.") + b'{"kind"')
        with pytest.raises(TornLog, match=r"0\.jsonl:2"):
            Session.read(tmp_path, ID)
        assert [fault.line for fault in verify(tmp_path).faults] == [2, 5]


def test_an_end_that_moves_is_read_again(tmp_path: Path) -> None:
    """By a writer that has gone when its lock is asked for, too."""
    create(tmp_path).close()
    log = Session.dir_for(tmp_path, ID) / "0.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole[:-10])
    seen: list[int] = []

    def read() -> Session:
        seen.append(1)
        try:
            return Session.open(tmp_path, ID)
        except TornLog:
            log.write_bytes(whole)
            raise

    with retry_unfinished(log.parent, read) as session:
        assert len(session.records) == 1
    assert len(seen) == 2


def test_reading_waits_for_no_writer_where_there_is_none(tmp_path: Path) -> None:
    create(tmp_path).close()
    log = Session.dir_for(tmp_path, ID) / "0.jsonl"
    log.write_bytes(log.read_bytes()[:-10])
    seen: list[int] = []

    def read() -> None:
        seen.append(1)
        Session.open(tmp_path, ID)

    with pytest.raises(TornLog):
        retry_unfinished(log.parent, read)
    assert len(seen) == 2


@pytest.mark.parametrize("look", [load, verify])
def test_a_session_in_the_making_is_waited_for(
    tmp_path: Path, look: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory is there before its log; nothing of that is called a fault."""
    create(tmp_path).close()
    log = Session.dir_for(tmp_path, ID) / "0.jsonl"
    log.rename(tmp_path / "made.jsonl")
    monkeypatch.setattr(time, "sleep", lambda _: (tmp_path / "made.jsonl").rename(log))
    look(tmp_path)
    assert verify(tmp_path).records == 1
