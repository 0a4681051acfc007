"""Lines checked many at once, against the journal, which checks one after the other: the same lines, the same fault."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from loopkit.contract.records import LogRecord, encode_record
from loopkit.encoding import crc32
from loopkit.errors import TornLog
from loopkit.logs.own import checksums
from loopkit.logs.own.checksums import SLACK, Lines, sound_lines
from loopkit.logs.own.headers import parse_headers
from loopkit.session.journal import body_of, checked_blocks, close_line
from tests.logs.make import assistant, closed, end, loss, result, start, usage, user

RECORDS: list[LogRecord] = [
    start("a"),
    user(1, "naïve café"),
    assistant(2, call="c1"),
    usage(3, 1, 1000, 0),
    loss(4, 1, expected=900, cached=0),
    result(5, 1, "c1", "x"),
    end(6),
]
BODIES = [encode_record(record)[:-1] for record in RECORDS]
BLOCKS = [1, 64, 300, 1 << 21]


class Found(NamedTuple):
    bodies: list[bytes]
    fault: tuple[int, int, str, bool] | None


def one_by_one(path: Path) -> Iterator[bytes]:
    return (body_of(line) for block in checked_blocks(path) for line in block.lines)


def many_at_once(path: Path) -> Iterator[bytes]:
    number = 1
    for lines in sound_lines(path):
        assert lines.number == number
        number += lines.starts.size
        yield from map(bytes, lines.bodies(np.arange(lines.starts.size)))


def found(read: Iterator[bytes]) -> Found:
    bodies: list[bytes] = []
    try:
        bodies.extend(read)
    except TornLog as torn:
        return Found(bodies, (torn.line, torn.offset, torn.why, torn.at_end))
    return Found(bodies, None)


def same(path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch) -> Found:
    """What both find of these bytes, with blocks of many sizes."""
    path.write_bytes(data)
    expected = found(one_by_one(path))
    for size in BLOCKS:
        monkeypatch.setattr(checksums, "BLOCK", size)
        assert found(many_at_once(path)) == expected, size
    return expected


def test_a_changed_byte_is_found_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = closed(BODIES)
    data = b"".join(made)
    begins = np.cumsum([0, *map(len, made)])
    chance = random.Random(7)
    for at in range(len(data)):
        for changed in (data[at] ^ 0x20, data[at] ^ 1 << chance.randrange(8), chance.choice(b"0123456789abcdef\n")):
            wrong = data[:at] + bytes([changed]) + data[at + 1 :]
            if wrong == data:
                continue
            bodies, fault = same(tmp_path / "0.jsonl", wrong, monkeypatch)
            assert fault is not None
            assert fault[0] == np.searchsorted(begins, at, side="right")
            assert bodies == BODIES[: fault[0] - 1]


def test_a_byte_or_a_line_lost_or_doubled_is_found_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = closed(BODIES)
    data, path = b"".join(made), tmp_path / "0.jsonl"
    for at in range(len(data)):
        assert same(path, data[:at] + data[at + 1 :], monkeypatch).fault
        assert same(path, data[:at] + data[at : at + 1] + data[at:], monkeypatch).fault
    for at in range(len(made)):
        assert same(path, b"".join(made[:at] + made[at + 1 :]), monkeypatch).fault or at == len(made) - 1
        assert same(path, b"".join(made[: at + 1] + made[at:]), monkeypatch).fault


def test_lines_in_any_other_order_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = closed(BODIES[:4])
    for order in permutations(made):
        _, fault = same(tmp_path / "0.jsonl", b"".join(order), monkeypatch)
        assert (fault is None) == (list(order) == made)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda line: line[:-11] + line[-11:-3].upper() + line[-3:],
        lambda line: line[:-1] + b"\r\n",
        lambda line: line[:-2] + b" }\n",
        lambda line: line[:-19] + b' ,"crc":' + line[-12:],
        lambda line: b"\n" + line,
        lambda line: line + b"\n\n\n",
        lambda line: b"\0" * 100 + line,
        lambda line: b"\xef\xbb\xbf" + line,
        lambda line: line[-19:],
        lambda line: line[-10:],
        lambda line: b"x\n",
        lambda line: line[:-1],
        lambda line: line[: len(line) // 2],
        lambda line: b"",
    ],
)
@pytest.mark.parametrize("at", [0, 3, 6])
def test_a_line_in_another_form_is_told_as_the_journal_does(
    wrong: Callable[[bytes], bytes], at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = closed([*BODIES[:6], b'{"crc":"abcdefab"'])
    assert made[6][-12:-3] != made[6][-12:-3].upper()
    made[at] = wrong(made[at])
    assert same(tmp_path / "0.jsonl", b"".join(made), monkeypatch).fault or (at, made[at]) == (6, b"")


def test_damage_of_several_lines_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(11)
    data = b"".join(closed(BODIES))
    for _ in range(300):
        wrong = bytearray(data)
        for _ in range(chance.randrange(2, 9)):
            wrong[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        assert same(tmp_path / "0.jsonl", bytes(wrong), monkeypatch).fault or wrong == data


@pytest.mark.parametrize("inside", [b"\n", b"\n\n", b'{"a":1\n', b'{"a":"\n\n"', b'{"a":1,"crc":"00000000"}\n', b'"}\n"}\n'])
def test_a_line_feed_in_a_record_ends_the_line_whatever_the_crc_says(
    inside: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for length in range(16):
        lines = closed([b'{"a":"%b"' % (b"x" * length), inside, BODIES[1]])
        assert same(tmp_path / "0.jsonl", b"".join(lines), monkeypatch).fault


def test_another_name_than_crc_is_seen_where_the_crc_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = closed(BODIES[:2])
    for junk in (b"abcd", b',"CR', b"\0\0\0\0"):
        value, name = int(first[-11:-3], 16), first[-19:-11]
        rest = crc32(junk, value) ^ crc32(name[:4], value) ^ int.from_bytes(name[4:], "little")
        forged = first[:-19] + junk + rest.to_bytes(4, "little") + first[-11:]
        assert crc32(forged) == crc32(first)
        assert same(tmp_path / "0.jsonl", forged + second, monkeypatch) != Found(BODIES[:2], None)


@pytest.mark.parametrize(("close", "change"), [(b"xx\n", 0xBDE273BE), (b'"]\n', 0x978D5388), (b"\n\nx", 0xEDDEFA8D)])
def test_another_close_is_seen_where_other_digits_make_up_for_it(
    close: bytes, change: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for length in range(8):
        first, second, third = closed([BODIES[0], b'{"a":"%b"' % (b"x" * length), BODIES[1]])
        value = int(second[-11:-3], 16)
        other = close_line(b"", value ^ change)[0]
        forged = other[:-3] + close
        assert crc32(forged, value) ^ crc32(other, value ^ change) == change
        _, fault = same(tmp_path / "0.jsonl", b"".join([first, second[:-19], forged, third]), monkeypatch)
        assert fault is not None
        assert fault[0] == 2


def test_sound_lines_of_every_length_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a record says what the end of a line says."""
    bodies = [b'{"a":"%s"' % (b"x" * length) for length in (*range(80), 300, 1000, 5000, 0)]
    bodies += [b'{"a":{"b":1,"crc":"00000000"}', b"", b'{"a":"\\u2028\r\xe2\x80\xa8\xc2\x85\x0b\x0c"']
    assert same(tmp_path / "0.jsonl", b"".join(closed(bodies)), monkeypatch) == Found(bodies, None)
    assert same(tmp_path / "0.jsonl", b"", monkeypatch) == Found([], None)


