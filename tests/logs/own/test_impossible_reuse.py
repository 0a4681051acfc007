"""More cached tokens than a prompt can have: a problem with its line, never a loss, in sessions, replays and recordings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import loopkit as lk
from loopkit.contract.neutralise import DEFAULT
from loopkit.server.client import Server
from loopkit.server.detection import Detected
from loopkit.server.transport.connection import Wire
from tests.loop.scripted_loops import begin, done
from tests.server.scripted import Scripted


def told(logs: lk.logs.Logs) -> list[tuple[str, int]]:
    found = logs.problems[logs.problems["kind"] == "impossible_reuse"]
    assert found["offset"].notna().all()
    return [(Path(path).name, int(line)) for path, line in zip(found["path"], found["line"], strict=True)]


@pytest.mark.parametrize(
    ("engine", "cached", "impossible"),
    [("llama.cpp", 50, True), ("vllm", 50, True), ("openai", 50, False), ("openai", 51, True), (None, 900, True)],
)
def test_in_a_session_and_its_replay(tmp_path: Path, engine: str | None, cached: int, impossible: bool) -> None:
    answers = [done(30, 0, 6), done(50, cached, 6)]
    with Scripted([*answers, *answers], only="/chat/completions") as script:
        with Server(Wire(script.url, timeout=30), Detected(engine, None, "m", None)) as server:
            server._tags = DEFAULT
            with begin(server, tmp_path) as loop:
                loop.ask("Hi.")
                loop.ask("And now?")
            again = lk.replay.run(loop.session, server, home=tmp_path)
    live = lk.load(tmp_path / "sessions")
    assert told(live) == ([("0.jsonl", 7)] if impossible else [])
    assert [line for _, line in told(again)] == ([2] if impossible else [])
    for logs in (live, again):
        assert logs.cache_loss.empty
        assert not (logs.usage["lost_tokens"].dropna() < 0).any()


def test_in_a_recording(tmp_path: Path) -> None:
    answers = [done(30, 0, 6), done(50, 51, 6)]
    with Scripted(answers, only="/chat/completions") as script:
        with (
            lk.record.proxy(script.url, tmp_path) as proxy,
            Server(Wire(proxy.url, timeout=30), Detected(None, None, "m", None)) as server,
        ):
            server._tags = DEFAULT
            with begin(server, tmp_path / "own") as loop:
                loop.ask("Hi.")
                loop.ask("And now?")
    assert [line for _, line in told(lk.load(tmp_path / "recordings"))] == [2]


@pytest.mark.parametrize(("provider", "cached", "lines"), [("vllm", 50, [2]), ("openai", 50, []), ("openai", 51, [2])])
def test_in_another_tools_log(tmp_path: Path, provider: str, cached: int, lines: list[int]) -> None:
    path = tmp_path / "agent.jsonl"
    with path.open("w") as file:
        for count in (0, cached):
            usage = {"prompt_tokens": 50, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": count}}
            body = {"model": "m", "messages": [{"role": "user", "content": "Hi."}]}
            print(json.dumps({"provider": provider, "body": body, "response": {"id": str(count), "usage": usage}}), file=file)
    logs = lk.load(path)
    assert [line for _, line in told(logs)] == lines
    assert logs.cache_loss.empty


LLAMA = Path(__file__).parents[3] / "data" / "foreign" / "llama_server" / "older.log"
TRACE = b'{"input_length":9,"hash_ids":[1],"prompt_tokens":%d,"cached_tokens":5}\n'


@pytest.mark.parametrize(
    ("name", "data", "row"),
    [
        ("x.jsonl", TRACE % 9 + TRACE % 4, 1),
        ("x.log", LLAMA.read_bytes().replace(b"n_prompt_tokens = 3100", b"n_prompt_tokens = 31"), 1),
    ],
)
def test_in_a_log_that_counts_by_its_own_lines(tmp_path: Path, name: str, data: bytes, row: int) -> None:
    (tmp_path / name).write_bytes(data)
    logs = lk.load(tmp_path / name, errors="report")
    assert "cached token counts that exceed their prompt" in logs.problems["why"].tolist()
    assert logs.usage["cached_tokens"].isna().tolist()[row]
    assert not (logs.usage["read_tokens"].dropna() < 0).any()
