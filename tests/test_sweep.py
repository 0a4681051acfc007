"""Sweeps: each point once, on every executor, through failures, kills and interrupts."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster

from loopkit import sweep
from loopkit.errors import InvalidConfig, InvalidId, SessionIOError, SessionLocked, TornLog
from loopkit.logs.loading import load
from loopkit.loop.opening import start
from loopkit.server.client import Server

GRID: dict[str, list[Any]] = {"x": [1, 2, 3], "word": ["a", "b"]}


def note(run: sweep.Run, **parameters: Any) -> int:
    """Put down that a point is run, in one short append, and say how many were before it."""
    with (run.home / "calls").open("ab", buffering=0) as file:
        file.write(json.dumps([run.number, parameters]).encode() + b"\n")
        return file.tell()


def calls(home: Path) -> list[Any]:
    return sorted((json.loads(line) for line in (home / "calls").read_bytes().splitlines()), key=json.dumps)


def times(run: sweep.Run, x: int, word: str) -> dict[str, Any]:
    note(run, x=x, word=word)
    return {"text": word * x, "share": 1 / x, "odd": x % 2 == 1, "count": np.int64(x), "none": pd.NA}


def odd_fails_first(run: sweep.Run, x: int) -> dict[str, int]:
    note(run, x=x)
    if x % 2 and run.number == 1:
        raise ValueError(f"no {x} \ud83d today")
    return {"twice": 2 * x}


def dies(run: sweep.Run, x: int) -> dict[str, int]:
    if x == 2:
        os._exit(9)
    return {"twice": 2 * x}


def lines(home: Path, name: str = "s") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (home / "sweeps" / f"{name}.jsonl").read_bytes().splitlines()]


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[str, Executor | None]]:
    """One of each kind; Dask's takes equal calls for one, as it does when nobody says otherwise."""
    with (
        ThreadPoolExecutor(2) as threads,
        ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as processes,
        LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as cluster,  # type: ignore[no-untyped-call]
        Client(cluster) as client,  # type: ignore[no-untyped-call]
    ):
        yield {"serial": None, "threads": threads, "processes": processes, "dask": client.get_executor()}


@pytest.mark.parametrize("kind", ["serial", "threads", "processes", "dask"])
def test_every_executor_gives_the_same_frame(kind: str, pools: dict[str, Executor | None], tmp_path: Path) -> None:
    frame = sweep.run(times, GRID, tmp_path, "s", pools[kind])
    assert frame["x"].tolist() == [1, 1, 2, 2, 3, 3]
    assert frame["text"].tolist() == ["a", "b", "aa", "bb", "aaa", "bbb"]
    assert frame["session"].is_unique
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == {
        "x": "Int64",
        "word": "string",
        "text": "string",
        "share": "Float64",
        "odd": "boolean",
        "count": "Int64",
        "none": "object",
        "session": "string",
        "run": "Int64",
        "elapsed_ms": "Float64",
        "error": "string",
    }
    assert frame["error"].isna().all()
    assert len(calls(tmp_path)) == 6
    again = sweep.run(times, GRID, tmp_path, "s", pools[kind])
    pd.testing.assert_frame_equal(again, frame)
    assert len(calls(tmp_path)) == 6


@pytest.mark.parametrize("kind", ["serial", "threads", "processes", "dask"])
def test_a_point_that_fails_is_said_and_run_again(kind: str, pools: dict[str, Executor | None], tmp_path: Path) -> None:
    with pytest.warns(
        UserWarning, match=r"sweep s: \{'x': [13]\} failed, and the next call will run it again: ValueError: no"
    ) as caught:
        first = sweep.run(odd_fails_first, {"x": [1, 2, 3]}, tmp_path, "s", pools[kind])
    assert len(caught) == 2
    assert first["twice"].tolist() == [pd.NA, 4, pd.NA]
    assert first["error"].isna().tolist() == [False, True, False]
    failed = [line for line in lines(tmp_path) if line.get("error")]
    assert all("odd_fails_first" in line["traceback"] for line in failed)
    second = sweep.run(odd_fails_first, {"x": [1, 2, 3]}, tmp_path, "s", pools[kind])
    assert second["twice"].tolist() == [2, 4, 6]
    assert second["run"].tolist() == [2, 1, 2]
    assert second["error"].isna().all()
    assert not set(second["session"][[0, 2]]) & set(first["session"])
    assert calls(tmp_path) == [[1, {"x": 1}], [1, {"x": 2}], [1, {"x": 3}], [2, {"x": 1}], [2, {"x": 3}]]


def test_a_larger_grid_runs_what_is_new(tmp_path: Path) -> None:
    sweep.run(odd_fails_first, [{"x": 2}], tmp_path, "s")
    frame = sweep.run(odd_fails_first, {"x": range(2, 5)}, tmp_path, "s")
    assert frame["run"].tolist() == [1, 2, 2]
    assert len(calls(tmp_path)) == 3


