"""Every state that a crash, a disk or an editor leaves a log in: refused with file, line and byte, and left as it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from loopkit.contract.records import SessionStart
from loopkit.encoding import encode
from loopkit.errors import SessionIOError, SessionNotFound, TornLog
from loopkit.ids import SessionId
from loopkit.session.session import Session
from loopkit.session.verify import verify
from tests.session.build import bodies_of, chained, create, digests, filled, group, result

ID = SessionId("lima")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A sound log of 7 lines: session_start, a whole group of 3, its 2 results, and the next group's 3."""
    with create(tmp_path) as session:
        session.extend(group(session, "Is it light in é?", None, ids=["a", "b"]))
        session.append(result(1, "a"))
        session.append(result(2, "b", "07:32 é 😀"))
        session.extend(group(session, None))
        return session.dir / "0.jsonl"


def lines(data: bytes) -> list[bytes]:
    return data.split(b"\n")[:-1]


def joined(parts: list[bytes]) -> bytes:
    return b"".join(part + b"\n" for part in parts)


def offset(data: bytes, line: int) -> int:
    return sum(len(part) + 1 for part in lines(data)[: line - 1])


def rechained(data: bytes, line: int, edit: Callable[[bytes], bytes]) -> bytes:
    """Edit one line's body and give every line the right crc again: what only the record's own checks can see."""
    bodies = bodies_of(data)
    bodies[line - 1] = edit(bodies[line - 1])
    return chained(bodies)


def in_capitals(crc: bytes) -> bytes:
    """Write hex digits with at least one capital letter: about 1 CRC in 50 has no letter of its own."""
    return crc.upper() if crc.upper() != crc else b"A" + crc[1:]


