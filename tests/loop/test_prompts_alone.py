"""An engine that keeps prompts and not what it wrote: one finding a session, live, replayed and in another tool's log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import loopkit as lk
from loopkit.cache.losses.findings import diagnose
from loopkit.cache.losses.session_observations import observations
from loopkit.cache.losses.watch import Watch
from loopkit.loop.opening import resume
from loopkit.server.client import Server
from loopkit.server.detection import Detected
from loopkit.server.transport.connection import Wire
from loopkit.session.session import Session
from tests.loop.scripted_loops import begin, done, quiet
from tests.server.scripted import Scripted

COUNTS = [(100, 0, 40), (160, 96, 20), (245, 160, 40), (310, 240, 9)]
WANTED = [None, "generation_not_cached", "generation_not_cached"]


def shortfalls(logs: lk.logs.Logs) -> list[str | None]:
    return [reason if isinstance(reason, str) else None for reason in logs.usage["shortfall"]][1:]


def test_live_resumed_and_replayed(tmp_path: Path) -> None:
    answers = [done(*count) for count in COUNTS]
    with Scripted([*answers, *answers], only="/chat/completions") as script:
        with Server(Wire(script.url, timeout=30), Detected("vllm", None, "m", None)) as server:
            with begin(server, tmp_path) as loop:
                for number in range(3):
                    loop.ask(f"Question {number}.")
            with quiet(resume(server, "s", home=tmp_path)) as loop:
                loop.ask("And one more.")
            live = lk.load(tmp_path / "sessions" / "s")
            again = lk.replay.run(loop.session, server, home=tmp_path)
    for logs in (live, again):
        assert logs.cache_loss[["request", "cause", "lost_tokens"]].values.tolist() == [[2, "generation_not_cached", 32]]
        assert shortfalls(logs) == WANTED
        assert logs.usage["lost_tokens"].tolist()[1:] == [32, 0, 0]
    assert [loss.observation.request for loss in diagnose(observations(loop.session)).losses] == [2]


class OneLook:
    """A session whose records may be gone through once."""

    def __init__(self) -> None:
        self.looks = 0

    @property
    def epochs(self) -> tuple[()]:
        self.looks += 1
        return ()


def test_a_turn_costs_no_look_at_the_whole_history() -> None:
    with (
        Scripted([], only="/chat/completions") as script,
        Server(Wire(script.url, timeout=30), Detected("vllm", None, "m", None)) as server,
    ):
        watch, session = Watch(server), OneLook()
        assert [watch.completions_kept(cast(Session, session)) for _ in range(3)] == [True] * 3
        assert session.looks == 1


def test_of_another_tool(tmp_path: Path) -> None:
    messages: list[dict[str, str]] = []
    lines = []
    for number, (prompt, cached, written) in enumerate(COUNTS):
        messages.append({"role": "user", "content": f"Question {number}."})
        details = {"cached_tokens": cached}
        usage = {"prompt_tokens": prompt, "completion_tokens": written, "prompt_tokens_details": details}
        answer = {"choices": [{"message": {"role": "assistant", "content": "Done."}}], "usage": usage}
        lines.append(json.dumps({"provider": "vllm", "body": {"model": "m", "messages": messages}, "response": answer}))
        messages.append({"role": "assistant", "content": "Done."})
    (tmp_path / "agent.jsonl").write_text("\n".join(lines) + "\n")
    logs = lk.load(tmp_path / "agent.jsonl")
    assert logs.cache_loss[["request", "cause", "lost_tokens"]].values.tolist() == [[2, "generation_not_cached", 32]]
    assert shortfalls(logs) == WANTED
