"""What stands in the frames is what stands in the logs."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import loopkit as lk
from loopkit.contract.records import LogRecord
from loopkit.errors import InvalidConfig, LogError, TornLog
from loopkit.logs.collection import Logs
from loopkit.logs.dask_frames import scan
from loopkit.logs.frames import schema
from loopkit.logs.gate import gate
from loopkit.logs.loading import load
from loopkit.session.journal import close_line
from tests.logs.make import assistant, end, kept, loss, replay, result, stamp, start, usage, user, write, write_session

TOOLS: list[LogRecord] = [
    start("a"),
    user(1),
    assistant(2, call="c1"),
    usage(2, 1, 1000, 0, shortfall="first_request", finish_reason="tool_calls", ttft_ms=12.5),
    result(3, 1, "c1"),
    assistant(5),
    usage(5, 2, 1100, 1004, expected=1004, prompt_ms=96.0),
    user(10),
    assistant(12),
    usage(12, 3, 1200, 600, expected=1104, prompt_ms=300.0),
    loss(12, 3, expected=1104, cached=600),
    end(60),
]
"Two turns, one with a tool call; the last request lost 504 tokens."


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_session(tmp_path, "a", TOOLS)
    return tmp_path


def column(frame: pd.DataFrame, name: str) -> list[object]:
    """Values of a column, <NA> as None."""
    return [None if value is pd.NA or value is pd.NaT else value for value in frame[name].tolist()]


def test_usage(home: Path) -> None:
    made = load(home).usage
    assert column(made, "session") == ["a", "a", "a"]
    assert column(made, "turn") == [1, 1, 2]
    assert column(made, "request") == [1, 2, 3]
    assert column(made, "prompt_tokens") == [1000, 1100, 1200]
    assert column(made, "cached_tokens") == [0, 1004, 600]
    assert column(made, "read_tokens") == [1000, 96, 600]
    assert column(made, "expected_tokens") == [None, 1004, 1104]
    assert column(made, "expected_exact") == [None, True, True]
    assert column(made, "lost_tokens") == [0, 0, 504]
    assert column(made, "shortfall") == ["first_request", None, None]
    assert column(made, "reuse") == [0, 1004 / 1100, 0.5]
    assert column(made, "ttft_ms") == [12.5, None, None]
    assert column(made, "cache_write_tokens") == [None, None, None]
    assert column(made, "finish_reason") == ["tool_calls", "stop", "stop"]
    assert column(made, "request_bytes") == [500, 600, 700]
    assert column(made, "new_bytes") == [500, 100, 100]
    assert column(made, "model") == ["tiny", "tiny", "tiny"]
    assert made["time"].tolist() == [pd.Timestamp(stamp(second)) for second in (2, 5, 12)]
    assert made["request_sha256"].str.len().tolist() == [64, 64, 64]


def test_cache_loss(home: Path) -> None:
    [row] = load(home).cache_loss.to_dict("records")
    assert (row["session"], row["epoch"], row["turn"], row["request"]) == ("a", 0, 2, 3)
    assert (row["expected_tokens"], row["cached_tokens"], row["lost_tokens"]) == (1104, 600, 504)
    assert row["lost_ms"] == 300.0 * 504 / 600
    assert (row["cause"], row["certainty"], row["fixable_by"], row["location"]) == ("slot_taken", "confirmed", "server", "slot 0")
    assert row["evidence"] == '{"slot":0,"taken_by":"b"}'


def test_turns(home: Path) -> None:
    made = load(home).turns
    assert column(made, "turn") == [1, 2]
    assert made["time"].tolist() == [pd.Timestamp(stamp(1)), pd.Timestamp(stamp(10))]
    assert column(made, "requests") == [2, 1]
    assert column(made, "tool_calls") == [1, 0]
    assert column(made, "prompt_tokens") == [2100, 1200]
    assert column(made, "read_tokens") == [1096, 600]
    assert column(made, "losses") == [0, 1]
    assert column(made, "lost_tokens") == [0, 504]
    assert column(made, "finish_reason") == ["stop", "stop"]
    assert column(made, "elapsed_ms") == [4000, 2000], "the epoch's end, long after, is of no turn"


def test_epochs_and_sessions(home: Path) -> None:
    [row] = load(home).epochs.to_dict("records")
    assert (row["epoch"], row["end_reason"], row["slot"], row["turns"], row["requests"]) == (0, "asked", 0, 2, 3)
    assert (row["prompt_tokens"], row["cached_tokens"], row["read_tokens"]) == (3300, 1604, 1696)
    assert (row["completion_tokens"], row["losses"], row["lost_tokens"]) == (15, 1, 504)
    assert row["reuse"] == 1604 / 3300
    assert row["baseline_bytes"] == (home / "sessions/a/0.baseline.json").stat().st_size
    assert (row["started"], row["ended"]) == (pd.Timestamp(stamp(0)), pd.Timestamp(stamp(60)))
    [row] = load(home).sessions.to_dict("records")
    assert (row["session"], row["source"], row["epochs"], row["turns"], row["requests"]) == ("a", "loopkit", 1, 2, 3)
    assert (row["model"], row["engine"], row["path"]) == ("tiny", "llama.cpp", str(home / "sessions/a"))
    assert column(load(home).sessions, "parent") == [None]
    assert (row["started"], row["ended"]) == (pd.Timestamp(stamp(0)), pd.Timestamp(stamp(60)))


def test_carried_records_are_skipped_and_a_turn_taken_up_goes_on(tmp_path: Path) -> None:
    first: list[LogRecord] = [
        start("a"),
        user(1),
        assistant(2, call="c1"),
        usage(2, 1, 400, 0),
        result(3, 1, "c1"),
        end(4, "context_full"),
    ]
    carried: list[LogRecord] = [user(1), assistant(2, call="c1"), result(3, 1, "c1")]
    second = [
        start("a", 1, at=5, carried=3),
        *carried,
        assistant(7),
        usage(7, 1, 300, 0),
        user(8),
        assistant(9),
        usage(9, 2, 320, 304),
    ]
    write_session(tmp_path, "a", first, second)
    logs = load(tmp_path)
    assert column(logs.usage, "turn") == [1, 1, 2]
    assert column(logs.usage, "new_bytes") == [500, 500, 100], "the first of an epoch: all of it"
    assert column(logs.turns, "epoch") == [0, 1, 1]
    assert column(logs.turns, "tool_calls") == [1, 0, 0]
    assert logs.turns["time"].tolist() == [pd.Timestamp(stamp(second)) for second in (1, 5, 8)]
    assert column(logs.turns, "elapsed_ms") == [2000, 2000, 1000]
    assert column(logs.epochs, "turns") == [1, 2]
    assert column(logs.sessions, "turns") == [3]
    assert column(logs.sessions, "epochs") == [2]


def test_a_carried_turn_that_is_whole_is_not_counted(tmp_path: Path) -> None:
    second: list[LogRecord] = [start("a", 1, at=5, carried=2), user(1), assistant(2), user(8), assistant(9), usage(9, 1, 320, 0)]
    write_session(tmp_path, "a", [start("a"), *kept(1), end(4)], second)
    turns = load(tmp_path).turns
    assert column(turns, "turn") == [1, 1]
    assert column(turns, "elapsed_ms") == [250, 1000]


def test_a_clock_that_was_set_back_measures_nothing(tmp_path: Path) -> None:
    write_session(
        tmp_path, "a", [start("a"), user(9), assistant(4), usage(4, 1, 300, 0), user(10), assistant(11), usage(12, 2, 400, 304)]
    )
    assert column(load(tmp_path).turns, "elapsed_ms") == [None, 2000]


def test_unknown_is_not_zero(tmp_path: Path) -> None:
    """A server that reports no cached tokens has not lost its cache."""
    unknown: list[LogRecord] = [user(1), assistant(2), usage(2, 1, 25, None, completion_tokens=None)]
    write_session(tmp_path, "a", [start("a"), *unknown])
    logs = load(tmp_path)
    for frame in (logs.usage, logs.turns, logs.epochs):
        assert column(frame, "prompt_tokens") == [25]
        for name in ("cached_tokens", "read_tokens", "lost_tokens", "completion_tokens", "reuse"):
            assert column(frame, name) == [None]
    assert column(logs.epochs, "losses") == [None]
    assert len(logs.cache_loss) == 0
    assert "processed unknown, lost unknown" in repr(logs)


def test_totals_are_of_what_is_known(tmp_path: Path) -> None:
    records: list[LogRecord] = [
        user(1),
        assistant(2),
        usage(2, 1, 100, None),
        user(3),
        assistant(4),
        usage(4, 2, 200, 150, expected=150),
    ]
    write_session(tmp_path, "a", [start("a"), *records])
    logs = load(tmp_path)
    assert column(logs.epochs, "prompt_tokens") == [300]
    assert column(logs.epochs, "cached_tokens") == [150]
    assert column(logs.epochs, "read_tokens") == [50]
    assert column(logs.epochs, "reuse") == [0.75], "of the request whose cached count is known"
    assert "processed 50 of 200 prompt tokens (1 request unknown), lost 0" in repr(logs)


def test_an_epoch_without_requests(tmp_path: Path) -> None:
    write_session(tmp_path, "a", [start("a")])
    logs = load(tmp_path)
    assert column(logs.epochs, "requests") == [0]
    assert column(logs.epochs, "prompt_tokens") == [None]
    assert column(logs.sessions, "turns") == [0]
    assert len(logs.turns) == len(logs.usage) == 0


def test_a_fork_has_a_parent(tmp_path: Path) -> None:
    write_session(tmp_path, "b", [start("b", forked="a"), *kept(2)])
    assert column(load(tmp_path).sessions, "parent") == ["a"]


def test_replays_stand_beside_sessions(home: Path) -> None:
    write(home / "replays/a-live.jsonl", replay("live_system", 3, broken=True))
    write(home / "replays/a-same.jsonl", replay(None, 3))
    logs = load(home)
    assert column(logs.sessions, "session") == ["a", "a-live", "a-same"]
    assert column(logs.sessions, "source") == ["loopkit", "replay", "replay"]
    assert column(logs.sessions, "variant") == [None, "live_system", None]
    assert column(logs.sessions, "parent") == [None, "a", "a"]
    assert column(logs.sessions, "turns") == [2, None, None]
    live = logs.where(session="a-live")
    assert column(live.usage, "lost_tokens") == [0, 1000, 1100]
    assert column(live.usage, "turn") == [None, None, None]
    assert column(live.cache_loss, "cause") == ["system_changed", "system_changed"]
    assert column(live.cache_loss, "lost_ms") == [1000.0, 1100.0]
    assert column(live.cache_loss, "request") == [2, 3]
    assert len(live.turns) == 0
    assert len(logs.turns) == 2
    assert column(logs.cache_loss, "session") == ["a", "a-live", "a-live"]
    assert "sessions 1, replays 2" in repr(logs)


def test_a_replay_log_holds_one_replay(tmp_path: Path) -> None:
    records = [*replay("live_system", 2), *replay("tools_shuffled", 3)]
    path = write(tmp_path / "replays/x.jsonl", records)
    with pytest.raises(TornLog, match=r"x\.jsonl:3: it is not the next request"):
        load(path)


def test_what_can_be_loaded(home: Path) -> None:
    write_session(home, "b", [start("b"), *kept(2)])
    replayed = write(home / "replays/r.jsonl", replay(None, 4))
    assert len(load(home).usage) == 9
    assert len(load(str(home)).usage) == 9
    assert len(load(home / "sessions/b").usage) == 2
    assert len(load(home / "sessions/b/0.jsonl").usage) == 2
    assert len(load(replayed).usage) == 4
    assert len(load(f"{home}/sessions/*").usage) == 5
    assert len(load(f"{home}/**/*.jsonl").usage) == 9
    assert len(load([home / "sessions/a", f"{home}/replays/*"]).usage) == 7
    assert len(load([home, home / "sessions/b", home / "sessions/b/0.jsonl"]).usage) == 9, "a file named twice counts once"
    assert len(load([]).usage) == 0

    class Session:
        dir = home / "sessions/b"

    assert len(load(Session()).usage) == 2


def test_a_home_without_sessions_is_empty(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    assert len(load(tmp_path).sessions) == len(load(tmp_path).unread) == 0


def test_an_empty_directory_is_told_for_it_may_be_the_wrong_one(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="the directory is empty, so there is nothing to load"):
        assert len(load(tmp_path).usage) == 0
    [problem] = load(tmp_path, errors="report").unread
    assert (problem.path, problem.kind) == (str(tmp_path), "left_out")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda home: home / "nothing", "the path does not exist"),
        (lambda home: home / "*.jsonl", "the path does not exist"),
        (lambda home: home / "notes", "the format is unknown"),
        (lambda home: home / "sessions/a/more", "it is neither a home nor a session"),
        (lambda home: home / "notes/notes.jsonl", "the format is unknown"),
        (lambda home: home / "sessions/c", "the session lacks 0.jsonl"),
        (lambda home: home / "sessions/d", "the session lacks 1.jsonl"),
    ],
)
def test_what_cannot_be_loaded(home: Path, make: object, why: str) -> None:
    (home / "notes").mkdir()
    (home / "notes/notes.jsonl").write_text("{}\n")
    (home / "sessions/a/more/deeper").mkdir(parents=True)
    (home / "sessions/c").mkdir()
    (home / "sessions/c/0.baseline.json").write_bytes(b"{}")
    write_session(home, "d", [start("d"), *kept(1), end(9)], [start("d", 1)], [start("d", 2)])
    (home / "sessions/d/1.jsonl").unlink()
    assert callable(make)
    with pytest.raises(LogError, match=why):
        load(make(home))


def test_what_a_pattern_matches_hides_no_other(home: Path) -> None:
    (home / "sessions/b").mkdir()
    (home / "sessions/b/notes").write_bytes(b"")
    (home / "sessions/c").symlink_to("nowhere")
    with pytest.raises(LogError, match=r"sessions/b: it is neither a home nor a session"):
        load(f"{home}/sessions/*")
    logs = load(f"{home}/sessions/*", errors="report")
    assert len(logs.sessions) == 1
    assert [Path(problem.path).name for problem in logs.unread] == ["b", "c"]


@pytest.mark.parametrize("name", ["sessions", "replays", "recordings"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_part_of_a_home_that_cannot_be_entered_is_told(tmp_path: Path, name: str, linked: bool) -> None:
    other = "recordings" if name != "recordings" else "replays"
    (tmp_path / other).mkdir()
    (tmp_path / name).symlink_to("not mounted") if linked else (tmp_path / name).touch()
    with pytest.raises(LogError, match=f"{name}: it is not a directory"):
        load(tmp_path)
    assert [Path(problem.path).name for problem in load(tmp_path, errors="report").unread] == [name]


AS_NOBODY = """
import os, sys
import loopkit as lk
lk.load([]).usage
if os.getuid() == 0:
    os.setgid(65534), os.setuid(65534)
