"""Reading a conversation into the cache without a turn, on the real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopkit.server.client import Server
from tests.loop.scripted_loops import begin


@pytest.mark.server
def test_a_warm_loop_reads_only_its_message(tiny: Server, tmp_path: Path) -> None:
    system = "You answer in one word. " * 30
    with begin(tiny, tmp_path, system=system) as loop:
        log = (loop.session.dir / "0.jsonl").read_bytes()
        read = loop.warm()
        assert (loop.session.dir / "0.jsonl").read_bytes() == log
        assert read.prompt_tokens is not None
        turn = loop.ask("One.")
        assert turn.usage.cached_tokens is not None
        assert turn.usage.cached_tokens >= len(system)
        assert loop.ask("Two.").losses == ()


@pytest.mark.server
def test_warming_in_the_middle_of_a_session_costs_the_next_turn_nothing(tiny: Server, tmp_path: Path) -> None:
    with begin(tiny, tmp_path, system="You answer in one word. " * 30) as loop:
        before = loop.ask("One.").usage
        slot = loop.session.start.slot
        assert slot is not None
        tiny.erase_slot(slot)
        loop.warm()
        now = loop.ask("Two.")
        assert before.prompt_tokens is not None
        assert before.completion_tokens is not None
        head = len("\nxuser\n")  # behind the answer: what every next message begins with; x: one token for the tag
        assert now.usage.cached_tokens == before.prompt_tokens + before.completion_tokens + head
        assert now.losses == ()