def test_points_need_not_have_the_same_parameters(tmp_path: Path) -> None:
    def size(run: sweep.Run, **parameters: object) -> dict[str, object]:
        return {"size": len(parameters), **({"kind": "b"} if "b" in parameters else {})}

    grid: list[dict[str, Any]] = [{"a": np.float64(0.5)}, {"b": (1, 2)}, {"a": 1, "b": {"y": 1, "x": None}}]
    frame = sweep.run(size, iter(grid), tmp_path, "s")
    assert frame["a"].tolist() == [0.5, pd.NA, 1.0]
    assert frame["b"].tolist() == [None, [1, 2], {"y": 1, "x": None}]
    assert frame["kind"].tolist() == [pd.NA, "b", "b"]
    again = sweep.run(size, [{"b": {"x": None, "y": 1}, "a": 1}], tmp_path, "s")
    assert again["run"].tolist() == [1], "the order of keys is no part of a point"


@pytest.mark.parametrize(
    ("grid", "expected_message"),
    [
        ({"x": "abc"}, "grid: expected several values for 'x'; got a str"),
        ({"x": [1], "y": {"a": 1}}, "expected several values for 'y'; got a dict"),
        ([{"x": 1}, {"x": 1}], r"the point \{'x': 1\} occurs twice\. To run .*, such as repeat=range\(5\)"),
        ({"session": ["a"]}, "'session' is a column of every sweep"),
        (5, "grid: expected a mapping of names to values for each point; got an int"),
        (None, "got None"),
        ([{"x": 1}, 5], "grid: expected a mapping of names to values for each point; got an int"),
    ],
)
def test_an_invalid_grid_is_refused(grid: Any, expected_message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=expected_message):
        sweep.run(odd_fails_first, grid, tmp_path, "s")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("member", "arguments"),
    [
        ("function", (5, {"x": [1]}, "runs", "s")),
        ("home", (odd_fails_first, {"x": [1]}, None, "s")),
        ("home", (odd_fails_first, {"x": [1]}, "\0", "s")),
        ("executor", (odd_fails_first, {"x": [1]}, "runs", "s", 4)),
    ],
)
def test_an_argument_that_cannot_be_used_is_named(
    member: str, arguments: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidConfig) as caught:
        sweep.run(*arguments)
    assert caught.value.member == member
    assert list(tmp_path.iterdir()) == []


def test_a_name_is_never_a_path(tmp_path: Path) -> None:
    with pytest.raises(InvalidId):
        sweep.run(odd_fails_first, {"x": [1]}, tmp_path, "../s")
    with pytest.raises(InvalidId):
        sweep.run(odd_fails_first, {"x": [1]}, tmp_path, "s" * 60)
    assert not list(tmp_path.rglob("*.jsonl")) or lines(tmp_path, "s" * 60) == []


@pytest.mark.parametrize(
    ("result", "expected_message"),
    [
        ({"y": float("nan")}, "result.y cannot be encoded: nan is not a JSON number"),
        ({"y": object()}, "JSON cannot represent an object"),
        ({"x": 1}, "result: 'x' is already a column"),
        ({"error": 1}, "result: 'error' is already a column"),
        (7, "has no attribute 'items'"),
    ],
)
def test_a_point_with_an_invalid_result_fails(result: Any, expected_message: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=expected_message):
        frame = sweep.run(lambda run, x: result, {"x": [1]}, tmp_path, "s")
    assert frame["error"].notna().all()


def test_a_second_sweep_of_the_name_is_refused(tmp_path: Path) -> None:
    def again(run: sweep.Run, x: int) -> None:
        sweep.run(odd_fails_first, {"x": [2]}, tmp_path, "s")

    with pytest.warns(
        UserWarning, match=rf"SessionLocked.*s\.jsonl is open for writing in process {os.getpid()}\. Wait until it ends"
    ):
        sweep.run(again, {"x": [1]}, tmp_path, "s")
    assert not (tmp_path / "calls").exists()
    sweep.run(odd_fails_first, {"x": [2]}, tmp_path, "s")


def test_exit_is_the_points_and_an_interrupt_is_ours(tmp_path: Path) -> None:
    def stops(run: sweep.Run, x: int) -> dict[str, int]:
        note(run, x=x)
        if x == 1:
            sys.exit("enough")
        if x == 3 and run.number == 1:
            raise KeyboardInterrupt
        return {"y": x}

    with pytest.raises(KeyboardInterrupt):
        sweep.run(stops, {"x": [1, 2, 3, 4]}, tmp_path, "s")
    with pytest.warns(UserWarning, match="SystemExit: enough"):
        frame = sweep.run(stops, {"x": [1, 2, 3, 4]}, tmp_path, "s")
    assert frame["y"].tolist() == [pd.NA, 2, 3, 4]
    assert [x["x"] for _, x in calls(tmp_path)] == [1, 2, 3, 1, 3, 4]


