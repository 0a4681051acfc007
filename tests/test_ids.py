"""Identifiers: no default, validated when made, never a path, and a plain string does not type-check."""

from __future__ import annotations

import datetime
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loopkit.errors import InvalidId
from loopkit.ids import TIME, CallId, ProjectId, QueryId, RunId, SessionId, Sha256Hash, Timestamp

EVERY: list[Any] = [SessionId, CallId, Sha256Hash, Timestamp, ProjectId, QueryId, RunId]


@pytest.mark.parametrize("kind", EVERY)
def test_none_has_a_default(kind: Any) -> None:
    with pytest.raises(TypeError):
        kind()


@pytest.mark.parametrize("text", ["a", "A-b_c.d", "0", "x" * 64, "20261130T072301482913-k3f9", "console", "com10", "nul-1"])
def test_session_ids_that_are_good(text: str) -> None:
    assert SessionId(text) == text
    assert repr(SessionId(text)) == f"SessionId({text!r})"


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "../up",
        "a/b",
        "a\\b",
        "C:",
        "c:x",
        "-a",
        "_a",
        ".a",
        "x" * 65,
        "a b",
        "a\n",
        "\na",
        "é",
        "a\x00",
        "~",
        "*",
        "con",
        "CON",
        "nul.txt",
        "com1",
        "LPT9.log",
        "aux",
        "prn",
    ],
)
def test_session_ids_that_could_be_paths_or_worse_are_refused(text: str) -> None:
    with pytest.raises(InvalidId) as caught:
        SessionId(text)
    assert "SessionId" in str(caught.value)
    assert "1 to 64 of" in str(caught.value)


@given(st.text(max_size=70))
def test_a_session_id_stays_below_its_directory(text: str) -> None:
    try:
        id = SessionId(text)
    except InvalidId:
        return
    path = Path("/home/sessions") / id
    assert path.parent == Path("/home/sessions")
    assert path.name == id


def test_new_ids_sort_by_time_and_differ() -> None:
    made = [SessionId.new() for _ in range(2000)]
    stamps = [id.rsplit("-", 1)[0] for id in made]
    assert stamps == sorted(stamps)
    assert len(set(made)) == len(made)
    assert all(len(stamp) == len("20261130T072301482913") for stamp in stamps)


@pytest.mark.parametrize("kind", [ProjectId, QueryId, RunId])
def test_names(kind: Any) -> None:
    for good in ("a", "a:b.c_d-e", "0" * 128):
        assert kind(good) == good
    for bad in ("", ":a", "a" * 129, "a b", "a/b", None, 3):
        with pytest.raises(InvalidId):
            kind(bad)


def test_call_ids_count_from_one() -> None:
    assert CallId(1) == 1
    for bad in (0, -1, True, 1.0, "1", None):
        with pytest.raises(InvalidId):
            CallId(bad)  # type: ignore[arg-type]


def test_hashes() -> None:
    assert Sha256Hash.of(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    for bad in ("", "0" * 63, "0" * 65, "A" * 64, "g" * 64, "0" * 64 + "\n"):
        with pytest.raises(InvalidId):
            Sha256Hash(bad)


def test_timestamps_parse_in_one_form_only() -> None:
    assert Timestamp("2026-11-30T07:31:05.000001Z").datetime().microsecond == 1
    for bad in (
        "2026-11-30T07:31:05Z",
        "2026-11-30T07:31:05.000Z",
        "2026-11-30T07:31:05.000000+00:00",
        "2026-11-30 07:31:05.000000Z",
        "2026-11-30T07:31:05.000000z",
        "2026-11-30T07:31:05.000000",
        "2026-13-30T07:31:05.000000Z",
        "2026-02-30T07:31:05.000000Z",
        "2026-11-30T24:00:00.000000Z",
        "2026-11-30T07:31:60.000000Z",
        "2026-11-30T07:31:05.00000٠Z",
        "2026-11-30T07:31:05.000000Z\n",
        "1775448000100",
    ):
        with pytest.raises(InvalidId, match="RFC 3339"):
            Timestamp(bad)
    assert Timestamp(Timestamp.now()) <= Timestamp.now()


@pytest.mark.parametrize("value", [SessionId("a"), CallId(3), Sha256Hash.of(b""), Timestamp.now(), RunId("r:1")])
def test_they_cross_a_process_pool(value: object) -> None:
    again = pickle.loads(pickle.dumps(value))
    assert again == value
    assert type(again) is type(value)


SNIPPET = """
from pathlib import Path
from loopkit.ids import CallId, SessionId, Sha256Hash
from loopkit.session.session import Session

Session.open(Path("home"), "plain")
SessionId()
Session.read("home", SessionId("good"))
number: CallId = 3
hash: Sha256Hash = "0" * 64
"""


@pytest.mark.slow
def test_the_type_checker_refuses_a_plain_string(tmp_path: Path) -> None:
    snippet = tmp_path / "snippet.py"
    snippet.write_text(SNIPPET)
    root = Path(__file__).parents[1]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", str(root / "pyproject.toml"), str(snippet)],
        capture_output=True,
        text=True,
        cwd=root,
    )
    errors = [line.split(": error: ")[0].rpartition(":")[2] for line in run.stdout.splitlines() if ": error: " in line]
    assert errors == ["6", "7", "9", "10"], run.stdout


@given(st.integers(0, 9999), st.integers(0, 13), st.integers(0, 32))
@example(2000, 2, 29)
@example(1900, 2, 29)
@example(2024, 2, 29)
@example(2026, 2, 30)
@example(0, 1, 1)
def test_a_time_has_a_day_of_the_calendar(year: int, month: int, day: int) -> None:
    try:
        datetime.date(year, month, day)
        known = True
    except ValueError:
        known = False
    assert bool(TIME.fullmatch(f"{year:04}-{month:02}-{day:02}T07:31:05.000000Z")) is known