# name → (damage, line of the fault, byte behind the start of that line or None where the start of the file's text counts, why)
DAMAGE: dict[str, tuple[Callable[[bytes], bytes], int, int, str]] = {
    "no final line feed though the JSON is whole": (lambda d: d[:-1], 8, 0, "line feed, but is otherwise whole"),
    "a day in no calendar": (lambda d: rechained(d, 3, lambda b: b.replace(b"-11-30T", b"-02-30T")), 3, 0, "is not a Timestamp"),
    "cut in mid-record": (lambda d: d[:-40], 8, 0, "line feed: not a record"),
    "cut inside a UTF-8 sequence": (lambda d: d[: d.index("😀".encode()) + 2], 6, -1, "not UTF-8"),
    "an empty line in the middle": (lambda d: joined([*lines(d)[:3], b"", *lines(d)[3:]]), 4, 0, "an empty line"),
    "an empty line at the end": (lambda d: d + b"\n", 9, 0, "an empty line"),
    "a blank line": (lambda d: joined([*lines(d)[:3], b" \t ", *lines(d)[3:]]), 4, 0, "a blank line of 3 bytes"),
    "NULs in the middle": (lambda d: joined([*lines(d)[:3], b"\x00" * 512, *lines(d)[3:]]), 4, 0, "512 NUL bytes"),
    "NULs in a line": (lambda d: d.replace(b"light", b"\0" * 5), 2, -1, "5 NUL bytes"),
    "NULs at the end": (lambda d: d + b"\0" * 143_000, 9, 0, "143000 NUL bytes"),
    "NULs over the end": (lambda d: d[:-100] + b"\0" * 100, 8, -1, "100 NUL bytes"),
    "a BOM": (lambda d: b"\xef\xbb\xbf" + d, 1, 0, "BOM"),
    "CRLF": (lambda d: d.replace(b"\n", b"\r\n"), 1, -1, "CRLF"),
    "CRLF on one line": (lambda d: joined([*lines(d)[:3], lines(d)[3] + b"\r", *lines(d)[4:]]), 4, -1, "CRLF"),
    "a zero-byte log": (lambda d: b"", 1, 0, "empty"),
    "an epoch without a whole session_start": (lambda d: d[:100], 1, 0, "line feed: not a record"),
    "an unfinished group: user": (lambda d: joined(lines(d)[:2]), 2, -1, "an assistant record comes next"),
    "an unfinished group: assistant": (lambda d: joined(lines(d)[:3]), 3, -1, "a usage record comes next"),
    "no session_start": (lambda d: chained(bodies_of(d)[1:]), 1, 0, "session_start comes first"),
    "two session_starts": (lambda d: chained(bodies_of(d)[:1] + bodies_of(d)), 2, 0, "the first record of a log, and only"),
    "JSON nested 100,000 deep": (lambda d: d + b"[" * 100_000 + b"\n", 9, 0, "nested too deep"),
    "JSON nested 100,000 deep, with a crc": (
        lambda d: rechained(d, 3, lambda b: b + b',"x":' + b"[" * 100_000 + b"]" * 100_000),
        3,
        0,
        "not a record",
    ),
    "nested deep in a raw part": (
        lambda d: rechained(d, 3, lambda b: b[: b.index(b'"tool_calls":') + 13] + b"[" * 100_000 + b"]" * 100_000),
        3,
        0,
        "",
    ),
    "nested deep in free JSON": (
        lambda d: rechained(d, 1, lambda b: b.replace(b'"seed":7', b'"seed":' + b"[" * 100_000 + b"]" * 100_000)),
        1,
        0,
        "nested too deep",
    ),
    "a 5,000-digit number": (lambda d: d + b'{"n":' + b"1" * 5000 + b"}\n", 9, 0, "not a record"),
    "a 5,000-digit number, with a crc": (
        lambda d: rechained(d, 1, lambda b: b.replace(b'"seed":7', b'"seed":' + b"7" * 5000)),
        1,
        0,
        "",
    ),
    "an integer beyond 64 bits": (
        lambda d: rechained(d, 1, lambda b: b.replace(b'"seed":7', b'"seed":7' + b"0" * 30)),
        1,
        0,
        "64",
    ),
    "a number out of range": (lambda d: rechained(d, 1, lambda b: b.replace(b'"seed":7', b'"seed":1e999')), 1, 0, "range"),
    "NaN": (lambda d: rechained(d, 4, lambda b: b.replace(b":40.0", b":NaN")), 4, 0, "not a record"),
    "an unknown member": (lambda d: rechained(d, 2, lambda b: b + b',"note":1'), 2, 0, "unknown field"),
    "an unknown kind": (lambda d: rechained(d, 2, lambda b: b.replace(b'"user"', b'"note"', 1)), 2, 0, "not a record"),
    "a missing member": (lambda d: rechained(d, 6, lambda b: b.replace(b'"truncated":false,', b"")), 6, 0, "truncated"),
    "a wrong type": (lambda d: rechained(d, 6, lambda b: b.replace(b":false", b":0")), 6, 0, "bool"),
    "another format": (lambda d: rechained(d, 1, lambda b: b.replace(b'"format":1', b'"format":2')), 1, 0, "format"),
    "a doubled key": (
        lambda d: rechained(d, 2, lambda b: b + b',"content":"Is it light in \xc3\xa9?"'),
        2,
        0,
        "not in the form that",
    ),
    "a doubled key in free JSON": (
        lambda d: rechained(d, 1, lambda b: b.replace(b'"seed":7', b'"seed":7,"seed":7')),
        1,
        0,
        "not in the form that",
    ),
    "another key order": (
        lambda d: rechained(d, 6, lambda b: b.replace(b'"truncated":false,"status":"ok"', b'"status":"ok","truncated":false')),
        6,
        0,
        "not in the form that",
    ),
    "white space": (lambda d: rechained(d, 2, lambda b: b.replace(b'"content":', b'"content": ')), 2, 0, "not in the form that"),
    "another form of a number": (
        lambda d: rechained(d, 4, lambda b: b.replace(b":40.0", b":4.0e1")),
        4,
        0,
        "not in the form that",
    ),
    "another escape": (lambda d: rechained(d, 2, lambda b: b.replace(b"light", b"\\u006cight")), 2, 0, "not in the form that"),
    "a time that is none": (lambda d: rechained(d, 2, lambda b: b.replace(b"-11-30T", b"-13-30T")), 2, 0, "Timestamp"),
    "a time with a 60th second": (lambda d: rechained(d, 2, lambda b: b.replace(b":05.", b":60.")), 2, 0, "Timestamp"),
    "a time with other digits": (
        lambda d: rechained(d, 2, lambda b: b.replace(b":05.000000Z", ":05.00000٠Z".encode())),
        2,
        0,
        "Timestamp",
    ),
    "bytes that are not UTF-8 in a raw part": (
        lambda d: rechained(d, 3, lambda b: b.replace(b'"type":"function"', b'"type":"\xff"', 1)),
        3,
        0,
        "utf-8",
    ),
    "tool_calls that are no calls": (
        lambda d: rechained(d, 3, lambda b: b[: b.index(b'"tool_calls":') + 13] + b"[1]"),
        3,
        0,
        "tool_calls",
    ),
    "a hash that is none": (lambda d: rechained(d, 4, lambda b: b.replace(b'sha256":"', b'sha256":"G', 1)), 4, 0, ""),
    "a hash with another digit": (
        lambda d: rechained(d, 4, lambda b: re.sub(rb'(sha256":")[0-9a-f]', rb"\1G", b)),
        4,
        0,
        "64 lowercase hex digits",
    ),
    "a baseline hash with another digit": (
        lambda d: rechained(d, 1, lambda b: re.sub(rb'(sha256":")[0-9a-f]', rb"\1G", b)),
        1,
        0,
        "64 lowercase hex digits",
    ),
    "another session's log": (lambda d: rechained(d, 1, lambda b: b.replace(b'"lima"', b'"rome"')), 1, 0, "rome"),
    "another epoch's log": (lambda d: rechained(d, 1, lambda b: b.replace(b'"epoch":0', b'"epoch":1')), 1, 0, "epoch is 1"),
    "half a record and another behind it": (lambda d: d[:-100] + lines(d)[1] + b"\n", 8, 0, ""),
    "a changed byte": (lambda d: d.replace(b"light", b"night"), 2, 0, "crc"),
    "a changed digit of a crc": (lambda d: d.replace(lines(d)[1][-10:-2], b"00000000", 1), 2, 0, "crc"),
    "a crc in capitals": (lambda d: d.replace(lines(d)[0][-10:-2], in_capitals(lines(d)[0][-10:-2]), 1), 1, 0, "hex digits"),
    "a line lost": (lambda d: joined(lines(d)[:4] + lines(d)[5:]), 5, 0, "lost, doubled or moved"),
    "a line doubled": (lambda d: joined(lines(d)[:5] + lines(d)[4:]), 6, 0, "lost, doubled or moved"),
    "a line moved": (lambda d: joined([*lines(d)[:4], lines(d)[5], lines(d)[4], *lines(d)[6:]]), 5, 0, "moved"),
    "the first line lost": (lambda d: joined(lines(d)[1:]), 1, 0, "lost, doubled or moved"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_torn_log_is_refused_with_the_line_number(log: Path, name: str) -> None:
    damage, line, behind, why = DAMAGE[name]
    data = damage(log.read_bytes())
    log.write_bytes(data)
    before = digests(log.parent)
    home = log.parents[2]
    for refuse in (Session.open, Session.read):
        with pytest.raises(TornLog) as caught:
            refuse(home, ID)
        error = caught.value
        assert (error.path, error.line) == (str(log), line)
        assert why in error.why
        assert str(error).startswith(f"{log}:{line}: ")
        assert f"(byte {error.offset} of the file)" in str(error)
        assert len(str(error)) < 1000
        assert (f"loopkit salvage {log.parent} --to" in str(error)) == (line > 1), "only where something stands before it"
        start = len(data) if line > data.count(b"\n") + 1 else offset(data + b"\n", line)
        assert error.offset == start if behind == 0 else start <= error.offset <= len(data)
    faults = verify(log.parent).faults
    assert [(fault.path, fault.line, fault.offset) for fault in faults][:1] == [(str(log), line, error.offset)]
    assert digests(log.parent) == before


def test_the_damage_of_the_table_damages_something_sound(log: Path) -> None:
    data = log.read_bytes()
    assert len(lines(data)) == 8
    Session.read(log.parents[2], ID)
    for name, (damage, *_) in DAMAGE.items():
        assert damage(data) != data, name


def test_where_an_exact_byte_is_known_it_is_named(log: Path) -> None:
    data = log.read_bytes()
    cut = data.index("😀".encode())
    log.write_bytes(data[: cut + 2])
    with pytest.raises(TornLog) as caught:
        Session.open(log.parents[2], ID)
    assert caught.value.offset == cut
    log.write_bytes(data.replace(b"light", b"\0" * 5))
    with pytest.raises(TornLog) as caught:
        Session.open(log.parents[2], ID)
    assert caught.value.offset == data.index(b"light")


def test_a_cut_at_a_record_boundary_is_an_earlier_state(log: Path) -> None:
    data = log.read_bytes()
    whole = Session.read(log.parents[2], ID).records
    for count in range(1, len(lines(data)) + 1):
        log.write_bytes(joined(lines(data)[:count]))
        if count in (2, 3, 7):
            with pytest.raises(TornLog, match="unfinished group"):
                Session.read(log.parents[2], ID)
        else:
            assert list(Session.read(log.parents[2], ID).records) == list(whole[:count])


def test_line_separators_and_a_lone_cr_are_content(tmp_path: Path) -> None:
    with filled(tmp_path) as session:
        before = list(session.epochs[0].records)
    assert "07:32\u2028\u0085\x0b é 😀" in repr(before) or any("\u2028" in str(getattr(r, "content", "")) for r in before)
    again = Session.read(tmp_path, ID)
    assert list(again.epochs[0].records) == before


def test_a_missing_log_is_no_session(tmp_path: Path) -> None:
    with pytest.raises(SessionNotFound, match=re.escape(str(tmp_path / "sessions" / "lima" / "0.jsonl"))):
        Session.open(tmp_path, ID)
    directory = tmp_path / "sessions" / "lima"
    directory.mkdir(parents=True)
    (directory / "0.baseline.json").write_bytes(b'{"system":"","tools":[]}')
    with pytest.raises(SessionNotFound, match=r"0\.jsonl does not exist"):
        Session.open(tmp_path, ID)


def test_a_missing_epoch_is_named(tmp_path: Path) -> None:
    with filled(tmp_path) as session:
        directory = session.dir
    (directory / "1.jsonl").rename(directory / "2.jsonl")
    with pytest.raises(TornLog, match=r"1\.jsonl:1: the file is missing, but 2\.jsonl exists"):
        Session.open(tmp_path, ID)


def test_an_epoch_behind_one_that_has_not_ended_is_refused(tmp_path: Path) -> None:
    with filled(tmp_path) as session:
        path = session.dir / "0.jsonl"
    path.write_bytes(joined(lines(path.read_bytes())[:-1]))
    with pytest.raises(TornLog, match=r"0\.jsonl:\d+: the epoch has no epoch_end record, but 1\.jsonl exists"):
        Session.open(tmp_path, ID)
    assert not verify(tmp_path).ok


def test_an_epoch_whose_opening_is_not_whole_is_refused(tmp_path: Path) -> None:
    with filled(tmp_path) as session:
        path = session.dir / "1.jsonl"
    data = path.read_bytes()
    for count in range(1, 5):
        path.write_bytes(joined(lines(data)[:count]))
        with pytest.raises(TornLog, match=r"announces as carried over are missing|result"):
            Session.open(tmp_path, ID)
    path.write_bytes(b"")
    with pytest.raises(TornLog, match=r"1\.jsonl:1: the log is empty"):
        Session.open(tmp_path, ID)


def test_a_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with create(tmp_path) as session:
        path = session.dir / "0.jsonl"
    path.unlink()
    path.mkdir()
    with pytest.raises(SessionIOError, match=re.escape(str(path))):
        Session.read(tmp_path, ID)


def test_two_records_on_one_line_and_a_record_over_two_are_refused(tmp_path: Path) -> None:
    """Each would pass a decoder that looks for values and not for lines."""
    with create(tmp_path) as session:
        session.extend(group(session, "abc,def"))
        path = session.dir / "0.jsonl"
    start, user, *rest = bodies_of(path.read_bytes())
    path.write_bytes(chained([start + b"}\n" + user, *rest]))
    with pytest.raises(TornLog):
        Session.read(tmp_path, ID)
    path.write_bytes(chained([start + b"}" + user, *rest]))
    with pytest.raises(TornLog):
        Session.read(tmp_path, ID)
    head, tail = user.split(b"abc,")
    path.write_bytes(chained([start + b"}" + head + b"abc", tail, *rest]))
    with pytest.raises(TornLog):
        Session.read(tmp_path, ID)


def test_a_record_of_a_block_is_named_by_its_own_line(tmp_path: Path) -> None:
    """Lines far into a log that is read in many blocks."""
    with create(tmp_path) as session:
        for number in range(300):
            session.extend(group(session, f"question {number} " + "x" * 500))
        path = session.dir / "0.jsonl"
    data = path.read_bytes()
    assert len(data) > 4 * (1 << 16)
    for line in (2, 300, 650, 899):
        bodies = bodies_of(data)
        bodies[line - 1] += b',"note":1'
        path.write_bytes(chained(bodies))
        with pytest.raises(TornLog) as caught:
            Session.read(tmp_path, ID)
        assert (caught.value.line, caught.value.offset) == (line, offset(path.read_bytes(), line))


def test_a_long_line_is_one_line(tmp_path: Path) -> None:
    with create(tmp_path) as session:
        session.extend(group(session, "é" * 3_000_000))
        session.extend(group(session, "short"))
        records = list(session.records)
    assert list(Session.read(tmp_path, ID).records) == records


def test_session_start_names_the_session_and_nothing_else_does(tmp_path: Path) -> None:
    with create(tmp_path) as session:
        start = session.records[0]
    assert isinstance(start, SessionStart)
    assert encode(start).startswith(b'{"kind":"session_start","time":"')
    (tmp_path / "sessions" / "lima").rename(tmp_path / "sessions" / "rome")
    with pytest.raises(TornLog, match=r"session_start\.session is 'lima', but the directory's session is 'rome'"):
        Session.open(tmp_path, SessionId("rome"))
