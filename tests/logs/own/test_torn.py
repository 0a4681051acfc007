"""A torn log is refused with file and line; one that is being written is read up to its last whole group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopkit.contract.records import LogRecord
from loopkit.encoding import sha256
from loopkit.errors import SessionIOError, TornLog
from loopkit.logs.loading import load
from loopkit.logs.own import epoch_reader
from loopkit.logs.own.checksums import Lines
from loopkit.logs.own.epoch_reader import GROUPS
from loopkit.logs.own.headers import Headers, parse_headers
from loopkit.session.disk import DirectoryLock
from loopkit.session.journal import body_of, close_line
from tests.logs.make import assistant, closed, end, kept, loss, replay, result, start, usage, user, write, write_session

WHOLE: list[LogRecord] = [
    start("a"),
    user(1),
    assistant(2, call="c1"),
    usage(2, 1, 1000, 0),
    result(3, 1, "c1"),
    assistant(5),
    usage(5, 2, 1100, 0, expected=1004),
    loss(5, 2, expected=1004, cached=0),
    user(6),
    assistant(7),
    usage(7, 3, 1200, 1104, expected=1104),
]


@contextmanager
def being_written(directory: Path) -> Iterator[None]:
    lock = DirectoryLock(directory)
    try:
        yield
    finally:
        lock.release()


def log_of(home: Path, records: Iterable[LogRecord]) -> Path:
    return write_session(home, "a", records) / "0.jsonl"


def again(path: Path, at: int, right: bytes, wrong: bytes) -> None:
    """Write a line in another way, as another writer might: its ``crc`` is right."""
    crc, made = 0, b""
    for index, line in enumerate(path.read_bytes().splitlines()):
        closed, crc = close_line(line[:-18].replace(right, wrong) if index == at else line[:-18], crc)
        made += closed
    path.write_bytes(made)


def refusal(path: Path) -> str:
    before = sha256(path.read_bytes())
    with pytest.raises(TornLog) as caught:
        load(path)
    assert sha256(path.read_bytes()) == before
    assert caught.value.path == str(path)
    assert sum(map(len, path.read_bytes().splitlines(keepends=True)[: caught.value.line - 1])) <= caught.value.offset
    assert ("loopkit salvage" in str(caught.value)) == (caught.value.line > 1), "only where something stands before it"
    assert 'errors="report"' in str(caught.value)
    return f"{caught.value.line}: {caught.value.why}"


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([], "1: there is no whole record"),
        (WHOLE[1:], "1: the first record is not a session_start"),
        ([start("b")], "1: it belongs to epoch 0 of session b, which does not match the path"),
        ([start("a", 1)], "1: it belongs to epoch 1 of session a, which does not match the path"),
        (WHOLE[:2], "2: the last group of records is unfinished"),
        (WHOLE[:3], "2: the last group of records is unfinished"),
        (WHOLE[:6], "6: the last group of records is unfinished"),
        ([*WHOLE[:4], WHOLE[3]], "5: a record of this kind must not follow here"),
        ([*WHOLE[:4], start("a")], "5: a record of this kind must not follow here"),
        ([*WHOLE[:1], result(1, 1, "c")], "2: a record of this kind must not follow here"),
        ([*WHOLE[:1], user(1), user(2)], "3: a record of this kind must not follow here"),
        ([*WHOLE[:7], *WHOLE[7:8], *WHOLE[7:8]], "9: a record of this kind must not follow here"),
        ([*WHOLE, end(9), user(10)], "13: a record of this kind must not follow here"),
        ([start("a", carried=3), *kept(1)], "4: 3 carried records should follow the session_start, not 2"),
        ([start("a", carried=2), user(1)], "3: 2 carried records should follow the session_start, not 1"),
    ],
)
def test_a_wrong_order_is_refused(records: list[LogRecord], why: str, tmp_path: Path) -> None:
    path = tmp_path / "sessions/a/0.jsonl"
    log_of(tmp_path, records)
    assert refusal(path) == why


def test_a_record_that_is_none_is_refused(tmp_path: Path) -> None:
    path = log_of(tmp_path, [])
    for body, why in [
        (b'{"kind":"guess","time":"2026-11-30T00:00:00.000000Z"', "it does not begin with a known kind and a time"),
        (b'{"time":"2026-11-30T00:00:00.000000Z","kind":"user"', "it does not begin with a known kind and a time"),
        (b'{"kind":"session_start","time":"2026-11-30T00:00:00.000000Z"', "Object missing required field"),
        (b'{"kind":"usage","time":"2026-11-30T00:00:00.000000Z","request":-1', "Expected `int` >= 1"),
        (b'{"kind":"epoch_end","tint":"2026-11-30T00:00:00.000000Z"', "it does not begin with a known kind and a time"),
        (b'{"kind":"epoch_end","time":"2026-11-30T00:00:00.000000Z","tint":1', "unknown field `tint`"),
    ]:
        path.write_bytes(close_line(body, 0)[0])
        assert why in refusal(path)


def test_the_faulty_line_among_many_is_named(tmp_path: Path) -> None:
    """Lines are decoded many at once; the message is still about one."""
    path = log_of(tmp_path, [start("a"), *kept(2000)])
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(index for index, line in enumerate(lines) if b'"request":1500,' in line)
    crc, made = 0, b""
    for index, line in enumerate(lines):
        body = line[:-19].replace(b'"attempts":1', b'"attempts":0') if index == at else line[:-19]
        closed, crc = close_line(body, crc)
        made += closed
    path.write_bytes(made)
    assert refusal(path) == f"{at + 1}: Expected `int` >= 1 - at `$.attempts`"


def test_a_time_that_is_none_is_refused(tmp_path: Path) -> None:
    """Where a frame holds it; an assistant's stands in none."""
    path = log_of(tmp_path, WHOLE)
    whole = path.read_bytes()
    wrongs = (b"-11-30T", b"-02-30T"), (b".000000Z", b".0+0000Z"), (b".000000Z", b".000000z"), (b'"2026-', b'"0000-')
    for right, wrong in wrongs:
        for at in (0, 1, 3, 6, 7, 8, 10):
            path.write_bytes(whole)
            again(path, at, right, wrong)
            assert refusal(path) == f"{at + 1}: its timestamp is invalid"


