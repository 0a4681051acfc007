"""Salvage keeps what is sound before the fault, says what it left out, and never touches the torn session."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopkit.contract.records import Forked
from loopkit.errors import BaselineError, InvalidId, SessionExists, SessionLocked, SessionNotFound, TornLog
from loopkit.ids import SessionId
from loopkit.session.salvage import salvage
from loopkit.session.session import Session
from loopkit.session.verify import verify
from tests.session.build import bodies_of, chained, create, digests, filled, group

ID, NEW = SessionId("lima"), SessionId("lima-2")


@pytest.fixture
def torn(tmp_path: Path) -> Path:
    """A session of two epochs, the second one's last line cut in the middle."""
    with filled(tmp_path) as session:
        path = session.dir / "1.jsonl"
    path.write_bytes(path.read_bytes()[:-50])
    return session.dir


def test_whole_groups_and_epochs_are_kept(tmp_path: Path, torn: Path) -> None:
    before = digests(torn)
    kept = salvage(torn, NEW)
    assert digests(torn) == before
    assert (kept.source, kept.id, kept.dir, kept.epochs, kept.records) == (ID, NEW, tmp_path / "sessions" / NEW, 2, 22)
    (left_out,) = kept.left_out
    assert left_out.startswith("1.jsonl: line 10 and later (line 11: the last line does not end in a line feed")
    assert verify(kept.dir).ok
    with Session.open(tmp_path, NEW) as session:
        assert [epoch.start.forked for epoch in session.epochs] == [
            Forked(session="lima", epoch=0, line=13),
            Forked(session="lima", epoch=1, line=9),
        ]
        assert session.next_call() == 4
        session.extend(group(session, None))
    assert verify(kept.dir).ok
    assert "left out 1.jsonl: line 10 and later" in str(kept)
    assert repr(kept).endswith("1 more"), "what one line has no room for is counted"


def test_the_records_kept_are_the_bytes_that_were_written(tmp_path: Path, torn: Path) -> None:
    salvage(torn, NEW)
    for name in ("0.jsonl", "1.jsonl"):
        ours = bodies_of((tmp_path / "sessions" / NEW / name).read_bytes())
        written = (torn / name).read_bytes()
        assert ours[1:] == bodies_of(written[: written.rindex(b"\n") + 1])[1 : len(ours)]
    assert (tmp_path / "sessions" / NEW / "0.baseline.json").read_bytes() == (torn / "0.baseline.json").read_bytes()


def test_a_fault_in_an_early_epoch_leaves_the_later_ones_out(tmp_path: Path) -> None:
    with filled(tmp_path) as session:
        path = session.dir / "0.jsonl"
    path.write_bytes(path.read_bytes().replace(b"And in Cusco?", b"And in Quito?"))
    kept = salvage(session.dir, NEW)
    assert (kept.epochs, kept.records) == (1, 9)
    assert kept.left_out[0].startswith("0.jsonl: line 10 and later (line 10: its crc is ")
    assert kept.left_out[1:] == ("1.jsonl: the whole file",)
    assert verify(kept.dir).ok


def test_a_broken_baseline_leaves_its_epoch_out(tmp_path: Path) -> None:
    with filled(tmp_path) as session:
        (session.dir / "1.baseline.json").unlink()
    kept = salvage(session.dir, NEW)
    assert kept.epochs == 1
    assert "1.baseline.json: cannot be read" in kept.left_out[0]
    with Session.open(tmp_path, NEW) as new:
        assert new.ended
        new.next_epoch(new.baseline)
    assert verify(kept.dir).ok


def test_a_request_that_is_not_the_one_sent_ends_what_is_sound(tmp_path: Path) -> None:
    with create(tmp_path) as session:
        for number in range(4):
            session.extend(group(session, f"question {number}"))
        path = session.dir / "0.jsonl"
    bodies = bodies_of(path.read_bytes())
    bodies[4] = bodies[4].replace(b"question 1", b"question 7")
    path.write_bytes(chained(bodies))
    kept = salvage(session.dir, NEW)
    assert kept.records == 4
    assert kept.left_out[0].startswith("0.jsonl: line 5 and later (line 7: request 2, rebuilt from the log")
    assert verify(kept.dir).ok


def test_a_missing_epoch_ends_what_is_sound(tmp_path: Path) -> None:
    with filled(tmp_path) as session:
        directory = session.dir
    for kind in ("jsonl", "baseline.json"):
        (directory / f"1.{kind}").rename(directory / f"2.{kind}")
    before = digests(directory)
    (fault,) = verify(directory).faults
    assert str(fault) == f"{directory}/1.jsonl:1: the file is missing, but 2.jsonl exists (byte 0 of the file)"
    kept = salvage(directory, NEW)
    assert (kept.epochs, kept.records) == (1, 13)
    assert kept.left_out == ("1.jsonl: the file is missing, but 2.jsonl exists", "2.jsonl: the whole file")
    assert verify(kept.dir).ok
    assert digests(directory) == before


def test_where_nothing_is_sound_nothing_is_made(tmp_path: Path) -> None:
    with create(tmp_path) as session:
        path = session.dir / "0.jsonl"
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(TornLog, match=r"not changed\. Nothing before it is sound, so there is nothing to copy$"):
        salvage(session.dir, NEW)
    path.write_bytes(data)
    (session.dir / "0.baseline.json").unlink()
    with pytest.raises(BaselineError):
        salvage(session.dir, NEW)
    assert [path.name for path in (tmp_path / "sessions").iterdir()] == ["lima"]


def test_what_is_refused(tmp_path: Path, torn: Path) -> None:
    with pytest.raises(InvalidId):
        salvage(torn, "../up")  # type: ignore[arg-type]
    with pytest.raises(SessionExists):
        salvage(torn, ID)
    with pytest.raises(SessionNotFound):
        salvage(tmp_path / "sessions" / "nowhere", NEW)
    with create(tmp_path, "open") as session, pytest.raises(SessionLocked):
        salvage(session.dir, NEW)


def test_another_home_and_a_sound_session(tmp_path: Path) -> None:
    filled(tmp_path).close()
    kept = salvage(tmp_path / "sessions" / ID, ID, tmp_path / "other")
    assert (kept.records, kept.left_out) == (24, ())
    assert verify(tmp_path / "other").ok
