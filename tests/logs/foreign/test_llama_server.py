"""llama-server's own log against what the server says of the same requests, and what the dialects tell differently."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

import loopkit as lk
from loopkit.logs.foreign.formats import llama_server
from loopkit.server.opening import serve

HERE = Path(__file__).parents[3] / "data" / "foreign" / "llama_server"
COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens")


@pytest.mark.server
@pytest.mark.parametrize("verbosity", [3, 4])
def test_the_log_of_a_real_server_counts_what_its_answers_do(tmp_path: Path, verbosity: int) -> None:
    told: list[tuple[int, ...]] = []
    talks: dict[str, list[Any]] = {name: [{"role": "system", "content": f"{name} " * 40}] for name in ("Alice", "Bob", "Carol")}
    with serve("tiny", slots=2, verbosity=verbosity) as server:
        assert server._child is not None
        headers = {"Authorization": f"Bearer {server._child.key}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
            for name in ("Alice", "Bob", "Alice", "Carol", "Bob", "Alice"):
                talks[name].append({"role": "user", "content": f"Question {len(talks[name])}."})
                answer = client.post("/v1/chat/completions", json={"messages": talks[name], "max_tokens": 8}).json()
                talks[name].append(answer["choices"][0]["message"])
                usage = answer["usage"]
                cached = usage["prompt_tokens_details"]["cached_tokens"]
                told.append((usage["prompt_tokens"], cached, usage["completion_tokens"]))
        log, written = server._child._log.fileno(), b""
        while written.count(b"stop processing") < len(told):  # an answer is out before the last line about it
            written = os.pread(log, 1 << 24, 0)
        (tmp_path / "server.log").write_bytes(written)
    logs = lk.load(tmp_path / "server.log", errors="report")
    assert logs.sessions["requests"].tolist() == [3, 2, 1]
    assert sorted(zip(*(logs.usage[name] for name in COUNTS), strict=True)) == sorted(told)
    assert logs.usage["lost_tokens"].tolist() == [0] * 6
    assert (logs.usage["prompt_ms"] > 0).all()
    assert logs.sessions["engine"].tolist() == ["llama.cpp"] * 3
    assert logs.problems.empty


def test_a_prompt_that_had_to_be_read_again_is_told_by_the_server() -> None:
    [loss] = lk.load(HERE / "hybrid.log", errors="report").cache_loss.to_dict("records")
    assert (loss["cause"], loss["certainty"], loss["fixable_by"]) == ("no_checkpoint", "confirmed", "server")
    assert json.loads(loss["evidence"])["provider_verdict"] == "no_checkpoint"


def test_of_several_batches_the_first_says_what_was_cached() -> None:
    assert lk.load(HERE / "older.log", errors="report").usage["cached_tokens"].tolist()[:2] == [0, 3049]


def test_after_a_restart_nothing_goes_on() -> None:
    assert lk.load(HERE / "hybrid.log", errors="report").sessions["requests"].tolist() == [2, 1]


def test_a_prompt_that_was_cut_is_not_counted_by_what_is_left() -> None:
    assert lk.load(HERE / "hybrid.log", errors="report").usage["prompt_tokens"].isna().tolist() == [False, False, True]


def test_no_loss_is_made_up_after_a_task_that_was_broken_off(tmp_path: Path) -> None:
    """What the server compared the next prompt with was the broken one, of which the log does not say whose it was."""
    whole = (HERE / "older.log").read_text(encoding="utf-8")
    line = (
        "slot get_availabl: id  0 | task 83 | selected slot by lcs similarity, lcs_len = 300, similarity = 0.900 (> 0.5 thold)\n"
    )
    at = whole.index("slot launch_slot_: id  0 | task 95")
    (tmp_path / "older.log").write_text(whole[:at] + line + whole[at:], encoding="utf-8")
    assert lk.load(tmp_path, errors="report").sessions["requests"].tolist() == [3, 1]


def test_lines_with_a_prefix_are_read_too(tmp_path: Path) -> None:
    lines = (HERE / "slots.log").read_text(encoding="utf-8").splitlines()
    path = tmp_path / "slots.log"
    path.write_text("".join(f"May 23 00:31:18 box llama[385247]: {line}\r\n" for line in lines), encoding="utf-8")
    columns = ["session", *COUNTS, "expected_tokens"]
    assert lk.load(path).usage[columns].equals(lk.load(HERE / "slots.log").usage[columns])


@pytest.mark.parametrize(
    ("head", "known"),
    [(b"0.00.000.343 I srv    load_model: loading model 'a'\n", True), (b"GET /slot 200\n", False), (b"", False)],
)
def test_a_log_is_known_by_its_lines(head: bytes, known: bool) -> None:
    assert llama_server.recognises(head) is known
