"""Parquet gives back what was written; CSV loses no digit and holds no formula."""

from __future__ import annotations

import builtins
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopkit.contract.records import LogRecord
from loopkit.errors import InvalidConfig, LogError
from loopkit.logs.collection import Logs
from loopkit.logs.frames import arrays, schema
from loopkit.logs.loading import load
from tests.logs.make import assistant, end, kept, loss, replay, result, start, usage, user, write, write_session
from tests.logs.test_load import TOOLS, column

MALFORMED = Path(__file__).parents[3] / "data" / "malformed"
LARGE = (1 << 53) + 1
"The first count that a float does not hold."
counts = st.none() | st.integers(0, 9) | st.sampled_from([LARGE, (1 << 63) - 1])
times = st.none() | st.floats(0, 1e6)
texts = st.none() | st.sampled_from(["", "stop", "=1+1", 'a,"b"\n', "é\u2028"])


def assert_equal(one: Logs, other: Logs) -> None:
    assert one.unread == other.unread
    for frame in schema.FRAMES:
        pd.testing.assert_frame_equal(getattr(one, frame), getattr(other, frame))
        assert getattr(one, frame).attrs == getattr(other, frame).attrs


@st.composite
def groups(draw: st.DrawFn) -> list[LogRecord]:
    """Turns with whatever a server may have said."""
    records: list[LogRecord] = []
    for request in range(1, draw(st.integers(0, 3)) + 1):
        records += [user(request), assistant(request + 0.25, call="c" if draw(st.booleans()) else None)]
        numbers: dict[str, Any] = {"completion_tokens": draw(counts), "ttft_ms": draw(times), "prompt_ms": draw(times)}
        more: dict[str, Any] = {"shortfall": "granularity"} if draw(st.booleans()) else {}
        expected = draw(st.none() | st.integers(1, 9))
        finish = draw(texts)
        records.append(
            usage(request + 0.5, request, draw(counts), draw(counts), expected=expected, finish_reason=finish, **numbers, **more)
        )
        if draw(st.booleans()):
            records.append(loss(request + 0.5, request, expected=draw(st.integers(2, 9)), cached=1))
        if records[-1].__class__.__name__ == "UsageRecord" and draw(st.booleans()):
            records.append(result(request + 0.75, request, "c"))
    return [*records, *([end(9)] if draw(st.booleans()) else [])]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_load_of_to_parquet_is_the_identity(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("home")
    (home / "sessions").mkdir()
    for session in data.draw(st.lists(st.sampled_from(["000123", "1344800117571260417", "a", "NA"]), max_size=3, unique=True)):
        model = data.draw(texts)
        epochs = data.draw(st.lists(groups(), min_size=1, max_size=2))
        write_session(home, session, *([start(session, number, model=model), *made] for number, made in enumerate(epochs)))
    if data.draw(st.booleans()):
        write(home / "replays" / "r.jsonl", replay(data.draw(st.sampled_from([None, "live_system"])), 3, broken=True))
    logs = load(home, content=data.draw(st.booleans()))
    logs.to_parquet(home / "tables")
    assert_equal(load(home / "tables", content=logs.content), logs)


def test_problems_and_epochs_come_through(tmp_path: Path) -> None:
    logs = load(MALFORMED, errors="report", content=True)
    logs = Logs(tuple(part for part in logs.parts if part.session != "text-changed"), logs.unread, content=True)
    logs.to_parquet(tmp_path)
    again = load(tmp_path, content=True)
    assert again.unread == logs.unread
    assert_equal(again, logs)
    assert_equal(again.where(session="two-users"), logs.where(session="two-users"))
    assert list(again.requests()) == [], "what was sent is in no frame"
    assert again.diagnose().requests == len(logs.usage)


def test_logs_of_other_tools_come_through(tmp_path: Path) -> None:
    logs = load(MALFORMED.parent / "foreign", errors="report", content=True)
    assert len(logs.sessions) > 10
    logs.to_parquet(tmp_path)
    again = load(tmp_path, content=True)
    assert_equal(again, logs)
    assert again.diagnose().coverage == logs.diagnose().coverage


def test_problems_alone_come_through(tmp_path: Path) -> None:
    (tmp_path / "notes.jsonl").write_bytes(b"{}\n")
    logs = load(tmp_path / "notes.jsonl", errors="report")
    assert len(logs.problems) == 1
    logs.to_parquet(tmp_path / "tables")
    assert_equal(load(tmp_path / "tables"), logs)


def test_a_turn_of_unknown_length_comes_through(tmp_path: Path) -> None:
    log = (MALFORMED.parent / "foreign/claude_code/told_in_lines.jsonl").read_bytes().split(b"\n")
    log[1:] = [re.sub(rb'"timestamp":"[^"]*"', b'"timestamp":"now"', line) for line in log[1:]]
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(log))
    logs = load(tmp_path / "x.jsonl")
    assert logs.turns["elapsed_ms"].isna().all()
    logs.to_parquet(tmp_path / "tables")
    assert_equal(load(tmp_path / "tables"), logs)


