"""Verify finds every fault, names file and line, and changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loopkit.contract.request
from loopkit.contract.messages import ChatMessage, encode_message
from loopkit.errors import BaselineMismatch, InvalidConfig, SessionNotFound, TornLog
from loopkit.ids import SessionId
from loopkit.session.session import Session
from loopkit.session.verify import verify
from tests.logs.make import replay, write
from tests.session.build import bodies_of, chained, create, digests, filled, group

ID = SessionId("lima")


def test_a_home_a_session_a_directory_and_a_list(tmp_path: Path) -> None:
    with filled(tmp_path) as session, create(tmp_path, "rome") as other:
        counts = {"home": (2, 5, 25), "one": (1, 5, 24)}
        for what, (sessions, requests, records) in (
            (tmp_path, counts["home"]),
            (str(tmp_path), counts["home"]),
            ([session, other.dir], counts["home"]),
            (session, counts["one"]),
            (session.dir, counts["one"]),
        ):
            result = verify(what)  # type: ignore[arg-type]
            assert result.ok
            assert (result.sessions, result.requests, result.records) == (sessions, requests, records)


def test_a_path_that_is_no_home_and_no_session_is_told_what_it_is(tmp_path: Path) -> None:
    log = create(tmp_path).dir / "0.jsonl"
    (tmp_path / "empty").mkdir()
    for path, why in (
        (tmp_path / "nowhere", "does not exist"),
        (tmp_path / "empty", "is neither a home (it has no sessions/) nor a session (it has no 0.jsonl)"),
        (log, "is a file, but a session is a directory"),
    ):
        with pytest.raises(SessionNotFound) as caught:
            verify(path)
        assert str(caught.value).startswith(f"no session found: {path} {why}. ")


@pytest.mark.parametrize("folder", ["replays", "recordings"])
def test_a_folder_of_a_home_names_the_home_to_give(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / folder / "x.jsonl", replay("live_system", 3))
    monkeypatch.chdir(tmp_path / folder)
    for path in (tmp_path / folder, Path()):
        with pytest.raises(SessionNotFound) as caught:
            verify(path)
        why = f"contains {folder} but no sessions. Give the home: {tmp_path}"
        assert str(caught.value) == f"no session found: {path} {why}"


@pytest.mark.parametrize("what", [5, None, b"runs", [None], object()])
def test_what_is_no_path_is_named(what: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"what: it must be a path or a Session; got"):
        verify(what)


def test_one_changed_character_names_file_and_line(tmp_path: Path) -> None:
    with filled(tmp_path) as session:
        path = session.dir / "0.jsonl"
    data = path.read_bytes()
    for line, text in enumerate(data.split(b"\n")[:-1], 1):
        at = data.index(text) + text.index(b'"time":"20') + 9
        path.write_bytes(data[:at] + b"1" + data[at + 1 :])
        with pytest.raises(TornLog) as caught:
            Session.open(tmp_path, ID)
        assert (caught.value.path, caught.value.line) == (str(path), line)
        assert [(fault.path, fault.line) for fault in verify(tmp_path).faults] == [(str(path), line)]
    path.write_bytes(data)
    assert verify(tmp_path).ok


def test_one_changed_character_in_a_baseline_names_file_and_hashes(tmp_path: Path) -> None:
    with filled(tmp_path) as session:
        path = session.dir / "1.baseline.json"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"kind", b"fond"))
    (fault,) = verify(tmp_path).faults
    with pytest.raises(BaselineMismatch) as caught:
        Session.open(tmp_path, ID)
    assert fault.path == str(path)
    assert caught.value.expected in fault.why
    assert caught.value.found in fault.why
    path.unlink()
    (fault,) = verify(tmp_path).faults
    assert fault.path == str(path)


def test_a_record_edited_with_a_right_crc_is_found_by_the_request(tmp_path: Path) -> None:
    """What a person's editor cannot do, a script can: the crc is right, but the request is not the one that was sent."""
    with create(tmp_path) as session:
        for number in range(4):
            session.extend(group(session, f"question {number}"))
        path = session.dir / "0.jsonl"
    bodies = bodies_of(path.read_bytes())
    bodies[4] = bodies[4].replace(b"question 1", b"question 7")
    path.write_bytes(chained(bodies))
    assert len(Session.read(tmp_path, ID).records) == 13
    (fault,) = verify(tmp_path).faults
    data = path.read_bytes()
    assert (fault.path, fault.line) == (str(path), 7)
    assert fault.offset == sum(len(line) + 1 for line in data.split(b"\n")[:6])
    assert "request 2" in fault.why


