"""Thirty-eight damaged logs: one problem each, with line and byte, and what is sound before it is read."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest

from loopkit.errors import TornLog
from loopkit.logs.collection import Logs
from loopkit.logs.loading import load

HOME = Path(__file__).parents[3] / "data" / "malformed"
FOUND = [
    ("another-session", 1, 0, 1, 0, "it belongs to epoch 0 of session lima"),
    ("blank-line", 5, 1085, 1, 1, "a blank line of 2 bytes"),
    ("bom", 1, 0, 1, 0, "a byte order mark (BOM)"),
    ("carried-too-few", 4, 683, 1, 0, "3 carried records should follow the session_start, not 2"),
    ("count-negative", 7, 1361, 1, 1, "Expected `int` >= 0 - at `$.usage.prompt_tokens`"),
    ("count-of-5000-digits", 7, 1367, 1, 1, "Integer value out of range - at `$.usage.prompt_tokens`"),
    ("crc-changed", 4, 626, 2, 0, "its crc is "),
    ("crc-missing", 5, 1086, 1, 1, "its last member is not"),
    ("crc-upper-case", 5, 1089, 1, 1, "its last member is not"),
    ("crlf", 1, 329, 12, 0, "it ends in CRLF, not LF: a program changed the line ends"),
    ("cut-in-a-character", 9, 2215, 1, 2, "the last line does not end in a line feed: not UTF-8: unexpected end of data"),
    ("cut-in-a-record", 11, 2335, 1, 2, "the last line does not end in a line feed: not a record: Input data was truncated"),
    ("cut-of-its-line-feed", 12, 2821, 1, 3, "the last line does not end in a line feed, but is otherwise whole"),
    ("empty", 1, 0, 1, 0, "there is no whole record"),
    ("empty-line", 7, 1357, 1, 1, "an empty line"),
    ("group-unfinished", 9, 2136, 1, 2, "the last group of records is unfinished"),
    ("kind-not-first", 7, 1361, 1, 1, "it does not begin with a known kind and a time"),
    ("kind-unknown", 5, 1087, 1, 1, "it does not begin with a known kind and a time"),
    ("latin-1", 9, 2204, 1, 2, "not UTF-8: invalid continuation byte"),
    ("line-doubled", 7, 1359, 1, 1, "its crc is "),
    ("line-lost", 6, 1256, 1, 1, "its crc is "),
    ("line-split", 6, 1257, 1, 1, "not a record: Input data was truncated"),
    ("lines-joined", 5, 1087, 1, 1, "not a record: JSON is malformed: trailing characters"),
    ("lines-swapped", 6, 1260, 3, 1, "its crc is "),
    ("member-missing", 7, 1361, 1, 1, "Object missing required field `attempts`"),
    ("member-unknown", 7, 1361, 1, 1, "Object contains unknown field `mood`"),
    ("nested-too-deep", 8, 1842, 1, 2, "nested too deep"),
    ("nul-bytes", 4, 624, 1, 0, "512 NUL bytes"),
    ("nul-bytes-at-the-end", 13, 2954, 1, 3, "the last line does not end in a line feed: 512 NUL bytes"),
    ("number-changed", 7, 1361, 1, 1, "its crc is "),
    ("number-infinite", 7, 1362, 1, 1, "Number out of range - at `$.usage.prompt_ms`"),
    ("number-nan", 7, 1357, 1, 1, "JSON is malformed: invalid character"),
    ("record-after-the-end", 13, 2954, 1, 3, "a record of this kind must not follow here"),
    ("start-missing", 1, 0, 1, 0, "the first record is not a session_start"),
    ("text-changed", 6, 1259, 1, 1, "its crc is "),
    ("time-is-none", 9, 2132, 1, 2, "its timestamp is invalid"),
    ("two-users", 10, 2229, 1, 2, "a record of this kind must not follow here"),
    ("type-wrong", 7, 1357, 1, 1, "Expected `int`, got `str` - at `$.request`"),
]
"Session, line, byte offset, damaged lines, requests before it, and how the reason begins."


@pytest.fixture(scope="module")
def logs() -> Logs:
    return load(HOME, errors="report")


@pytest.mark.parametrize(("session", "line", "offset", "count", "requests", "why"), FOUND)
def test_one_problem_each(logs: Logs, session: str, line: int, offset: int, count: int, requests: int, why: str) -> None:
    path = HOME / "sessions" / session / "0.jsonl"
    [problem] = [problem for problem in logs.unread if problem.path == str(path)]
    assert (problem.line, problem.offset, problem.affected, problem.kind) == (line, offset, count, "torn")
    assert problem.why.startswith(why)
    starts = sum(map(len, path.read_bytes().split(b"\n")[: line - 1])) + line - 1
    assert starts <= offset
    assert len(logs.where(session=session).usage) == requests
    with pytest.raises(TornLog, match=rf"0\.jsonl:{line}: ") as caught:
        load(path.parent)
    assert (caught.value.line, caught.value.offset) == (line, offset)


def test_there_is_no_other_problem_and_the_frame_has_them_in_order(logs: Logs) -> None:
    assert [Path(path).parent.name for path in logs.problems["path"]] == [session for session, *_ in FOUND]
    assert sorted(path.name for path in (HOME / "sessions").iterdir()) == [session for session, *_ in FOUND]
    assert "problems 38" in repr(logs)


def test_the_files_are_what_the_script_makes(tmp_path: Path) -> None:
    runpy.run_path(str(HOME / "make_malformed.py"))["main"](tmp_path)
    for session, *_ in FOUND:
        for name in ("0.jsonl", "0.baseline.json"):
            made = tmp_path / "sessions" / session / name
            assert made.read_bytes() == (HOME / "sessions" / session / name).read_bytes()


def test_two_damages_are_two_problems_and_what_is_sound_between_them_is_not_read(tmp_path: Path) -> None:
    shutil.copytree(HOME / "sessions" / "text-changed", tmp_path / "sessions" / "text-changed")
    path = tmp_path / "sessions" / "text-changed" / "0.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"reason":"asked"', b'"reason":"axked"'))
    logs = load(tmp_path, errors="report")
    assert [problem.line for problem in logs.unread] == [6, 12]
    assert len(logs.usage) == 1


def test_a_damaged_session_hides_none_beside_it(tmp_path: Path) -> None:
    for session in ("empty", "text-changed", "line-lost"):
        shutil.copytree(HOME / "sessions" / session, tmp_path / "sessions" / session)
    (tmp_path / "sessions" / "text-changed" / "0.jsonl").unlink()
    (tmp_path / "sessions" / "text-changed" / "1.jsonl").write_bytes(b"")
    logs = load(tmp_path, errors="report")
    assert logs.problems["kind"].tolist() == ["not_a_log", "torn", "torn", "torn"]
    assert logs.usage["session"].tolist() == ["line-lost"]


def test_problems_go_with_their_files(tmp_path: Path) -> None:
    for session in ("empty", "text-changed", "line-lost"):
        shutil.copytree(HOME / "sessions" / session, tmp_path / "sessions" / session)
    logs = load(tmp_path, errors="report")

    def named(logs: Logs) -> list[str]:
        return [Path(problem.path).parent.name for problem in logs.unread]

    assert named(logs) == ["empty", "line-lost", "text-changed"]
    assert named(logs.where(session="line-lost")) == ["empty", "line-lost"], "of the empty one nobody knows the session"
    module = runpy.run_path(str(HOME / "make_malformed.py"))
    whole = b"".join(module["closed"](module["lines"]("line-lost")))
    (tmp_path / "sessions" / "line-lost" / "0.jsonl").write_bytes(whole)
    later = load(tmp_path / "sessions" / "line-lost")
    assert named(logs.concat(later)) == ["empty", "text-changed"], "it was mended"
    assert len(logs.concat(later).usage) == len(logs.usage) + 2
    assert named(logs.concat(logs)) == named(logs)