def test_exports_of_older_versions_load_with_todays_names(tmp_path: Path) -> None:
    logs = load(MALFORMED, errors="report", content=True)
    logs = Logs(tuple(part for part in logs.parts if part.session != "text-changed"), logs.unread, content=True)
    write_session(tmp_path, "lossy", [start("lossy"), *kept(9, loses=frozenset({3}))])
    logs = logs.concat(load(tmp_path, content=True))
    logs.to_parquet(tmp_path / "tables")
    old_names = {
        "cache_loss": {"fixable_by": "mendable_by", "location": "where"},
        "messages": {"position": "index"},
        "problems": {"affected": "count"},
    }
    for frame, names in old_names.items():
        path = tmp_path / "tables" / f"{frame}.parquet" / "0000.parquet"
        pd.read_parquet(path).rename(columns=names).to_parquet(path, index=False)
        assert set(names.values()) <= set(pd.read_parquet(path).columns)
    assert len(logs.cache_loss) > 0
    assert len(logs.problems) > 0
    assert_equal(load(tmp_path / "tables", content=True), logs)


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("parts.parquet", "usage_rows", 99),
        ("parts.parquet", "losses_rows", -1),
        ("parts.parquet", "turns_rows", 7),
        ("parts.parquet", "started", "then"),
        ("usage.parquet/0000.parquet", "request", "first"),
        ("problems.parquet/0000.parquet", "more", 1),
        ("messages.parquet/0000.parquet", "bytes", "many"),
    ],
)
def test_a_table_that_others_have_changed_is_named(tmp_path: Path, table: str, column: str, value: int | str) -> None:
    write_session(tmp_path, "a", TOOLS)
    (tmp_path / "sessions" / "b").mkdir()
    load(tmp_path, errors="report").to_parquet(tmp_path / "tables")
    path = tmp_path / "tables" / table
    changed = pd.read_parquet(path)
    changed[column] = value
    changed.to_parquet(path)
    with pytest.raises(LogError, match=r"tables: the files are not as `to_parquet` wrote them: "):
        _ = load(tmp_path / "tables").messages
    path.write_bytes(b"PAR1")
    with pytest.raises(LogError, match=r"tables: the files are not as `to_parquet` wrote them: "):
        _ = load(tmp_path / "tables").messages
    path.unlink()
    with pytest.raises(LogError, match=r"the files are not as `to_parquet` wrote them|neither a home nor a session"):
        _ = load(tmp_path / "tables").messages


def test_a_frame_of_many_rows_is_in_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_session(tmp_path, "a", [start("a"), *kept(25, loses=frozenset({7, 13}))])
    monkeypatch.setattr("loopkit.logs.frames.files.ROWS", 10)
    logs = load(tmp_path)
    logs.to_parquet(tmp_path / "tables")
    assert len(list((tmp_path / "tables" / "usage.parquet").iterdir())) == 3
    assert_equal(load(tmp_path / "tables"), logs)
    assert len(pd.read_parquet(tmp_path / "tables" / "usage.parquet")) == 25, "other programs read a directory as one table"


