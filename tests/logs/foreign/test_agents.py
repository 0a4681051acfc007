"""Logs of other tools: samples of every trap against the tables that were worked out by hand, number by number."""

from __future__ import annotations

import csv
import json
import os
import pickle
import re
import shutil
import tracemalloc
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import loopkit as lk
from loopkit.contract.provenance import Role
from loopkit.engines.evidence.observation import Observation
from loopkit.errors import LogError, TornLog
from loopkit.logs.collection import Logs
from loopkit.logs.foreign import formats
from loopkit.logs.frames import arrays, schema
from loopkit.logs.summary import summary

HERE = Path(__file__).parents[3] / "data" / "foreign"
SAMPLES = sorted(
    str(path.relative_to(HERE).with_suffix("")) for path in HERE.glob("*/*.csv") if path.parent.name in schema.SOURCES
)


def place(sample: str) -> Path:
    [found] = [path for path in HERE.glob(f"{sample}*") if path.suffix != ".csv" and path.name.split(".")[0] == Path(sample).name]
    return found


def load(sample: str, **how: Any) -> Logs:
    return lk.load(place(sample), errors="report", **how)


def rows(path: Path, sample: str | None = None) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    return found if sample is None else [row for row in found if row.pop("sample") == sample]


def written(frame: pd.DataFrame, like: list[dict[str, str]]) -> list[dict[str, str]]:
    """A frame as the rows of a table."""
    texts = frame.astype("string").fillna("")
    return [{name: row[name] for name in like[0]} for row in texts.to_dict("records")]


def only(frame: pd.DataFrame) -> Any:
    [row] = frame.itertuples()
    return row


def evidence(frame: pd.DataFrame) -> dict[int, Any]:
    """What each loss rests on, by the number of its request."""
    return {
        request: json.loads(text) for request, text in zip(frame["request"].tolist(), frame["evidence"].tolist(), strict=True)
    }


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_request_is_as_it_was_worked_out_by_hand(sample: str) -> None:
    logs = load(sample)
    keys = ["session", "epoch", "request"]
    requests = logs.usage.merge(logs.cache_loss[[*keys, "cause"]], how="left", on=keys)
    table = rows(HERE / f"{sample}.csv")
    assert written(requests, table) == table


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_session_is_as_it_was_worked_out_by_hand(sample: str) -> None:
    logs = load(sample)
    calls = logs.turns.groupby("session")["tool_calls"].sum().rename("tool_calls")
    table = rows(HERE / "agents_sessions.csv", sample)
    assert written(logs.sessions.merge(calls, on="session", how="left"), table) == table
    assert set(logs.sessions["source"]) == {sample.split("/")[0]}


@pytest.mark.parametrize("sample", SAMPLES)
def test_what_is_left_out_or_cannot_be_read_is_counted(sample: str) -> None:
    table = rows(HERE / "agents_problems.csv", sample)
    found = load(sample).problems
    assert written(found, table) == table if table else found.empty


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_loss_stands_at_its_request(sample: str) -> None:
    logs = load(sample)
    keys = ["session", "epoch", "turn", "request", "time", "lost_tokens", "cached_tokens", "expected_tokens"]
    both = logs.cache_loss[keys].merge(logs.usage[keys], on=keys)
    assert len(both) == len(logs.cache_loss) == (logs.usage["lost_tokens"].fillna(0) > 0).sum()


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_frames_are_those_of_the_schema(sample: str) -> None:
    logs = load(sample)
    for name in schema.FRAMES:
        assert dict(getattr(logs, name).dtypes) == arrays.dtypes(name)


