"""A loss in a session: named at once, and again from the log alone, on the real server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from loopkit.cache.losses.findings import diagnose
from loopkit.cache.losses.session_observations import observations
from loopkit.contract.records import CacheLoss, UsageRecord
from loopkit.contract.request import Request
from loopkit.encoding import encode
from loopkit.ids import SessionId
from loopkit.loop.loop import Loop
from loopkit.loop.opening import resume, start
from loopkit.server import llama_api
from loopkit.server.client import Server
from loopkit.server.embedded.templates import tiny_template
from loopkit.server.opening import serve
from loopkit.session.session import Session

pytestmark = pytest.mark.server

JUDGE = """
import sys
from loopkit.cache import diagnose, observations
from loopkit.session.session import Session
for loss in diagnose(observations(Session.read(sys.argv[1], "s"))).losses:
    print(loss.observation.request, loss.diagnosis.cause, loss.diagnosis.certainty, loss.diagnosis.location, loss.lost_tokens)
"""


def look(place: str) -> str:
    """What is there."""
    return f"A river, in {place}."


def begin(server: Server, home: Path) -> Loop:
    loop = start(server, system="You answer in one word. " * 20, tools=[look], home=home, id="s", memory="")
    loop.on_event = None
    return loop


def losses(loop: Loop) -> list[CacheLoss]:
    return [record for record in loop.session.records if isinstance(record, CacheLoss)]


def somebody(server: Server, slot: int = 0) -> None:
    messages = [{"role": "user", "content": "Who was the first to see the source of that river, and when was it?"}]
    server.complete(Request.of(encode({"id_slot": slot, "messages": messages})))


def judged_elsewhere(home: Path) -> list[str]:
    """What another process makes of the log."""
    return subprocess.run(
        [sys.executable, "-c", JUDGE, str(home)], check=True, capture_output=True, text=True
    ).stdout.splitlines()


def test_where_nothing_is_lost_expected_reusable_and_cached_are_one(tiny: Server, tmp_path: Path) -> None:
    with begin(tiny, tmp_path) as loop:
        for question in ("Hello.", "What is there?", "And there?", "Good."):
            loop.ask(question)
        usage = [record for record in loop.session.records if isinstance(record, UsageRecord)]
        assert len(usage) == 6
        assert losses(loop) == []
        for record in usage[1:]:
            assert record.expected_tokens == record.reusable_tokens == record.usage.cached_tokens
        assert usage[0].reusable_tokens == 0
    found = diagnose(observations(Session.read(tmp_path, SessionId("s")), tiny.tokens))
    assert found.losses == ()
    assert found.coverage[:2] == (1.0, 1.0)


def test_a_slot_that_another_took_is_named_at_once_and_from_the_log(tmp_path: Path) -> None:
    with serve("tiny", slots=1, cache_ram_mib=0) as server, begin(server, tmp_path) as loop:
        loop.ask("Hello.")
        loop.ask("What is there?")
        somebody(server)
        loop.ask("Good.")
        (loss,) = losses(loop)
        assert (loss.cause, loss.certainty, loss.fixable_by, loss.location) == ("slot_taken", "confirmed", "server", "slot 0")
        assert loss.reusable_tokens == loss.expected_tokens
        assert loss.evidence["others_tokens"] > 50
        (record,) = [each for each in loop.session.records if isinstance(each, UsageRecord) and each.request == loss.request]
        assert record.reusable_tokens == loss.reusable_tokens
        loop.ask("Good.")
        assert len(losses(loop)) == 1
    assert judged_elsewhere(tmp_path) == [f"{loss.request} slot_taken confirmed slot 0 {loss.lost_tokens}"]


def test_a_template_that_writes_calls_anew_is_pointed_at(tmp_path: Path) -> None:
    with serve("tiny", slots=1, template=tiny_template(reserialise=True)) as server, begin(server, tmp_path) as loop:
        loop.ask("What is there?")
        (loss,) = losses(loop)
        assert (loss.cause, loss.certainty, loss.fixable_by) == ("template_rewrote", "confirmed", "template")
        assert loss.location == "messages[2].tool_calls[0].function.arguments"
        assert loss.reusable_tokens == loss.cached_tokens
    assert judged_elsewhere(tmp_path) == [f"2 template_rewrote confirmed {loss.location} {loss.lost_tokens}"]


def test_a_server_that_was_started_anew_is_known_by_its_counters(tmp_path: Path) -> None:
    with serve("tiny", slots=1) as server, begin(server, tmp_path) as loop:
        loop.ask("Hello.")
    with serve("tiny", slots=1) as server:
        with pytest.warns(UserWarning, match="no longer caches this session"):
            loop = resume(server, "s", tools=[look], home=tmp_path)
        loop.on_event = None
        loop.ask("Hello again.")
        loop.close()
        (loss,) = losses(loop)
        assert (loss.cause, loss.certainty, loss.location) == ("server_restarted", "confirmed", "counters")


def test_a_server_that_goes_silent_about_itself_costs_no_turn(tiny: Server, tmp_path: Path) -> None:
    with begin(tiny, tmp_path) as loop:
        loop.ask("Hello.")
        loop._state.watch._unanswered = [llama_api.slots, llama_api.metrics]
        tiny.erase_slot(loop.session.start.slot or 0)
        loop.ask("Good.")
        (loss,) = losses(loop)
        assert (loss.cause, loss.fixable_by) == ("unexplained", "server")
        assert loss.evidence["not_known"] == ["slots and counters before and after"]
        assert loss.evidence["ruled_out"] == ["client", "template"]


@pytest.mark.parametrize("silent", ["slots", "metrics"])
def test_a_server_that_shows_half_of_it_is_judged_by_that_half(silent: str, tmp_path: Path) -> None:
    with serve("tiny", slots=1, cache_ram_mib=0) as server, begin(server, tmp_path) as loop:
        loop._state.watch._unanswered = [getattr(llama_api, silent)]
        loop.ask("Hello.")
        somebody(server)
        loop.ask("Good.")
        (loss,) = losses(loop)
        certainty = "confirmed" if silent == "metrics" else "suspected"
        assert (loss.cause, loss.location, loss.certainty) == ("slot_taken", "slot 0", certainty)
