"""Files of other tools, line by line: each fault has its place, and all around it is read."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from loopkit.errors import SessionIOError, TornLog
from loopkit.logs.foreign import text_source
from loopkit.logs.foreign.text_source import TextSource

NUMBERS = msgspec.json.Decoder(dict[str, int])


def read(path: Path, data: bytes) -> tuple[list[dict[str, int]], list[tuple[int | None, int | None, str]]]:
    """What both ways of reading give, which must be the same."""
    path.write_bytes(data)
    found = []
    for placed in (False, True):
        source = TextSource(path, errors="report")
        values = [one for _, one in source.decode_with_lines(NUMBERS)] if placed else list(source.decode_lines(NUMBERS))
        found.append((values, [(problem.line, problem.offset, problem.why) for problem in source.problems]))
    assert found[0] == found[1]
    return found[0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b'{"a":1}\n{"a":2}\n', None),
        (b'\xef\xbb\xbf{"a":1}\n{"a":2}\n', None),
        (b'{"a":1}\r\n\r\n\n{"a":2}\r\n', None),
        (b'{"a":1}\n{"a":2}', None),
        (b'{"a":1}\n' + b"\0" * 512 + b'\n{"a":2}\n', (2, 8, "512 NUL bytes")),
        (b'{"a":1}\n{"a\0":2}\n{"a":2}\n', (2, 11, "1 NUL bytes")),
        (b'{"a":1}\n{"\xff":3}\n{"a":2}\n', (2, 8, "invalid UTF-8")),
        (b'\xef\xbb\xbf{"a":1}\n{"a":2}\n{"a":', (3, 19, "the last line is incomplete")),
        (b'{"a":1}\n{"a":2}\n{"\xe2\x82', (3, 16, "invalid UTF-8")),
        (b'{"a":1}\nnonsense\n{"a":2}\n', (2, 12, "cannot decode the line: JSON is malformed: invalid character")),
        (b'{"a":1}\n' + b"[" * 100_000 + b'\n{"a":2}\n', (2, 8, "cannot decode the line: Expected `object`, got `array`")),
        (
            b'{"a":1}\n{"a":' + b"9" * 5000 + b'}\n{"a":2}\n',
            (2, 8, "cannot decode the line: Expected `int`, got `float` - at `$[...]`"),
        ),
    ],
)
def test_what_is_sound_is_read_and_what_is_not_is_named(path: Path, data: bytes, problem: tuple[int, int, str] | None) -> None:
    values, problems = read(path, data)
    assert values == [{"a": 1}, {"a": 2}]
    assert [(line, offset) for line, offset, _ in problems] == ([] if problem is None else [problem[:2]])
    if problem is not None and "cannot decode" not in problem[2]:
        assert problems[0][2] == problem[2]


def test_a_line_is_split_at_its_line_feed_only(path: Path) -> None:
    source = TextSource(path, errors="raise")
    path.write_bytes('{"a\u2028b\u0085c\x0b\x0c\u2029":1}\n'.encode())
    assert len(list(source.lines())) == 1


def test_a_value_on_two_lines_is_none(path: Path) -> None:
    values, problems = read(path, b'{"a":1}\n{"a":\n7}\n{"a":2}{"a":3}\n{"a":4}\n')
    assert values == [{"a": 1}, {"a": 4}]
    assert [line for line, _, _ in problems] == [2, 3, 4]


def test_the_line_number_is_right_far_into_a_file(path: Path) -> None:
    good = b'{"a":1}\n'
    before = 3 * text_source.BLOCK // len(good)
    values, problems = read(path, good * before + b"{}}\n" + good * before)
    assert len(values) == 2 * before
    assert [(line, offset) for line, offset, _ in problems] == [(before + 1, before * len(good) + len("{}}"))]


@pytest.mark.parametrize("ended", [True, False])
def test_a_line_that_is_too_long_is_passed_over_in_bounded_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    monkeypatch.setattr(text_source, "BLOCK", 64)
    monkeypatch.setattr(text_source, "MAX_LINE_BYTES", 256)
    for length in (64, 200, 256, 257, 400, 2000):
        long = b'{"' + b"x" * length + b'":7}' + (b"\n" if ended else b"")
        values, problems = read(path, b'{"a":1}\n' + long + (b'{"a":2}\n{"a":3}\n' if ended else b""))
        taken = [{"a": 1}, {"x" * length: 7}, {"a": 2}, {"a": 3}] if ended else [{"a": 1}, {"x" * length: 7}]
        if problems:
            assert length > 180
            assert [problem[:2] for problem in problems] == [(2, 8)]
            taken.pop(1)
        else:
            assert length < 400
        assert values == taken


def test_a_fault_is_raised_with_its_place(path: Path) -> None:
    path.write_bytes(b'{"a":1}\nnonsense\n')
    with pytest.raises(TornLog, match=r"log.jsonl:2: cannot decode the line: .*character \(byte 12 of the file\)"):
        list(TextSource(path, errors="raise").decode_lines(NUMBERS))


def test_a_file_that_is_not_there_is_named(path: Path) -> None:
    with pytest.raises(SessionIOError, match=r"log\.jsonl: cannot read"):
        list(TextSource(path, errors="report").lines())


@pytest.mark.parametrize(
    ("written", "said", "halves"),
    [
        (rb"\ud83d", "\ufffd", 1),
        (rb"\uD83D\ude00", "\N{GRINNING FACE}", 0),
        (rb"a\ude00\ud83d\ud83d\ude00", "a\ufffd\ufffd\N{GRINNING FACE}", 2),
        (rb"\\ud83d\n\ud83d", "\\ud83d\n\ufffd", 1),
    ],
)
@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n"])
def test_half_a_character_costs_no_line_and_is_counted(path: Path, written: bytes, said: str, halves: int, end: bytes) -> None:
    path.write_bytes(b'{"a":"b"}\n{"a":"' + written + b'"}' + end)
    for placed in (False, True):
        source = TextSource(path, errors="raise")
        decoder = msgspec.json.Decoder(dict[str, str])
        found = [one for _, one in source.decode_with_lines(decoder)] if placed else list(source.decode_lines(decoder))
        assert found == [{"a": "b"}, {"a": said}]
        assert sum(problem.affected for problem in source.problems) == halves


@pytest.mark.parametrize(
    "data", [b'[\n{"a":1}, {"a":2},\n\n{"a":\n3}\n,{"a":1}]\n', b'\xef\xbb\xbf{\n"a":1\n}\n\n{\n"a":1\n}\n{\n"a":2\n}']
)
def test_each_value_of_a_document_has_its_place(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    found = list(TextSource(path, errors="raise").json_values())
    assert len(found) > 2
    for line in found:
        assert data[line.offset :].startswith(line.data)
        assert line.number == data.count(b"\n", 0, line.offset) + 1