for what in sys.argv[1:]:
    logs = lk.load(what, errors="report")
    print(len(logs.sessions), *(os.path.basename(problem.path) for problem in logs.unread))
    try:
        lk.load(what)
    except lk.errors.SessionIOError as error:
        print(error)
"""


def test_a_directory_that_may_not_be_looked_into_is_told_and_hides_no_other() -> None:
    with tempfile.TemporaryDirectory() as made:
        home = Path(made)
        home.chmod(0o755)
        for name in ("a", "b"):
            write_session(home, name, [start(name), *kept(2)])
        (home / "sessions/b").chmod(0)
        command = [sys.executable, "-c", AS_NOBODY, str(home), f"{home}/sessions/*", f"{home}/sessions"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        (home / "sessions/b").chmod(0o755)
        told = f"{home}/sessions/b: cannot read: Permission denied"
        assert done.stdout.splitlines() == ["1 b", told] * 3


def test_two_logs_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("x", "y"):
        write_session(tmp_path / name, "a", [start("a"), *kept(1)])
    with pytest.raises(LogError, match="has the same session id `a`"):
        load([tmp_path / "x", tmp_path / "y"])
    with pytest.raises(LogError, match="has the same session id `a`"):
        load(tmp_path / "x").concat(load(tmp_path / "y"))


def test_concat_takes_what_was_read_later(tmp_path: Path) -> None:
    write_session(tmp_path, "a", [start("a"), *kept(1)])
    before = load(tmp_path)
    write_session(tmp_path, "b", [start("b"), *kept(1)])
    write_session(tmp_path, "a", [start("a"), *kept(2), end(9)], [start("a", 1)])
    both = before.concat(load(tmp_path))
    assert column(both.usage, "session") == ["a", "a", "b"]
    assert column(both.epochs, "session") == ["a", "a", "b"]
    assert column(both.epochs, "epoch") == [0, 1, 0]
    pd.testing.assert_frame_equal(both.usage, load(tmp_path).usage)


def test_where(tmp_path: Path) -> None:
    write_session(tmp_path, "a", [start("a"), *kept(2, at=0)])
    write_session(tmp_path, "b", [start("b", model="other"), *kept(2, at=100)])
    logs = load(tmp_path)
    assert column(logs.where(session="a").sessions, "session") == ["a"]
    assert column(logs.where(session=["b", "a"]).sessions, "session") == ["a", "b"]
    assert column(logs.where(session=[]).sessions, "session") == []
    assert column(logs.where(model=["other", "third"]).sessions, "session") == ["b"]
    assert column(logs.where(engine="llama.cpp").sessions, "session") == ["a", "b"]
    assert column(logs.where(source="replay").sessions, "session") == []
    assert column(logs.where(model="other").sessions, "session") == ["b"]
    assert column(logs.where(since="2026-11-30T00:01").sessions, "session") == ["b"]
    assert column(logs.where(since=pd.Timestamp("2026-11-30T01:00:02.25+01:00")).sessions, "session") == ["a", "b"]
    assert column(logs.where(since="2026-11-30T01:00:02.250001+01:00").sessions, "session") == ["b"]
    assert column(logs.where(session="a", model="other").sessions, "session") == []
    with pytest.raises(InvalidConfig, match="since: 'soon' is not a time"):
        logs.where(since="soon")


def test_an_unknown_session_is_an_error_that_names_similar_ones(tmp_path: Path) -> None:
    for name in ("monday-1", "monday-2", "friday"):
        write_session(tmp_path, name, [start(name), *kept(1)])
    logs = load(tmp_path)
    with pytest.raises(InvalidConfig, match=r"session: there is no session 'mondy-1'. Similar names: monday-1, monday-2$"):
        logs.where(session=["friday", "mondy-1"])
    with pytest.raises(InvalidConfig, match=r"there is no session 'zzz'. Known names: friday, monday-1, monday-2$"):
        logs.where(session="zzz")
    with pytest.raises(InvalidConfig, match=r"source: there is no source 'replays'. Similar names: replay$"):
        logs.where(source="replays")


def test_replays_are_selected_by_source_variant_and_parent(home: Path) -> None:
    write(home / "replays/a-live.jsonl", replay("live_system", 3, broken=True))
    write(home / "replays/a-same.jsonl", replay(None, 3))
    logs = load(home)
    assert column(logs.where(source="replay").sessions, "session") == ["a-live", "a-same"]
    assert column(logs.where(variant="live_system").sessions, "session") == ["a-live"]
    assert column(logs.where(parent="a", source=["replay", "loopkit"]).sessions, "session") == ["a-live", "a-same"]
    assert column(logs.without_replays().sessions, "session") == ["a"]
    alone = logs.where(source="replay")
    assert alone.without_replays() is alone


def test_totals_leave_replays_out_unless_there_is_nothing_else(home: Path) -> None:
    before = repr(load(home))
    write(home / "replays/a-live.jsonl", replay("live_system", 3, broken=True))
    logs = load(home)
    assert repr(logs) == before.replace("sessions 1", "sessions 1, replays 1")
    assert repr(logs.where(source="replay")).startswith("Logs: sessions 0, replays 1, epochs 1, turns 0, requests 3, processed ")
    assert "lost 2,100" in repr(logs.where(source="replay"))
    assert logs.diagnose().requests == 3


def test_evidence_is_a_dict(home: Path) -> None:
    logs = load(home)
    wanted = {"slot": 0, "taken_by": "b"}
    row = logs.cache_loss.iloc[0]
    assert logs.evidence(row) == logs.evidence(0) == logs.evidence(row.to_dict()) == wanted
    assert [logs.evidence(label) for label in logs.cache_loss.index] == [wanted]
    assert logs.evidence({"evidence": pd.NA}) == {}


def test_each_frame_documents_its_columns() -> None:
    for frame in schema.FRAMES:
        doc = inspect.getdoc(getattr(Logs, frame))
        assert doc is not None
        described = lk.logs.columns(frame)
        lines = [line for line in doc.splitlines() if line.startswith("- ``")]
        assert len(lines) == len(described)
        for line, row in zip(lines, described.to_dict("records"), strict=True):
            unit = "" if pd.isna(row["unit"]) else f", {row['unit']}"
            assert line == f"- ``{row['name']}`` ({row['dtype']}{unit}): {row['meaning']}"
        made = getattr(Logs((), content=True), frame)
        assert described["name"].tolist() == list(made.columns)
        for row in described.to_dict("records"):
            assert row["dtype"] == str(made[row["name"]].dtype)
    with pytest.raises(InvalidConfig, match=r"there is no frame 'uses'. Use one of sessions, epochs"):
        lk.logs.columns("uses")


def test_load_of_the_logs_module_is_the_function_whatever_was_imported() -> None:
    code = "import loopkit as lk; {}; print(lk.logs.load is lk.load, lk.logs.Logs is lk.Logs)"
    for first in ("lk.load", "lk.Logs", "lk.logs.load", "import loopkit.logs.loading", "lk.logs.scan", "lk.plot.prefix_reuse"):
        done = subprocess.run([sys.executable, "-c", code.format(first)], capture_output=True, text=True, check=True)
        assert done.stdout == "True True\n"


@pytest.mark.parametrize("frame", schema.FRAMES)
def test_a_changed_copy_leaves_the_logs_as_they_are(home: Path, frame: str) -> None:
    (home / "sessions/left-out").mkdir()
    logs = load(home, errors="report")
    before = getattr(load(home, errors="report"), frame)
    mine = getattr(logs, frame)
    assert len(mine) > 0
    for name in list(mine.columns):
        mine.loc[mine.index[0], name] = mine[name].iloc[-1] if mine[name].dtype != "Int64" else 7
        mine[name].array[:] = mine[name].iloc[-1]
        if mine[name].dtype == "Int64":
            mine[name].to_numpy(na_value=0)[:] = 5
    mine["extra"] = 2
    mine.attrs["units"]["path"] = "miles"
    pd.testing.assert_frame_equal(getattr(logs, frame), before)
    assert getattr(logs, frame).attrs == before.attrs


def test_a_frame_given_out_is_the_callers(home: Path) -> None:
    logs = load(home)
    mine = logs.usage
    mine["twice"] = 2
    mine.loc[0, "prompt_tokens"] = 7
    assert "twice" not in logs.usage
    assert logs.usage.loc[0, "prompt_tokens"] == 1000


def test_reprs_agree_and_hold_no_path_time_or_address(home: Path) -> None:
    logs = load(home)
    text, markup = repr(logs), logs._repr_html_()
    assert text == "Logs: sessions 1, epochs 1, turns 2, requests 3, processed 1,696 of 3,300 prompt tokens, lost 504"
    for fact in ("1,696 of 3,300 prompt tokens", "504"):
        assert fact in markup
    assert str(home) not in text + markup
    assert "2026" not in text + markup
    assert repr(load(home)) == text


def test_logs_cross_a_process_pool(home: Path) -> None:
    logs = load(home)
    again: Logs = pickle.loads(pickle.dumps(logs))
    pd.testing.assert_frame_equal(again.usage, logs.usage)


def test_the_bar_is_shown_only_when_asked_or_long(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load(home)
    assert capsys.readouterr() == ("", "")
    load(home, progress=True)
    assert "load: 100%" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("left", "why", "rows"),
    [
        (0, "there is no whole record", 0),
        (1, "the last line does not end in a line feed", 0),
        (700, "the last line does not end in a line feed", 1),
        (-1, "but is otherwise whole", 2),
    ],
)
def test_a_replay_that_was_cut_hides_nothing_beside_it(home: Path, left: int, why: str, rows: int) -> None:
    """It is a measurement that ends there."""
    path = write(home / "replays/cut.jsonl", replay("live_system", 3))
    (home / "replays/pipe.jsonl").symlink_to("nowhere")
    before = len(load(home, errors="report").usage)
    whole = path.read_bytes()
    path.write_bytes(whole[:left])
    logs = load(home, errors="report")
    cut, gone = logs.problems.to_dict("records")
    assert (cut["path"], cut["line"], cut["kind"], cut["affected"]) == (str(path), rows + 1, "torn", 1)
    assert why in cut["why"]
    assert (gone["path"], gone["kind"]) == (str(home / "replays/pipe.jsonl"), "unreadable")
    assert gone["why"].startswith("cannot read: No such file")
    assert len(logs.usage) == before - 3 + rows
    assert column(logs.usage[logs.usage["session"] == "cut"], "request") == list(range(1, rows + 1))
    with pytest.raises(TornLog, match='errors="report", or --errors report'):
        load(home)
    assert path.read_bytes() == whole[:left]


def test_a_record_in_the_wrong_place_ends_a_replay(tmp_path: Path) -> None:
    path = write(tmp_path / "replays/x.jsonl", [*replay("live_system", 2), *replay("tools_shuffled", 3, broken=True)])
    logs = load(tmp_path, errors="report")
    [problem] = logs.unread
    assert str(problem).startswith(f"{path}:3: it is not the next request")
    assert column(logs.usage, "request") == [1, 2]
    assert len(logs.cache_loss) == 0
    path.write_text('{"a":1}\n')
    logs = load(tmp_path, errors="report")
    assert [problem.line for problem in logs.unread] == [1]
    assert len(logs.sessions) == 0


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (b',"cause":"system_changed"', b""),
        (b',"certainty":"confirmed"', b""),
        (b',"mendable_by":"client"', b""),
        (b',"where":"messages[0].content"', b""),
        (b',"evidence":{"byte":93}', b""),
        (b'"cached_tokens":0', b'"cached_tokens":null'),
        (b'"expected_tokens":1000', b'"expected_tokens":null'),
    ],
)
def test_a_loss_that_does_not_say_all_ends_a_replay(home: Path, right: bytes, wrong: bytes) -> None:
    path = write(home / "replays/x.jsonl", replay("live_system", 2, broken=True))
    first, second = path.read_bytes().splitlines(keepends=True)
    assert right in second
    path.write_bytes(first + close_line(second[:-19].replace(right, wrong), int(first[-11:-3], 16))[0])
    logs = load(home, errors="report")
    [problem] = logs.unread
    assert (problem.line, problem.why) == (2, "it reports lost tokens without their cause or counts")
    assert len(logs.usage) == 3 + 1
    assert logs.diagnose().requests == 3


UNUSABLE: dict[str, tuple[Callable[[Logs, Path, Any], object], tuple[Any, ...]]] = {
    "what": (lambda logs, home, each: load(each), (5, None, 1.5, b"runs", [None], object())),
    "errors": (lambda logs, home, each: load(home, errors=each), ("ignore", None)),
    "executor": (lambda logs, home, each: load(home, executor=each), (4,)),
    "session": (lambda logs, home, each: logs.where(session=each), (5, b"a", ["a", None], "zzz")),
    "source": (lambda logs, home, each: logs.where(source=each), (5, "replays")),
    "row": (lambda logs, home, each: logs.evidence(each), (5, -1, True, "a", {}, None)),
    "model": (lambda logs, home, each: logs.where(model=each), (5, [5], b"tiny")),
    "since": (
        lambda logs, home, each: logs.where(since=each),
        (5, 1.5, [], "", "NaT", "soon", "99999-01-01", pd.NaT),
    ),
    "other": (lambda logs, home, each: logs.concat(each), (5, "runs", [])),
    "directory": (lambda logs, home, each: logs.to_csv(each), (5, None, b"x", "\0")),
    "path": (lambda logs, home, each: logs.export_trace(each, bytes(16)), (5, None, b"x", "\0")),
    "salt": (lambda logs, home, each: logs.export_trace(home / "t", each), (5, None, "0" * 16, b"0")),
    "block": (lambda logs, home, each: logs.export_trace(home / "t", bytes(16), block=each), (0, "512", None, 1.5)),
    "max_lost": (lambda logs, home, each: gate(home, each), ("0", None)),
    "partition_bytes": (lambda logs, home, each: scan(home, partition_bytes=each), ("64 MB", None)),
}


@pytest.mark.parametrize("member", UNUSABLE)
def test_an_argument_that_cannot_be_used_is_named(home: Path, member: str) -> None:
    use, values = UNUSABLE[member]
    for value in values:
        with pytest.raises(InvalidConfig) as caught:
            use(load(home), home, value)
        assert caught.value.member == member
    assert not (home / "t").exists()