@pytest.mark.parametrize("sample", SAMPLES)
def test_requests_and_messages_go_through_a_pickle(sample: str) -> None:
    logs = load(sample)
    again = Logs(pickle.loads(pickle.dumps(logs.parts)))
    assert again.messages.equals(logs.messages)
    for part, copy in zip(logs.parts, again.parts, strict=True):
        assert part.requests is not None
        assert copy.requests is not None
        seen = list(copy.requests())
        assert seen == list(part.requests())
        assert len(seen) == len(part.usage["request"])
        for each, count in zip(seen, part.usage["prompt_tokens"].tolist(), strict=True):
            if isinstance(each, Observation):
                assert each.usage.prompt_tokens == (None if count < 0 else count)


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_directory_of_all_is_read_like_each_by_itself(sample: str, tmp_path: Path) -> None:
    shutil.copytree(HERE / "claude_code", tmp_path / "projects" / "x")
    every = lk.load(tmp_path, errors="report").usage
    alone = load(sample).usage
    if sample.startswith("claude_code"):
        assert len(every[every["session"].isin(alone["session"])]) == len(alone)


@pytest.mark.parametrize("sample", [name for name in SAMPLES if "damaged" not in name])
def test_a_sound_log_loads_where_errors_are_raised(sample: str) -> None:
    assert lk.load(place(sample)).usage.equals(load(sample).usage)


def test_a_damaged_log_is_refused_with_its_line() -> None:
    with pytest.raises(TornLog, match=r"damaged.jsonl:3: invalid UTF-8 \(byte \d+ of the file\)"):
        lk.load(place("claude_code/damaged"))


def test_the_provider_s_own_verdict_wins_and_ours_stands_beside_it() -> None:
    losses = load("claude_code/lost").cache_loss
    told = only(losses[losses["request"] == 7])
    stands = evidence(losses)[7]
    assert (told.cause, told.certainty, told.fixable_by) == ("tools_changed", "confirmed", "client")
    assert stands["provider_verdict"] == "tools_changed"
    assert stands["provider_missed_tokens"] == 20801
    assert stands["ours"]["cause"] == "unexplained"


def test_an_idle_cache_is_measured_by_the_time_that_it_was_paid_for() -> None:
    losses = load("claude_code/lost").cache_loss
    found = evidence(losses)
    assert [(found[at]["kept_seconds"], found[at]["idle_seconds"]) for at in (2, 5)] == [(300, 400), (3600, 3684)]


def test_the_order_of_the_lines_does_not_matter(tmp_path: Path) -> None:
    for sample in ("claude_code/compacted", "claude_code/branches", "claude_code/lost"):
        lines = place(sample).read_bytes().splitlines(keepends=True)
        (tmp_path / "x.jsonl").write_bytes(b"".join(reversed(lines)))
        found, told = lk.load(tmp_path / "x.jsonl").usage, load(sample).usage
        keys = ["epoch", "prompt_tokens", "expected_tokens", "lost_tokens"]
        assert sorted(found[keys].to_numpy().tolist()) == sorted(told[keys].to_numpy().tolist())


def test_a_clock_that_goes_back_is_not_two_requests_at_once() -> None:
    loss = only(load("claude_code/out_of_order").cache_loss)
    assert json.loads(loss.evidence)["idle_seconds"] is None
    assert load("claude_code/out_of_order").sessions["started"][0] < load("claude_code/out_of_order").sessions["ended"][0]


def test_an_epoch_ends_where_history_was_compacted() -> None:
    assert load("claude_code/compacted").epochs["end_reason"].fillna("").tolist() == ["compacted", "compacted", ""]
    assert load("codex/compacted").epochs["end_reason"].fillna("").tolist() == ["compacted", ""]


def test_the_model_of_each_request_is_its_own() -> None:
    models = load("claude_code/lost").usage["model"].tolist()
    assert [new for old, new in pairwise(models) if old != new] == ["claude-haiku-4-5"]


TOLD = {
    "claude_code/told_in_lines": [
        ("user", "Look.", None),
        ("assistant", 'Well.\nBash({"command":"ls"})', None),
        ("tool", "one", "Bash"),
        ("tool", "two", "Bash"),
        ("assistant", "Well.", None),
    ],
    "pi/branches": [
        ("user", "One.", None),
        ("assistant", 'I look.\nbash({"command":"ls"})', None),
        ("tool", "a file", "bash"),
        ("assistant", "Well.", None),
        ("user", "Two.", None),
        ("assistant", "Well.", None),
        ("user", "Two was tried.", None),
        ("user", "Three.", None),
        ("assistant", "Well.", None),
    ],
    "codex/totals": [
        ("user", "One.", None),
        ("assistant", 'shell({"command":["ls"]})', None),
        ("tool", "a file", "shell"),
        ("assistant", "Well.", None),
        ("user", "Two.", None),
        ("assistant", "Well.", None),
    ],
}