@pytest.mark.parametrize("at", [0, 3, 7])
def test_a_time_that_is_told_twice_is_refused_where_it_is_none(at: int, tmp_path: Path) -> None:
    path = log_of(tmp_path, WHOLE)
    last = path.read_bytes().splitlines()[at][:-18].rpartition(b",")[2]
    again(path, at, last, last + b',"time":"2026-02-30T00:00:00.000000Z"')
    assert refusal(path) == f"{at + 1}: its timestamp is invalid"


@pytest.mark.parametrize(
    ("at", "right", "wrong"),
    [
        (2, b'"time":"2026-11-30', b'"time": "2026-02-30'),
        (2, b'"time":"2026-11-30', b'"t\\u0069me":"2026-02-30'),
        (1, b'"time":"2026-11-30', b'"time":"\\u0032026-02-30'),
    ],
)
def test_a_time_of_a_replay_that_is_none_is_refused_however_it_is_written(
    at: int, right: bytes, wrong: bytes, tmp_path: Path
) -> None:
    """The line before it is written in another way, too, but says a moment."""
    write_session(tmp_path, "a", WHOLE)
    path = write(tmp_path / "replays" / "r.jsonl", replay("live_system", 4))
    again(path, at - 1, b'"time":"', b'"time" : "')
    assert len(load(tmp_path).usage) == 7
    again(path, at, right, wrong)
    logs = load(tmp_path, errors="report")
    [problem] = logs.unread
    assert problem.line == at + 1
    assert len(logs.usage) == 3 + at


@pytest.mark.parametrize("changed", [b"", None])
@pytest.mark.parametrize("wrong", [b'"attempts":0', b'"attempts":1,"time":"2026-02-30T00:00:00.000000Z"'])
def test_a_log_that_goes_while_it_is_read_makes_no_other_error(
    wrong: bytes, changed: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = log_of(tmp_path, WHOLE)
    again(path, 6, b'"attempts":1', wrong)
    whole = path.read_bytes()

    def going(lines: Lines) -> Headers:
        if changed is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(changed)
        return parse_headers(lines)

    monkeypatch.setattr(epoch_reader, "parse_headers", going)
    with pytest.raises((SessionIOError, TornLog)):
        load(path)
    path.write_bytes(whole)
    assert len(load(path, errors="report").unread) == 1


def test_a_line_that_ends_in_its_time_is_named(tmp_path: Path) -> None:
    path = log_of(tmp_path, WHOLE)
    again(path, 1, path.read_bytes().splitlines()[1][28:-18], b"")
    assert refusal(path) == "2: its timestamp is invalid"


def test_the_first_of_several_faults_is_raised(tmp_path: Path) -> None:
    """Though heads are looked at before anything is decoded, usage is before losses, and the order is checked last."""
    path = log_of(tmp_path, WHOLE)
    for at, right, wrong in (
        (10, b'{"kind"', b'{"kinf"'),
        (7, b'"cause"', b'"because"'),
        (6, b'"attempts":1', b'"attempts":0'),
        (3, b'"usage"', b'"tool_result"'),
        (0, b'"slot":0', b'"slot":-1'),
    ):
        again(path, at, right, wrong)
        assert refusal(path).startswith(f"{at + 1}: ")
        assert [problem.line for problem in load(path, errors="report").unread] == [at + 1]


@pytest.mark.parametrize("between", [b"}", b"} ", b"}\r"])
@pytest.mark.parametrize("at", [0, 3, 7])
def test_two_records_in_a_line_are_refused(at: int, between: bytes, tmp_path: Path) -> None:
    path = log_of(tmp_path, WHOLE)
    body = path.read_bytes().splitlines()[at][:-18]
    again(path, at, body, body + between + body)
    assert refusal(path).startswith(f"{at + 1}: JSON is malformed: trailing characters")
    assert [problem.line for problem in load(path, errors="report").unread] == [at + 1]


REPORTED = [b"[1]", b"null", b'{"a":"\xff"}', b'{"a":1e400}', b'{"a":' + b"9" * 5000 + b"}"]


@pytest.mark.parametrize("reported", REPORTED)
def test_a_report_that_is_no_object_is_refused(reported: bytes, tmp_path: Path) -> None:
    path = log_of(tmp_path, WHOLE)
    again(path, 6, b',"finish_reason"', b',"reported":' + reported + b',"finish_reason"')
    assert refusal(path).startswith("7: reported: ")
    logs = load(path, errors="report")
    assert [problem.line for problem in logs.unread] == [7]
    assert len(logs.usage) == 1


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (b'{"kind"', b' {"kind"'),
        (b'"engine":"llama.cpp"', b'"engine":"llama.cpp","x":1'),
        *((b',"finish_reason"', b',"reported":' + reported + b',"finish_reason"') for reported in REPORTED),
    ],
)
def test_a_line_of_a_replay_in_another_form_is_refused(right: bytes, wrong: bytes, tmp_path: Path) -> None:
    path = write(tmp_path / "replays" / "r.jsonl", replay("x", 3, broken=True))
    again(path, 1, right, wrong)
    with pytest.raises(TornLog, match=r"r\.jsonl:2: "):
        load(path)
    logs = load(path, errors="report")
    assert [problem.line for problem in logs.unread] == [2]
    assert len(logs.usage) == 1


