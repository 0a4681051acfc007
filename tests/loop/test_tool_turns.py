"""Turns with tools: on the real server by the model's own call, and every quirk of calls on a scripted one."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from loopkit.contract.records import Assistant, CacheLoss, ToolResult, UsageRecord
from loopkit.ids import SessionId
from loopkit.loop.events import RequestSent, Stopped, ToolCalled, TurnEvent
from loopkit.loop.loop import Loop
from loopkit.loop.opening import resume
from loopkit.loop.tools.execution import Ok, Outcome
from loopkit.server.client import Server
from loopkit.server.embedded.templates import tiny_template
from loopkit.server.opening import serve
from loopkit.session.session import Session
from loopkit.session.verify import verify
from tests.loop.scripted_loops import begin, calling, done, messages, quiet, relayed, scripted


def now_in(city: str) -> str:
    """The time of day in a city."""
    return f"In {city} it is 16:20."


def usages(loop: Loop) -> list[UsageRecord]:
    return [record for record in loop.session.records if isinstance(record, UsageRecord)]


@pytest.mark.server
def test_the_model_calls_a_tool_and_the_cache_stays_warm_across_the_round_trip(tiny: Server, tmp_path: Path) -> None:
    with begin(tiny, tmp_path, tools=[now_in]) as loop:
        turns = [loop.ask("What is the time in Lima?"), loop.ask("Thanks."), loop.ask("And in Quito?")]
        assert [turn.stop for turn in turns] == ["done"] * 3
        assert [len(turn.requests) for turn in turns] == [2, 1, 2]
        (result,) = turns[0].tool_calls
        assert (result.name, result.status, result.call) == ("now_in", "ok", 1)
        assert result.content.startswith("In ")
        records = usages(loop)
        for before, now in itertools.pairwise(records):
            assert before.usage.prompt_tokens is not None
            assert before.usage.completion_tokens is not None
            assert now.usage.cached_tokens == before.usage.prompt_tokens + before.usage.completion_tokens - 1
        assert not any(isinstance(record, CacheLoss) for record in loop.session.records)
        assert turns[2].tool_calls[0].call == 2
    assert verify(tmp_path).ok


@pytest.mark.server
def test_a_template_that_re_serialises_arguments_loses_the_cache_and_the_log_says_so(tmp_path: Path) -> None:
    with serve("tiny", template=tiny_template(reserialise=True)) as server, begin(server, tmp_path, tools=[now_in]) as loop:
        turn = loop.ask("What is the time in Lima?")
        loss = next(loss for loss in turn.losses if loss.request == 2)
        first, second = usages(loop)[:2]
        assert first.usage.prompt_tokens is not None
        assert first.usage.completion_tokens is not None
        assert loss.expected_tokens == first.usage.prompt_tokens + first.usage.completion_tokens - 1
        assert loss.cached_tokens == second.usage.cached_tokens
        assert loss.lost_tokens == loss.expected_tokens - loss.cached_tokens > 0
        assert verify(loop.session).ok


@pytest.mark.server
def test_a_tool_added_in_mid_epoch_is_found_and_called_and_no_earlier_byte_changes(tiny: Server, tmp_path: Path) -> None:
    def zebra(stripes: int) -> str:
        """Count the stripes of a zebra."""
        return f"{stripes} stripes"

    with relayed(tiny) as (through, relay), begin(through, tmp_path, tools=[now_in]) as loop:
        loop.ask("What is the time in Lima?")
        loop.tools.add(zebra)
        found = loop.port.call("find_tool", '{"query": "stripes of a zebra"}')
        assert json.loads(found.content)["tools"][0]["name"] == "zebra"
        assert loop.port.call("call_tool", '{"name": "zebra", "arguments": {"stripes": 7}}') == Ok("7 stripes")
        loop.ask("And in Quito?")
        bodies = [request.body for request in relay.requests]
        assert len(bodies) == 4
        for one, two in itertools.pairwise(bodies):
            assert two.startswith(one.removesuffix(b"]}"))
        assert b"zebra" not in bodies[-1]


def test_a_found_tool_is_called_by_the_model_through_the_log(tmp_path: Path) -> None:
    def zebra(stripes: int) -> str:
        """Count the stripes of a zebra."""
        return f"{stripes} stripes"

    find = calling(("a", "find_tool", '{"query":"zebra"}'))
    call = calling(("b", "call_tool", '{"name":"zebra","arguments":{"stripes":7}}'))
    with (
        scripted(done(30, 0, 6), find, call, done(90, None, 6)) as (server, script),
        begin(server, tmp_path, tools=[now_in]) as loop,
    ):
        loop.ask("Hello.")
        loop.tools.add(zebra, core=False)
        turn = loop.ask("How many stripes?")
        assert [result.status for result in turn.tool_calls] == ["ok", "ok"]
        assert turn.tool_calls[1].content == "7 stripes"
        bodies = [request.body for request in script.requests]
        for one, two in itertools.pairwise(bodies):
            assert two.startswith(one.removesuffix(b"]}"))


def test_several_calls_at_once_run_in_order_and_each_result_finds_its_call(tmp_path: Path) -> None:
    calls = calling(("x", "now_in", '{"city":"Lima"}'), ("y", "now_in", '{"city":"Oslo"}'))
    with scripted(calls, done(90, None, 6)) as (server, script), begin(server, tmp_path, tools=[now_in]) as loop:
        turn = loop.ask("Both?")
        assert [(result.call, result.tool_call_id, result.content) for result in turn.tool_calls] == [
            (1, "x", "In Lima it is 16:20."),
            (2, "y", "In Oslo it is 16:20."),
        ]
        sent = messages(script.requests[1].body)
        assert [message.get("tool_call_id") for message in sent if message["role"] == "tool"] == ["x", "y"]


@pytest.mark.parametrize(("first", "second"), [("a", "a"), (None, None), (None, "a")])
def test_missing_and_double_ids_become_deterministic_ones(first: str | None, second: str | None, tmp_path: Path) -> None:
    calls = calling((first, "now_in", '{"city":"Lima"}'), (second, "now_in", '{"city":"Oslo"}'))
    with scripted(calls, done(90, None, 6)) as (server, script), begin(server, tmp_path, tools=[now_in]) as loop:
        turn = loop.ask("Both?")
        ids = [result.tool_call_id for result in turn.tool_calls]
        assert len(set(ids)) == 2
        assert all(ids)
        sent = messages(script.requests[1].body)
        assert [call["id"] for call in sent[2]["tool_calls"]] == ids
        assert [message["tool_call_id"] for message in sent[3:]] == ids
    assert verify(tmp_path).ok


def test_ids_may_repeat_across_turns(tmp_path: Path) -> None:
    made = [(calling(("call_0", "now_in", '{"city":"Lima"}'), prompt=200 * n), done(200 * n + 90, None, 6)) for n in (1, 2, 3)]
    with scripted(*itertools.chain(*made)) as (server, _), begin(server, tmp_path, tools=[now_in]) as loop:
        turns = [loop.ask(f"{number}?") for number in range(3)]
        assert [turn.tool_calls[0].tool_call_id for turn in turns] == ["call_0"] * 3
        assert [turn.tool_calls[0].call for turn in turns] == [1, 2, 3]
    with Session.open(tmp_path, SessionId("s")) as session:
        assert session.next_call() == 4


ANSWERED: list[tuple[str, str, str, str]] = [
    ("an unknown tool", "now_out", "{}", "There is no tool 'now_out'"),
    ("arguments that do not fit", "now_in", '{"city": 7}', "do not fit now_in: city"),
    ("an argument missing", "now_in", "{}", "do not fit now_in: city"),
    ("arguments that are no object", "now_in", "[]", "not a JSON object"),
    ("a tool that raises", "broken", "{}", "ZeroDivisionError: division by zero"),
]


@pytest.mark.parametrize(("name", "tool", "arguments", "wanted"), ANSWERED)
def test_what_the_model_does_wrong_is_answered_and_never_ends_the_turn(
    name: str, tool: str, arguments: str, wanted: str, tmp_path: Path
) -> None:
    def broken() -> float:
        """Break."""
        return 1 / 0

    with scripted(calling(("a", tool, arguments)), done(90, None, 6)) as (server, _):
        with begin(server, tmp_path, tools=[now_in, broken]) as loop:
            turn = loop.ask("Go?")
            assert (turn.stop, turn.tool_calls[0].status) == ("done", "failed"), name
            assert wanted in turn.tool_calls[0].content
    assert verify(tmp_path).ok


def test_allow_denies_with_a_reason_that_reaches_the_model(tmp_path: Path) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def allow(name: str, arguments: dict[str, Any]) -> bool | str:
        asked.append((name, arguments))
        return "not on Mondays"

    with scripted(calling(("a", "now_in", '{"city":"Lima"}')), done(90, None, 6)) as (server, script):
        with begin(server, tmp_path, tools=[now_in], allow=allow) as loop:
            turn = loop.ask("Go?")
            assert turn.tool_calls[0].status == "denied"
            assert asked == [("now_in", {"city": "Lima"})]
            assert "not on Mondays" in messages(script.requests[1].body)[-1]["content"]


def test_a_port_of_ones_own_runs_the_calls(tmp_path: Path) -> None:
    class Port:
        def call(self, name: str, arguments: str) -> Outcome:
            return Ok(f"{name} got {arguments}")

    with scripted(calling(("a", "anything", '{"n": 1.10}')), done(90, None, 6)) as (server, _):
        with begin(server, tmp_path, tools=[now_in], port=Port()) as loop:
            assert loop.ask("Go?").tool_calls[0].content == 'anything got {"n": 1.10}'


def test_arguments_are_logged_and_replayed_as_the_model_wrote_them(tmp_path: Path) -> None:
    arguments = '{"path": "b.py",  "edits":[{"new":"\\u00e9","old":"x"}], "n":1.10, "n":1.10}'
    with scripted(calling(("a", "now_in", arguments)), done(90, None, 6)) as (server, script):
        with begin(server, tmp_path, tools=[now_in]) as loop:
            loop.ask("Go?")
            (call,) = messages(script.requests[1].body)[2]["tool_calls"]
            assert call["function"]["arguments"] == arguments
            record = next(record for record in loop.session.records if isinstance(record, Assistant))
            assert record.calls()[0].function.arguments == arguments


def test_events_of_a_turn_with_a_tool(tmp_path: Path) -> None:
    events: list[TurnEvent] = []
    with scripted(calling(("a", "now_in", '{"city":"Lima"}')), done(90, None, 6)) as (server, _):
        with begin(server, tmp_path, tools=[now_in]) as loop:
            turn = loop.ask("Go?", on_event=events.append)
    kinds = " ".join(type(event).__name__ for event in events)
    assert kinds == ("RequestSent ToolCallDelta UsageRecord ToolCalled ToolResult RequestSent TextDelta UsageRecord Stopped")
    assert ToolCalled(1, "now_in", '{"city":"Lima"}') in events
    assert [event for event in events if isinstance(event, ToolResult)] == list(turn.tool_calls)
    first, second = (event for event in events if isinstance(event, RequestSent))
    assert second.new_bytes == second.request_bytes - first.request_bytes


def test_the_events_of_a_turn_as_a_generator(tmp_path: Path) -> None:
    with scripted(calling(("a", "now_in", '{"city":"Lima"}')), done(90, None, 6)) as (server, _):
        with begin(server, tmp_path, tools=[now_in]) as loop:
            steps = loop.events("Go?")
            seen: list[TurnEvent] = []
            while True:
                try:
                    seen.append(next(steps))
                except StopIteration as end:
                    turn = end.value
                    break
            assert seen[-1] == Stopped("done")
            assert turn.text == "Done."


@pytest.mark.server
def test_on_resume_tools_are_compared_with_the_snapshot(tiny: Server, tmp_path: Path) -> None:
    from loopkit.errors import InvalidConfig

    with begin(tiny, tmp_path, tools=[now_in]) as loop:
        loop.ask("What is the time in Lima?")
        sent = loop.session.requests().__next__().body
    with pytest.raises(InvalidConfig, match="tools: missing: now_in"):
        resume(tiny, "s", home=tmp_path)

    def other(city: str) -> str:
        """The hour of the day, in any city."""
        return city

    def more() -> str:
        """Something new."""
        return ""

    other.__name__ = "now_in"
    with pytest.warns(UserWarning) as warned:
        loop = quiet(resume(tiny, "s", home=tmp_path, tools=[other, more]))
    said = [str(warning.message) for warning in warned]
    assert any("'now_in' has changed" in line and "The hour of the day" in line for line in said)
    assert any("'more' is new" in line for line in said)
    with loop:
        loop.ask("Again.")
        assert list(loop.session.requests())[-1].body.startswith(sent.split(b'"messages"')[0])
    assert verify(tmp_path).ok
