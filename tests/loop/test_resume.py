"""Resuming in another process: the same bytes under another hash seed, and a warm cache."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loopkit.errors import InvalidConfig
from loopkit.ids import SessionId
from loopkit.loop.opening import resume, start
from loopkit.server.client import Server
from loopkit.session.session import Session
from loopkit.session.verify import verify
from tests.loop.scripted_loops import begin, done, quiet, scripted

CHILD = """
import json, sys
from loopkit.loop.opening import resume
from loopkit.server.client import Server
from loopkit.server.detection import Detected
from loopkit.server.transport.connection import Wire

home, url, question = sys.argv[1:]
with Server(Wire(url, api_key=sys.stdin.readline().strip(), timeout=30), Detected("llama.cpp", None, "tiny")) as server:
    with resume(server, "s", home=home) as loop:
        loop.on_event = None
        turn = loop.ask(question)
print(json.dumps([turn.usage.cached_tokens, turn.usage.prompt_tokens, turn.usage.completion_tokens]))
"""


@pytest.mark.server
def test_another_process_under_another_hash_seed_sends_an_extension_and_finds_it_cached(tiny: Server, tmp_path: Path) -> None:
    assert tiny._child is not None
    options = {"temperature": 0, "chat_template_kwargs": {name: name for name in ("b", "a", "c")}}
    with start(tiny, system="Be brief.", home=tmp_path, id="s", memory="", options=options) as loop:
        loop.on_event = None
        before = loop.ask("One.").usage
    for seed in ("1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(tmp_path), tiny.url, f"Seed {seed}."],
            input=tiny._child.key + "\n",
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        cached, prompt, written = json.loads(done.stdout)
        assert before.prompt_tokens is not None
        assert before.completion_tokens is not None
        assert cached == before.prompt_tokens + before.completion_tokens - 1
        before = type(before)(prompt_tokens=prompt, completion_tokens=written)
    with Session.read(tmp_path, SessionId("s")) as session:
        bodies = [request.body for request in session.requests()]
    assert len(bodies) == 3
    for one, two in itertools.pairwise(bodies):
        assert two.startswith(one.removesuffix(b"]}"))
    assert verify(tmp_path).ok


def test_b24_options_come_from_the_baseline_and_other_ones_are_refused_with_both_values(tmp_path: Path) -> None:
    options = {"reasoning_effort": "low", "tool_choice": "auto", "chat_template_kwargs": {"enable_thinking": False}}
    with scripted(done(40, None, 6), done(60, 40, 6)) as (server, script):
        with begin(server, tmp_path, options=options) as loop:
            loop.ask("One.")
        with quiet(resume(server, "s", home=tmp_path)) as loop:
            loop.ask("Two.")
        one, two = (request.body for request in script.requests)
        assert two.startswith(one.removesuffix(b"]}"))
        with pytest.raises(InvalidConfig, match=r"options\.reasoning_effort: the epoch uses 'low'; got 'high'"):
            resume(server, "s", home=tmp_path, options={**options, "reasoning_effort": "high"})