def test_records_of_a_replay_that_do_not_end_with_their_lines_are_refused(tmp_path: Path) -> None:
    """Where there are as many of them as there are lines, too."""
    path = write(tmp_path / "replays" / "r.jsonl", replay("x", 3, broken=True))
    first, second, third = (body_of(line) for line in path.read_bytes().splitlines(keepends=True))
    begin, rest = second.split(b"}", 1)
    for bodies in ([first + b"}" + second, third], [first + b"}" + begin, rest, third]):
        path.write_bytes(b"".join(closed(bodies)))
        with pytest.raises(TornLog, match=r"r\.jsonl:[12]: "):
            load(path)
        load(path, errors="report")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_changed_byte_is_refused(data: st.DataObject, tmp_path: Path) -> None:
    path = log_of(tmp_path, WHOLE)
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != whole[at]))
    path.write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
    with pytest.raises(TornLog, match=r"0\.jsonl:\d+: "):
        load(path)


def test_a_session_being_written_is_read_up_to_its_last_whole_group(tmp_path: Path) -> None:
    """Cut at every byte: with a writer at work no complaint, without one a refusal except between groups."""
    path = log_of(tmp_path, WHOLE)
    whole = path.read_bytes()
    ends = [0]
    for line in whole.splitlines(keepends=True):
        ends.append(ends[-1] + len(line))
    sound = {1: 0, 4: 1, 5: 1, 7: 2, 8: 2, 11: 3}
    "Lines at which a group is whole → requests."
    with being_written(path.parent):
        for cut in range(0, len(whole) + 1, 7):
            path.write_bytes(whole[:cut])
            lines = max(index for index, at in enumerate(ends) if at <= cut)
            logs = load(path, errors="report")
            assert logs.unread == ()
            requests = next((sound[index] for index in range(lines, 0, -1) if index in sound), 0)
            assert len(logs.usage) == requests
            assert len(logs.sessions) == (lines > 0)
            assert logs.turns["requests"].sum() == requests
            assert (logs.turns["elapsed_ms"] > 0).all()
    for index, at in enumerate(ends):
        path.write_bytes(whole[:at])
        if index in sound:
            assert len(load(path).usage) == sound[index]
        else:
            refusal(path)


def test_a_fault_before_the_end_is_refused_even_while_written(tmp_path: Path) -> None:
    path = log_of(tmp_path, WHOLE)
    whole = path.read_bytes()
    path.write_bytes(whole[:300] + b"X" + whole[301:])
    with being_written(path.parent):
        refusal(path)
        assert [problem.line for problem in load(path, errors="report").unread] == [1]
        path.write_bytes(path.read_bytes()[:-5])
        assert [problem.line for problem in load(path, errors="report").unread] == [1], "the writer is at the last line"
    assert [problem.line for problem in load(path, errors="report").unread] == [1, 11]


def test_a_session_in_the_making_has_no_rows(tmp_path: Path) -> None:
    directory = write_session(tmp_path, "a")
    directory.mkdir(parents=True)
    with being_written(directory):
        assert len(load(tmp_path).sessions) == 0
    with being_written(directory):
        (directory / "0.jsonl").touch()
        assert len(load(tmp_path).sessions) == 0


def test_the_order_of_a_long_log_is_checked_without_memory() -> None:
    kinds = b"uagl" + b"uagttag" * 100_000
    match = GROUPS.match(kinds)
    assert match is not None
    assert match.end() == len(kinds)