def test_nothing_is_overwritten_and_half_a_directory_is_none(tmp_path: Path) -> None:
    write_session(tmp_path, "a", TOOLS)
    logs = load(tmp_path)
    logs.to_parquet(tmp_path / "tables")
    for write_again in (logs.to_parquet, logs.to_csv):
        with pytest.raises(LogError, match="nothing is overwritten"):
            write_again(tmp_path / "tables")
    (tmp_path / "tables" / "usage.parquet" / "0000.parquet").unlink()
    with pytest.raises(LogError, match="the files are not as `to_parquet` wrote them"):
        load(tmp_path / "tables")
    (tmp_path / "tables" / "parts.parquet").unlink()
    with pytest.raises(LogError, match="neither a home nor a session"):
        load(tmp_path / "tables")


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *more: Any, **named: Any) -> Any:
        if name == "pyarrow":
            raise ImportError(name)
        return real(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr(arrays, "STRING", pd.StringDtype("python"))  # as pandas has it then
    with pytest.raises(InvalidConfig, match=r"pyarrow: Parquet files need pyarrow.* `pip install 'loopkit-lab\[scale\]'`"):
        load([]).to_parquet(tmp_path / "tables")
    assert not (tmp_path / "tables").exists()


def read_csv(directory: Path, frame: str) -> pd.DataFrame:
    """As a person would who knows the schema."""
    moments = [name for name, dtype in arrays.dtypes(frame).items() if dtype == arrays.TIME]
    kinds = {name: dtype for name, dtype in arrays.dtypes(frame).items() if name not in moments}
    made = pd.read_csv(directory / f"{frame}.csv", dtype=kinds, keep_default_na=False, na_values=[""])
    for name in moments:
        made[name] = pd.to_datetime(made[name], utc=True).astype(arrays.TIME)
    return made


def test_no_digit_is_lost_in_csv(tmp_path: Path) -> None:
    for session in ("000123", "1344800117571260417"):
        records: list[LogRecord] = [
            user(1),
            assistant(2),
            usage(2, 1, LARGE, None),
            user(3),
            assistant(4),
            usage(4, 2, None, 7, ttft_ms=0.1),
        ]
        write_session(tmp_path, session, [start(session), *records])
    logs = load(tmp_path)
    assert column(logs.usage, "prompt_tokens") == [LARGE, None] * 2
    logs.to_csv(tmp_path / "csv")
    for frame in schema.FRAMES:
        pd.testing.assert_frame_equal(read_csv(tmp_path / "csv", frame), getattr(logs, frame), check_like=False)
    lines = (tmp_path / "csv" / "usage.csv").read_bytes().split(b"\n")
    assert lines[1].startswith(b'"000123",0,1,1,"2026-11-30T00:00:02.000000Z","tiny",%d,"",' % LARGE)


def test_no_cell_of_a_csv_is_a_formula(tmp_path: Path) -> None:
    bad = ['=HYPERLINK("http://x")', "+1", "-1", "@sum", "\tx", "\rx"]
    good = ["1-1", "a=b", "", "'=1"]
    records: list[LogRecord] = [start("a", model="=1+1")]
    for number, text in enumerate([*bad, *good]):
        records += [user(number, text), assistant(number), usage(number, number + 1, 1, 1, finish_reason=text)]
    write_session(tmp_path, "a", records)
    load(tmp_path, content=True).to_csv(tmp_path / "csv")
    usages = pd.read_csv(tmp_path / "csv" / "usage.csv", dtype=str, keep_default_na=False)
    assert usages["finish_reason"].tolist() == ["'" + text for text in bad] + good
    assert set(usages["model"]) == {"'=1+1"}
    messages = pd.read_csv(tmp_path / "csv" / "messages.csv", dtype=str, keep_default_na=False)
    assert messages["content"][messages["role"] == "user"].tolist() == ["'" + text for text in bad] + good
