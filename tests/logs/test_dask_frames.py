"""``scan``: dask dataframes of the same rows, dtypes and totals as ``load``'s, on a real cluster that loses a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from distributed import Client, LocalCluster, get_worker

from loopkit import logs
from loopkit.errors import LogError, TornLog
from loopkit.logs.frames import arrays, schema
from loopkit.logs.loading import load
from tests.benchmarks.transcripts import write_transcripts
from tests.logs import make

ONE = 10_000
"Bytes of two or three of the sessions here."


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for number in range(12):
        first = [make.start(f"s{number:02}"), *make.kept(3 + number, loses=frozenset([3]))]
        second = [[make.start(f"s{number:02}", 1, at=200), *make.kept(2, at=201)]] if number % 3 == 0 else []
        make.write_session(tmp_path, f"s{number:02}", [*first, make.end(100)] if second else first, *second)
    make.write(tmp_path / "replays" / "r.jsonl", make.replay("live_system", 4, session="s00", broken=True))
    return tmp_path


@pytest.fixture(scope="module")
def cluster() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,  # type: ignore[no-untyped-call]
        Client(cluster) as client,  # type: ignore[no-untyped-call]
    ):
        yield client


def by_keys(frame: pd.DataFrame) -> pd.DataFrame:
    keys = [name for name in ("session", "epoch", "turn", "request", "position") if name in frame]
    return frame.sort_values(keys).reset_index(drop=True)


def computed(frame: Any) -> pd.DataFrame:
    return frame.compute(scheduler="sync")  # type: ignore[no-any-return]


def test_the_rows_and_dtypes_are_those_of_load(home: Path) -> None:
    found, loaded = logs.scan(home, partition_bytes=ONE), load(home)
    assert found._fields == tuple(schema.FRAMES)
    assert found.usage.npartitions > 4
    for name in schema.FRAMES:
        frame = getattr(found, name)
        assert dict(frame.dtypes) == arrays.dtypes(name), "before anything is read"
        pd.testing.assert_frame_equal(by_keys(computed(frame)), by_keys(getattr(loaded, name)))


def test_a_session_stands_in_one_partition(home: Path) -> None:
    usage: Any = logs.scan(home, partition_bytes=1).usage
    assert usage.npartitions == 13, "sessions and a replay"
    each = [set(usage.get_partition(number).compute(scheduler="sync")["session"]) for number in range(13)]
    assert all(len(sessions) == 1 for sessions in each)
    assert len(set.union(*each)) == 13


def test_totals_on_a_cluster_are_those_of_load(home: Path, cluster: Client) -> None:
    found, loaded = logs.scan(home, partition_bytes=ONE), load(home)
    total = found.usage[["prompt_tokens", "cached_tokens", "lost_tokens"]].sum().compute()
    assert total.tolist() == loaded.usage[["prompt_tokens", "cached_tokens", "lost_tokens"]].sum().tolist()
    lost = found.cache_loss.groupby("cause")["lost_tokens"].sum().compute()
    expected = loaded.cache_loss.groupby("cause")["lost_tokens"].sum()
    assert lost.sort_index().tolist() == expected.tolist()
    reuse = found.epochs["reuse"].mean().compute()
    assert reuse == pytest.approx(loaded.epochs["reuse"].mean())


def test_a_killed_worker_does_not_change_the_totals(home: Path, cluster: Client) -> None:
    mark = home / "killed"

    def kill_once(frame: pd.DataFrame) -> pd.DataFrame:
        """The first worker that gets here is gone, as if the system had killed it."""
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            return frame
        mark.write_text(str(get_worker().address))
        os.kill(os.getpid(), signal.SIGKILL)
        return frame

    before = set(cluster.scheduler_info()["workers"])
    usage: Any = logs.scan(home, partition_bytes=1).usage
    total = usage.map_partitions(kill_once, meta=arrays.empty("usage"))["prompt_tokens"].sum().compute()
    assert total == load(home).usage["prompt_tokens"].sum()
    assert mark.read_text() in before
    cluster.wait_for_workers(2, timeout=60)
    assert mark.read_text() not in set(cluster.scheduler_info()["workers"])


def test_a_damaged_log_is_named_where_it_is_read_or_reported(home: Path) -> None:
    log = home / "sessions" / "s04" / "0.jsonl"
    log.write_bytes(log.read_bytes().replace(b"nine", b"ten!", 1))
    with pytest.raises(TornLog, match=r"s04.0\.jsonl:\d+: its crc"):
        computed(logs.scan(home, partition_bytes=ONE).usage)
    problems = computed(logs.scan(home, errors="report", partition_bytes=ONE).problems)
    pd.testing.assert_frame_equal(problems.reset_index(drop=True), load(home, errors="report").problems)


def test_two_sessions_of_one_id_are_refused(home: Path) -> None:
    make.write_session(home / "other", "s03", [make.start("s03"), *make.kept(1)])
    with pytest.raises(LogError, match=r"s03 has the same session id, .* Scan them separately"):
        logs.scan([home, home / "other"])


def test_copies_in_other_tools_logs_are_counted_once(tmp_path: Path) -> None:
    """A resumed conversation begins with a copy of the one before, in a file of its own."""
    write_transcripts(tmp_path, 3, 40)
    (first, *_) = sorted(tmp_path.rglob("*.jsonl"))
    first.with_name("resumed.jsonl").write_bytes(first.read_bytes())
    found, loaded = logs.scan(tmp_path, partition_bytes=1), load(tmp_path)
    assert len(loaded.usage) > 0
    assert loaded.problems["kind"].tolist() == ["left_out"]
    assert len(computed(found.usage)) == len(loaded.usage)
    assert computed(found.usage)["prompt_tokens"].sum() == loaded.usage["prompt_tokens"].sum()


def test_an_empty_home_has_all_columns(tmp_path: Path) -> None:
    (tmp_path / "sessions").mkdir()
    for name, frame in logs.scan(tmp_path)._asdict().items():
        assert len(computed(frame)) == 0
        assert dict(computed(frame).dtypes) == arrays.dtypes(name)


def test_a_log_that_grew_is_read_again_though_dask_holds_what_it_was(home: Path, cluster: Client) -> None:
    held = logs.scan(home).usage.persist()  # type: ignore[no-untyped-call]
    rows = len(held)
    make.write_session(home, "s00", [make.start("s00"), *make.kept(30)])
    assert len(logs.scan(home).usage) == len(load(home).usage) > rows


def test_without_dask_it_says_what_to_install(home: Path) -> None:
    code = "import sys; sys.modules['dask'] = None; from loopkit import logs; logs.scan(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, str(home)], capture_output=True, text=True, check=False)
    assert "InvalidConfig: dask: `scan` needs dask, which is not installed. Run `pip install 'loopkit-lab[scale]'`" in done.stderr


def test_the_room_names_what_it_has() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'scn'"):
        _: Any = logs.scn