def test_a_pool_that_breaks_ends_the_sweep_and_keeps_what_is_done(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool, pytest.raises(BrokenExecutor):
        sweep.run(dies, {"x": [1, 2, 3]}, tmp_path, "s", pool)
    done = [line["parameters"]["x"] for line in lines(tmp_path) if line["kind"] == "point"]
    assert done == [1]


CHILD = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from loopkit import sweep
from tests.test_sweep import note

go = threading.Event()

def slow(run, x):
    note(run, x=x)
    if x >= 3:
        go.wait(60)
    return {"twice": 2 * x}

with ThreadPoolExecutor(2) as pool:
    try:
        sweep.run(slow, {"x": range(8)}, sys.argv[1], "s", pool if sys.argv[2] == "threads" else None)
    except KeyboardInterrupt:
        print("interrupted")
    go.set()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "number"), [("serial", signal.SIGKILL), ("threads", signal.SIGKILL), ("threads", signal.SIGINT)]
)
def test_a_sweep_that_is_killed_runs_only_what_is_missing(kind: str, number: int, tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path), kind], stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]
    )
    assert child.stdout is not None
    try:
        begun = 4 if kind == "serial" else 5
        _wait(lambda: (tmp_path / "calls").exists() and len(calls(tmp_path)) == begun)
        _wait(lambda: len(lines(tmp_path)) == 4)
        with pytest.raises(SessionLocked, match=f"in process {child.pid}"):
            sweep.run(odd_fails_first, {"x": range(8)}, tmp_path, "s")
        child.send_signal(number)  # after an interrupt the child lets its pool finish: what had not begun is called off
        assert child.stdout.read() == (b"interrupted\n" if number == signal.SIGINT else b"")
    finally:
        child.kill()
        child.wait(30)
        child.stdout.close()
    frame = sweep.run(odd_fails_first, {"x": range(8)}, tmp_path, "s")
    assert frame["twice"].tolist() == [2 * x for x in range(8)]
    assert frame["run"].tolist() == [1] * 3 + [2] * 5
    assert len([run for run, _ in calls(tmp_path) if run == 1]) == begun
    assert [x for run, x in calls(tmp_path) if run == 2] == [{"x": x} for x in range(3, 8)]


def _wait(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_an_unfinished_last_line_is_said_and_cut_off(tmp_path: Path) -> None:
    sweep.run(odd_fails_first, {"x": [2, 4]}, tmp_path, "s")
    log = tmp_path / "sweeps" / "s.jsonl"
    whole = log.read_bytes()
    for cut in (1, 30, len(whole.splitlines(keepends=True)[-1]) - 1):
        log.write_bytes(whole[:-cut])
        with pytest.warns(UserWarning, match=r"s\.jsonl:3: removed an unfinished line that a crash left"):
            frame = sweep.run(odd_fails_first, {"x": [2, 4]}, tmp_path, "s")
        assert frame["run"].tolist() == [1, 2]
        assert frame["twice"].tolist() == [4, 8]
        assert sweep.run(odd_fails_first, {"x": [2, 4]}, tmp_path, "s")["run"].tolist() == [1, 2]


def test_a_damaged_log_is_refused_with_its_line(tmp_path: Path) -> None:
    sweep.run(odd_fails_first, {"x": [2, 4]}, tmp_path, "s")
    log = tmp_path / "sweeps" / "s.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole.replace(b'"twice":4', b'"twice":5'))
    with pytest.raises(TornLog, match=r"s\.jsonl:2: its crc is"):
        sweep.run(odd_fails_first, {"x": [2, 4]}, tmp_path, "s")
    (tmp_path / "sweeps" / "r.jsonl").write_bytes(b'{"kind":"user","crc":"28df839d"}\n')
    with pytest.raises(TornLog, match=r"r\.jsonl:1: not a line of a sweep: "):
        sweep.run(odd_fails_first, {"x": [2]}, tmp_path, "r")


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "sweeps").touch()
    with pytest.raises(SessionIOError, match="sweeps: cannot make the directory: File exists"):
        sweep.run(odd_fails_first, {"x": [2]}, tmp_path, "s")


@pytest.mark.server
def test_sessions_of_a_sweep_join_its_rows(tiny: Server, tmp_path: Path) -> None:
    def ask(run: sweep.Run, questions: int) -> dict[str, int]:
        with start(tiny, system="Be brief. " * 20, home=run.home, id=run.session, memory="", options={"temperature": 0}) as loop:
            loop.on_event = None
            for number in range(questions):
                loop.ask(f"Question {number}.")
        return {"asked": questions}

    frame = sweep.run(ask, {"questions": [1, 3]}, tmp_path, "s")
    sessions = load(tmp_path).sessions.merge(frame, on="session")
    assert sorted(sessions["requests"]) == [1, 3]
    assert (sessions["requests"] == sessions["asked"]).all()