@pytest.mark.parametrize("sample", TOLD)
def test_messages_are_there_when_they_are_asked_for(sample: str) -> None:
    found = load(sample, content=True).messages
    told = list(
        zip(found["role"], found["content"], found["tool"].astype(object).where(found["tool"].notna(), None), strict=True)
    )
    assert told == TOLD[sample]
    assert found["bytes"].tolist() == [len(content) for _, content, _ in told]
    assert found["position"].tolist() == list(range(len(told)))
    assert load(sample).messages.equals(found.drop(columns="content"))


def test_a_message_of_codex_stands_in_its_turn() -> None:
    assert load("codex/totals").messages["turn"].tolist() == [1, 1, 1, 1, 2, 2]


def test_messages_of_a_resumed_copy_are_told_once() -> None:
    found = load("claude_code/resumed", content=True).messages
    assert Counter(found["content"]) == {"One.": 1, "Two.": 1, "Three.": 1, "Well.": 3}


def test_a_record_says_where_its_text_stands() -> None:
    path = place("claude_code/told_in_lines")
    data = path.read_bytes()
    found = list(formats.records(path))
    assert [record.role for record in found] == [Role.User, Role.Assistant, Role.ToolResult, Role.ToolResult, Role.Assistant]
    assert found[0].timestamp == "2026-11-30T09:00:00.000000Z"
    for record in found:
        assert record.provenance.source == "lines"
        line = data[record.provenance.offset :].split(b"\n")[0]
        assert json.dumps(record.text.split("\n")[0])[1:-1].encode() in line


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_a_file_without_a_line_is_no_fault(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.jsonl").write_bytes(data)
    shutil.copy(place("pi/branches"), tmp_path)
    logs = lk.load(tmp_path)
    assert (len(logs.sessions), len(logs.problems)) == (1, 2)


def test_a_file_of_no_known_kind_is_refused_by_name_and_passed_over_in_a_directory(tmp_path: Path) -> None:
    (tmp_path / "notes.jsonl").write_bytes(b'{"note":"buy bread"}\n')
    with pytest.raises(LogError, match=r"notes\.jsonl: the format is unknown\. Supported formats, .*claude_code, "):
        lk.load(tmp_path / "notes.jsonl")
    shutil.copy(place("pi/branches"), tmp_path)
    assert sorted(problem.kind for problem in lk.load(tmp_path).unread) == ["left_out", "not_a_log"]


def test_a_format_is_known_by_what_stands_in_it_and_not_by_its_name(tmp_path: Path) -> None:
    for sample in SAMPLES:
        if place(sample).is_file() and "damaged" not in sample:
            shutil.copy(place(sample), tmp_path / "anything")
            assert formats.read(tmp_path / "anything").parts[0].source == sample.split("/")[0]


def test_what_tells_of_a_sub_agent_is_no_log_of_its_own(tmp_path: Path) -> None:
    shutil.copytree(HERE / "claude_code" / "sub_agents", tmp_path / "x")
    (tmp_path / "x" / "main" / "subagents" / "agent-a1.meta.json").write_text('{"agentType":"Explore"}')
    assert [problem.kind for problem in lk.load(tmp_path / "x").unread] == ["left_out"]


def test_how_much_could_be_judged_is_said() -> None:
    lost = load("claude_code/lost").diagnose()
    assert (lost.requests, len(lost.losses)) == (9, 6)
    assert lost.coverage.with_usage == 1
    assert lost.coverage.with_a_cause == pytest.approx(1 - 8000 / 98102)
    assert load("claude_code/nulls").diagnose().coverage.with_usage == 0.5


def test_no_id_becomes_a_path(tmp_path: Path) -> None:
    log = place("claude_code/branches").read_bytes().replace(b'"sessionId":"tree"', b'"sessionId":"../../etc/passwd"')
    (tmp_path / "x.jsonl").write_bytes(log)
    logs = lk.load(tmp_path / "x.jsonl")
    assert logs.sessions["session"].tolist() == ["../../etc/passwd"]
    assert logs.sessions["path"].tolist() == [str(tmp_path / "x.jsonl")]


def test_two_files_with_different_requests_of_one_session_are_two_sessions(tmp_path: Path) -> None:
    log = place("claude_code/branches").read_bytes()
    (tmp_path / "a.jsonl").write_bytes(log)
    (tmp_path / "b.jsonl").write_bytes(log.replace(b"tree-m", b"tree-n"))
    assert lk.load(tmp_path).sessions["session"].tolist() == ["tree", "tree+2"]


def test_one_file_in_two_places_counts_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copy(place("codex/totals"), tmp_path / f"{name}.jsonl")
    logs = lk.load(tmp_path)
    assert (len(logs.sessions), logs.usage["prompt_tokens"].sum()) == (1, 28000)


@pytest.mark.parametrize("sample", ["claude_code/told_in_lines", "pi/branches", "codex/totals"])
def test_a_log_cut_anywhere_is_read_up_to_the_cut(tmp_path: Path, sample: str) -> None:
    path, whole = tmp_path / "cut.jsonl", place(sample).read_bytes()
    path.write_bytes(whole)
    full = formats.read(path).parts[0].usage["prompt_tokens"].tolist()
    for end in range(1, len(whole), 37):
        path.write_bytes(whole[:end])
        try:
            found = formats.read(path, errors="report")
        except LogError:  # too little is left to know its format
            assert end < 200
            continue
        counts = [count for part in found.parts for count in part.usage["prompt_tokens"].tolist()]
        assert counts == full[: len(counts)]
        torn = [problem for problem in found.problems if problem.kind == "torn"]
        assert len(torn) <= 1


def lines(path: Path, *entries: dict[str, Any]) -> Path:
    """Write a log of another tool."""
    path.write_bytes(b"".join(json.dumps(entry).encode() + b"\n" for entry in entries))
    return path


def transcript_answer(number: int, time: str) -> dict[str, Any]:
    """A request in a transcript of Claude Code."""
    usage = {"input_tokens": 10, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 90, "output_tokens": 1}
    message = {"id": f"m{number}", "stop_reason": "end_turn", "content": [], "usage": usage}
    before = f"u{number - 1}" if number > 1 else None
    return {
        "type": "assistant",
        "uuid": f"u{number}",
        "parentUuid": before,
        "sessionId": "s",
        "timestamp": time,
        "message": message,
    }


@pytest.mark.parametrize(
    ("time", "known"),
    [
        ("2026-11-30T07:31:05.123456789+05:45", True),
        ("9999-12-31T23:59:59.999Z", True),
        ("9999-12-31T23:59:59.999-23:00", True),
        ("0001-01-01T00:00:00+23:59", True),
        ("2026-11-30T07:31:05", False),
        ("2026-13-30T07:31:05.000Z", False),
        ("yesterday", False),
        ("", False),
    ],
)
def test_a_time_that_is_no_moment_is_missing_and_counted(tmp_path: Path, time: str, known: bool) -> None:
    logs = lk.load(
        lines(
            tmp_path / "x.jsonl",
            transcript_answer(1, time),
            transcript_answer(2, "2026-11-30T07:31:05.000Z"),
            transcript_answer(3, time),
        )
    )
    assert logs.usage["time"].notna().tolist() == [known, True, known]
    assert [problem.affected for problem in logs.unread] == ([] if known else [2])
    assert (len(logs.cache_loss), len(logs.diagnose().losses)) == (2, 2)


def test_a_count_that_cannot_be_is_missing_and_counted(tmp_path: Path) -> None:
    def total(prompt: int, cached: int) -> dict[str, Any]:
        counts = {"input_tokens": prompt, "cached_input_tokens": cached, "output_tokens": 1}
        info = {"total_token_usage": counts, "last_token_usage": None}
        return {"timestamp": "2026-11-30T07:31:05Z", "type": "event_msg", "payload": {"type": "token_count", "info": info}}

    begin = {"timestamp": "2026-11-30T07:31:05Z", "type": "session_meta", "payload": {"id": "c"}}
    logs = lk.load(lines(tmp_path / "x.jsonl", begin, total(100, 500), total(200, 550)))
    assert logs.usage["cached_tokens"].astype(object).tolist() == [pd.NA, 50]
    assert logs.usage["read_tokens"].astype(object).tolist() == [pd.NA, 50]
    assert [problem.why for problem in logs.unread] == ["cached token counts that exceed their prompt"]


def of_claude_code(number: int, fresh: int) -> dict[str, Any]:
    entry = transcript_answer(number, "2026-11-30T07:31:05Z")
    entry["message"]["usage"]["input_tokens"] = fresh
    return entry


def of_pi(number: int, fresh: int) -> dict[str, Any]:
    usage = {"input": fresh, "cacheRead": 0, "cacheWrite": 90, "output": 1}
    message = {"role": "assistant", "content": [], "usage": usage, "timestamp": 1775448000100 + number}
    return TIME | {"type": "message", "id": str(number), "parentId": None, "message": message}


def of_codex(number: int, fresh: int) -> dict[str, Any]:
    counts = {"input_tokens": fresh if fresh != 10 else number * 100, "cached_input_tokens": 0, "output_tokens": number}
    return TIME | {"type": "event_msg", "payload": {"type": "token_count", "info": {"total_token_usage": counts}}}


@pytest.mark.parametrize("fresh", [-1, (1 << 53) + 1, 1 << 63, 10**30])
@pytest.mark.parametrize("make", [of_claude_code, of_pi, of_codex])
def test_a_count_below_zero_or_beyond_all_costs_no_line(
    tmp_path: Path, make: Callable[[int, int], dict[str, Any]], fresh: int
) -> None:
    """A gateway that takes the cached tokens off twice writes a fresh input below 0."""
    begin = [BEGINNINGS[name] for name in ("pi", "codex") if name in make.__name__]
    logs = lk.load(lines(tmp_path / "x.jsonl", *(TIME | entry for entry in begin), make(1, 10), make(2, fresh), make(3, 10)))
    [problem] = logs.unread
    assert (problem.kind, problem.why) == (
        "left_out",
        "impossible token counts (negative or too large), with the other counts of their request",
    )
    known = logs.usage["prompt_tokens"].notna().tolist()
    assert known == ([True, True] if make is of_codex else [True, False, True]), "of a running total the next one tells"
    if make is of_codex:
        assert logs.usage["prompt_tokens"].sum() == 300


def test_what_codex_moves_on_to_costs_no_line_and_is_counted(tmp_path: Path) -> None:
    items: list[dict[str, Any]] = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": 5}, {"type": "input_image"}]},
        {"type": "tool_search_call", "name": {"of": "a tool"}, "arguments": {"query": "a"}, "call_id": 7},
        {"type": "function_call", "name": "find", "arguments": {"query": "a"}, "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "here"}]},
        {"type": "reasoning", "encrypted_content": "x"},
    ]
    entries = [{"type": "response_item", "payload": item} for item in items]
    moved = {"type": "event_msg", "payload": {"type": "item_completed", "message": {"text": "x"}}}
    path = lines(tmp_path / "x.jsonl", *(TIME | entry for entry in (BEGINNINGS["codex"], *entries, moved)))
    logs = lk.load(path, content=True)
    assert [problem.why for problem in logs.unread] == ["items of unknown type 'tool_search_call'"]
    assert logs.messages["content"].tolist()[1:] == ['find({"query":"a"})', "here"]
    assert logs.messages["tool"].tolist()[2] == "find"


def test_a_name_that_is_no_utf_8_is_a_name_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff.jsonl")
    lines(path, transcript_answer(1, "2026-11-30T07:31:05.000Z"), {"type": "mood"})
    logs = lk.load(tmp_path, content=True)
    assert logs.sessions["path"].tolist() == [str(tmp_path / r"\udcff.jsonl")] == logs.problems["path"].tolist()
    logs.to_csv(tmp_path / "csv")
    logs.to_parquet(tmp_path / "parquet")
    again = lk.load(tmp_path / "parquet")
    pd.testing.assert_frame_equal(again.sessions, logs.sessions)
    assert "\udcff" not in "".join(summary(logs))


@pytest.mark.parametrize("content", [False, True])
def test_a_file_that_was_replaced_since_is_not_asked_for_more(tmp_path: Path, content: bool) -> None:
    path = tmp_path / "x.jsonl"
    for sample in SAMPLES:
        if place(sample).is_file():
            shutil.copy(place(sample), path)
            logs = lk.load(path, errors="report", content=content)
            path.write_bytes(place("pi/retried" if sample != "pi/retried" else "pi/branches").read_bytes())
            with pytest.raises(LogError, match="the file has changed since it was loaded"):
                list(logs.requests())
            with pytest.raises(LogError, match="the file has changed since it was loaded"):
                _ = logs.messages


TEXT = 1 << 18
TIME = {"timestamp": "2026-11-30T07:31:05Z"}
BEGINNINGS: dict[str, dict[str, Any]] = {
    "pi": {"type": "session", "version": 3, "id": "s", "cwd": "."},
    "codex": {"type": "session_meta", "payload": {"id": "s"}},
}
LONG_MESSAGES: dict[str, Callable[[int], dict[str, Any]]] = {
    "claude_code": lambda n: (
        transcript_answer(n, "2026-11-30T07:31:05Z") | {"message": {"id": f"m{n}", "content": [_text(n)], "usage": {}}}
    ),
    "pi": lambda n: {"type": "message", "message": {"role": "user", "content": [_text(n)]}},
    "codex": lambda n: {"type": "response_item", "payload": {"type": "message", "role": "assistant", "content": [_text(n)]}},
}


def _text(number: int) -> dict[str, Any]:
    return {"type": "text", "text": f"{number:03}" * (TEXT // 3)}


@pytest.mark.parametrize("source", LONG_MESSAGES)
def test_messages_without_their_text_take_no_memory_for_it(tmp_path: Path, source: str) -> None:
    many = 48
    entries = [*filter(None, [BEGINNINGS.get(source)]), *map(LONG_MESSAGES[source], range(1, many + 1))]
    path = lines(tmp_path / "x.jsonl", *(TIME | entry for entry in entries))
    logs = lk.load(path)
    tracemalloc.start()
    found = logs.messages
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (found["bytes"] >= TEXT - 3).tolist() == [True] * many
    assert peak < many * TEXT / 3, "some lines at once, never all"


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
def test_a_hostile_log_makes_problems_and_nothing_else(tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(place(data.draw(st.sampled_from([name for name in SAMPLES if place(name).is_file()]))).read_bytes())
    pieces = [
        b"null",
        b"-1",
        b"1e999",
        b'""',
        b"[]",
        b"{}",
        b"true",
        b"\n",
        b"\0",
        b"\xff",
        b'"\\ud83d"',
        b"9" * 30,
        b'"lines-1"',
    ]
    for _ in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.integers(0, len(whole)))
        values = [match.start(1) for match in re.finditer(rb':("[^"]*"|[^,\[{}\]]+)', whole)]
        if data.draw(st.booleans()) and values:  # a value, so that the line stays JSON
            start = values[data.draw(st.integers(0, len(values) - 1))]
            end = min(at for at in (whole.find(b",", start), whole.find(b"}", start), len(whole)) if at >= 0)
        else:
            end = data.draw(st.integers(start, min(len(whole), start + 40)))
        whole[start:end] = data.draw(st.sampled_from(pieces))
    path = tmp_path / "x.jsonl"
    path.write_bytes(whole)
    try:
        logs = lk.load(path, errors="report", content=True)
    except LogError:
        return
    for name in schema.FRAMES:
        getattr(logs, name)
    if not any(problem.kind in ("torn", "not_a_log") for problem in logs.unread):
        assert len(lk.load(path).usage) == len(logs.usage)