def test_a_sound_log_is_not_read_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError

    path = tmp_path / "0.jsonl"
    path.write_bytes(b"".join(closed(BODIES * 50)))
    monkeypatch.setattr(checksums, "checked_blocks", never)
    for size in BLOCKS:
        monkeypatch.setattr(checksums, "BLOCK", size)
        assert found(many_at_once(path)) == Found(BODIES * 50, None)


def test_what_is_appended_while_it_is_read_is_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = closed(BODIES)
    path = tmp_path / "0.jsonl"
    path.write_bytes(made[0])
    reading = sound_lines(path)
    assert next(reading).number == 1
    with path.open("ab") as file:
        file.write(b"".join(made[1:]))
    assert sum(lines.starts.size for lines in reading) == len(made) - 1


def _lines(bodies: list[bytes]) -> Lines:
    made = closed(bodies)
    ends = np.cumsum(list(map(len, made)))
    return Lines(1, b"".join(made) + bytes(SLACK), np.append(0, ends[:-1]), ends - 19)


def test_a_head_that_is_none_is_told_wherever_it_is_wrong() -> None:
    kinds, times = parse_headers(_lines(BODIES))
    assert kinds.tobytes() == b"suaglte"
    assert [moment.decode() for moment in times.tolist()] == [record.time for record in RECORDS]
    for index, body in enumerate(BODIES):
        length = body.index(b'"time":"') + len(b'"time":"')
        wrong = [body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :] for at in range(length)]
        wrong += [body[:at] + b" " + body[at:] for at in range(length)] + [body[:at] for at in range(length)]
        kinds, _ = parse_headers(_lines([line for each in wrong for line in (BODIES[0], each, BODIES[index])]))
        assert kinds[1::3].tolist() == [0] * len(wrong)
        assert kinds[0::3].all()
        assert kinds[2::3].all()


def test_a_line_shorter_than_a_head_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of what is in memory, too; the crc of some has the letter by which an epoch's end is told."""
    path = tmp_path / "0.jsonl"
    for size in BLOCKS:
        monkeypatch.setattr(checksums, "BLOCK", size)
        for number in range(64):
            for short in (b"", b"x"):
                path.write_bytes(b"".join(closed([b"%d" % number, short])))
                assert not any(parse_headers(lines)[0].any() for lines in sound_lines(path))