def test_another_recorded_size_is_found(tmp_path: Path) -> None:
    with create(tmp_path) as session:
        session.extend(group(session, "Hi."))
        size = next(session.requests()).size
        path = session.dir / "0.jsonl"
    bodies = bodies_of(path.read_bytes())
    bodies[3] = bodies[3].replace(b'"request_bytes":%d' % size, b'"request_bytes":%d' % (size + 1))
    path.write_bytes(chained(bodies))
    assert [fault.line for fault in verify(tmp_path).faults] == [4]


def test_an_encoder_that_changed_since_makes_verify_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path).close()

    def spaced(message: ChatMessage) -> bytes:
        return encode_message(message).replace(b'":"', b'": "', 1)

    assert verify(tmp_path).ok
    monkeypatch.setattr(loopkit.contract.request, "encode_message", spaced)
    assert [(Path(fault.path).name, fault.line) for fault in verify(tmp_path).faults] == [("0.jsonl", 4), ("1.jsonl", 8)]


def test_every_fault_is_found_not_only_the_first(tmp_path: Path) -> None:
    with filled(tmp_path) as session:
        directory = session.dir
    create(tmp_path, "rome").close()
    first, second = directory / "0.jsonl", directory / "1.jsonl"
    lines = first.read_bytes().split(b"\n")
    lines[1] = lines[1].replace(b"light", b"night")
    lines[4] = lines[4].replace(b"07:31", b"07:30", 1)
    lines.insert(8, b"")
    first.write_bytes(b"\n".join(lines))
    second.write_bytes(second.read_bytes()[:-1])
    (directory / "1.baseline.json").unlink()
    (tmp_path / "sessions" / "rome" / "0.jsonl").unlink()
    before = digests(directory)
    result = verify(tmp_path)
    assert not result.ok
    assert sorted((Path(fault.path).name, fault.line or 0) for fault in result.faults) == [
        ("0.jsonl", 2),
        ("0.jsonl", 5),
        ("0.jsonl", 9),
        ("1.baseline.json", 0),
        ("1.jsonl", 11),
        ("rome", 0),
    ]
    assert digests(directory) == before
    assert "faults 6" in repr(result)
    assert "fault 6" in result._repr_html_()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_line_lost_doubled_or_moved_is_seen_(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    home = tmp_path_factory.mktemp("home")
    with create(home) as session:
        for number in range(3):
            session.extend(group(session, f"{number}?"))
        path = session.dir / "0.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1]
    at = data.draw(st.integers(0, len(lines) - 1))
    kind = data.draw(st.sampled_from(["lost", "doubled", "moved"]))
    if kind == "moved":
        other = data.draw(st.integers(0, len(lines) - 1).filter(lambda n: n != at))
        lines.insert(other, lines.pop(at))
    else:
        lines[at : at + 1] = [] if kind == "lost" else [lines[at]] * 2
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    with pytest.raises(TornLog) as caught:
        Session.open(home, ID)
    assert caught.value.path == str(path)
    assert verify(home).faults[0][:2] == (str(path), caught.value.line)


def test_the_replays_of_a_home_are_checked_by_line(tmp_path: Path) -> None:
    create(tmp_path).close()
    path = write(tmp_path / "replays/x.jsonl", replay("live_system", 3))
    whole = path.read_bytes()
    found = verify(tmp_path)
    assert (found.ok, found.replays, found.recordings, found.lines) == (True, 1, 0, 3)
    assert repr(found) == "Verified: sessions 1, records 1, requests 0, replays 1, lines 3, faults 0"
    bodies = bodies_of(whole)
    for left, line, why in [
        (b"", 1, "there is no whole record"),
        (whole[:-1], 3, "the last line does not end in a line feed"),
        (chained([bodies[0], bodies[1].replace(b"-11-30T", b"-02-30T")]), 2, "is not a Timestamp"),
        (chained([bodies[0].replace(b"replay", b"replax", 1)]), 1, "Invalid value"),
        (whole.replace(b'"request":2', b'"request":4'), 2, "its crc is"),
    ]:
        path.write_bytes(left)
        (fault,) = verify(tmp_path).faults
        assert (fault.path, fault.line, why in fault.why) == (str(path), line, True)
    path.unlink()
    path.mkdir()
    (fault,) = verify(tmp_path).faults
    assert str(fault) == f"{path}: cannot read: it is not a regular file"
