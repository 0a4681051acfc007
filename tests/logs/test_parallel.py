"""Loading on executors: the same frames, the same problems in the same order, the same first error."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from distributed import Client, LocalCluster

from loopkit.errors import TornLog
from loopkit.logs import parallel
from loopkit.logs.frames import schema
from loopkit.logs.loading import load
from tests.logs import make


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[str, Executor]]:
    with (
        ThreadPoolExecutor(2) as threads,
        ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as processes,
        LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as cluster,  # type: ignore[no-untyped-call]
        Client(cluster) as client,  # type: ignore[no-untyped-call]
    ):
        yield {
            "threads": threads,
            "processes": processes,
            "dask": client.get_executor(pure=False),
            "last first": Backwards(),
        }


class Backwards(Executor):
    """Runs nothing until the first result is asked for, and then the last call first."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def submit(self, fn: Any, /, *args: Any, **more: Any) -> Future[Any]:
        future = Asked(self)
        self.calls.append((future, lambda: fn(*args, **more)))
        return future


class Asked(Future[Any]):
    def __init__(self, executor: Backwards) -> None:
        super().__init__()
        self.executor = executor

    def result(self, timeout: float | None = None) -> Any:
        while self.executor.calls:
            future, call = self.executor.calls.pop()
            future.set_result(call())
        return super().result(timeout)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve sessions of one or two epochs, and a replay, in batches of three files or so."""
    for number in range(12):
        first = [make.start(f"s{number:02}"), *make.kept(3 + number, loses=frozenset([3]))]
        second = [[make.start(f"s{number:02}", 1, at=200), *make.kept(2, at=201)]] if number % 3 == 0 else []
        make.write_session(tmp_path, f"s{number:02}", [*first, make.end(100)] if second else first, *second)
    make.write(tmp_path / "replays" / "r.jsonl", make.replay("live_system", 4, session="s00", broken=True))
    monkeypatch.setattr(parallel, "BATCH_BYTES", 15_000)
    return tmp_path


@pytest.mark.parametrize("kind", ["threads", "processes", "dask", "last first"])
def test_the_frames_are_those_of_one_core(kind: str, pools: dict[str, Executor], home: Path) -> None:
    alone, together = load(home), load(home, executor=pools[kind])
    assert len(alone.usage) > 100
    assert len(alone.cache_loss) == 15
    for name in schema.FRAMES:
        pd.testing.assert_frame_equal(getattr(together, name), getattr(alone, name))


@pytest.mark.parametrize("kind", ["threads", "processes", "dask", "last first"])
def test_problems_and_the_first_error_are_those_of_one_core(kind: str, pools: dict[str, Executor], home: Path) -> None:
    for number in (4, 7, 11):
        log = home / "sessions" / f"s{number:02}" / "0.jsonl"
        log.write_bytes(log.read_bytes().replace(b"nine", b"ten!", number))
    (home / "sessions" / "s08" / "0.jsonl").unlink()
    alone = load(home, errors="report")
    assert len(alone.problems) >= 4
    together = load(home, errors="report", executor=pools[kind])
    pd.testing.assert_frame_equal(together.problems, alone.problems)
    pd.testing.assert_frame_equal(together.usage, alone.usage)
    (home / "sessions" / "s08").rename(home / "away")
    with pytest.raises(TornLog) as one:
        load(home)
    with pytest.raises(TornLog) as other:
        load(home, executor=pools[kind])
    assert str(other.value) == str(one.value)
    assert "s04" in str(one.value)


def test_what_has_not_begun_is_called_off_at_an_error(home: Path) -> None:
    log = home / "sessions" / "s00" / "0.jsonl"
    log.write_bytes(log.read_bytes()[:-1])
    made: list[Future[Any]] = []

    class One(ThreadPoolExecutor):
        def submit(self, fn: Any, /, *args: Any, **more: Any) -> Future[Any]:
            made.append(super().submit(fn, *args, **more))
            return made[-1]

    with One(1) as pool, pytest.raises(TornLog, match="s00"):
        load(home, executor=pool)
    assert len(made) > 4
    assert all(future.done() for future in made)


def test_small_files_go_together_and_large_ones_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def calls(together: int) -> int:
        monkeypatch.setattr(parallel, "BATCH_BYTES", together)
        pool = Backwards()
        submit = pool.submit
        count = 0

        def counted(*args: Any, **more: Any) -> Future[Any]:
            nonlocal count
            count += 1
            return submit(*args, **more)

        pool.submit = counted  # type: ignore[method-assign]
        load(home, executor=pool)
        return count

    assert calls(1) == 17
    assert calls(1 << 24) == 1
