"""Each row of the limits' table: a turn runs into it, the session is reopened from the disk and goes on.

On the real server where it can show the row, by the tiny model's own calls; on a scripted one what that will not do on demand.
How a full context is told, and what the next epoch begins with, is in ``test_epochs.py``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopkit.contract.records import Assistant, ToolResult, UsageRecord
from loopkit.errors import InvalidConfig
from loopkit.loop.events import RequestSent, Stopped, ToolCalled, TurnEvent
from loopkit.loop.limits import LIMIT_REACHED, REPEATED, Limits
from loopkit.loop.opening import resume
from loopkit.server.client import Server
from loopkit.server.embedded.templates import tiny_template
from loopkit.server.opening import serve
from tests.loop.scripted_loops import begin, calling, done, log, messages, quiet, reasoned, relayed, reopen, scripted
from tests.server.scripted import HANG, Step, sse, text

LIMA, OSLO = '{"city":"Lima"}', '{"city":"Oslo"}'


def now_in(city: str) -> str:
    """The time of day in a city."""
    return f"In {city} it is 16:20."


def answer_to(record: object) -> str:
    assert isinstance(record, Assistant)
    return str(record.content)


@pytest.fixture(scope="module")
def caller() -> Iterator[Server]:
    """The tiny model under a template in which a tool's result ends the message, as a user's text does: where that ends in a
    question mark, it calls again, of itself and without end.
    """
    close = " + message.content + '\\n' + RESPONSE_END }}"
    template = tiny_template()
    assert close in template
    with serve("tiny", template=template.replace(close, " + message.content }}")) as server:
        yield server


# requests in one turn


@pytest.mark.server
def test_the_request_limit_on_a_model_that_calls_without_end(caller: Server, tmp_path: Path) -> None:
    asked = itertools.count(1)

    def next_page(book: str) -> str:
        """Read the next page of a book."""
        return f"Page {next(asked)}, and so on?"

    with begin(caller, tmp_path, tools=[next_page], limits=Limits(max_requests=3)) as loop:
        turn = loop.ask("Read on?")
        assert (turn.stop, len(turn.requests)) == ("request_limit", 3)
        assert [result.content for result in turn.tool_calls] == [f"Page {number}, and so on?" for number in (1, 2, 3)]
        assert loop.pending == ()
        with reopen(loop, limits=Limits(max_requests=2)) as later:
            turn = later.go_on()
            assert (turn.stop, len(turn.requests), turn.tool_calls[-1].content) == ("request_limit", 2, "Page 5, and so on?")
            assert turn.losses == ()
            assert later.ask("That will do.").stop == "done"


def test_at_the_request_limit_every_open_call_is_run(tmp_path: Path) -> None:
    calls = calling(("a", "now_in", LIMA), ("b", "now_in", OSLO))
    with scripted(calls, done(90, None, 6)) as (server, script):
        with begin(server, tmp_path, tools=[now_in], limits=Limits(max_requests=1)) as loop:
            turn = loop.ask("Both?")
            assert (turn.stop, [result.status for result in turn.tool_calls]) == ("request_limit", ["ok", "ok"])
            assert len(script.requests) == 1
            with reopen(loop) as later:
                assert later.go_on().stop == "done"
                sent = messages(script.requests[1].body)
                assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool", "tool"]


# the same call again


@pytest.mark.server
def test_the_third_of_the_same_calls_of_a_real_model_is_not_run(caller: Server, tmp_path: Path) -> None:
    ran: list[str] = []

    def look(place: str) -> str:
        """Look whether anything has changed."""
        ran.append(place)
        return "Nothing yet?"

    with begin(caller, tmp_path, tools=[look], limits=Limits(max_requests=3)) as loop:
        turn = loop.ask("Anything new?")
        assert [result.status for result in turn.tool_calls] == ["ok", "ok", "denied"]
        assert turn.tool_calls[2].content == REPEATED
        assert len(ran) == 2
        with reopen(loop) as later:
            assert later.go_on().losses == ()
            assert messages(list(later.session.requests())[3].body)[-1]["content"] == REPEATED


def test_the_fifth_of_the_same_calls_ends_the_turn(tmp_path: Path) -> None:
    ran: list[str] = []

    def look(city: str) -> str:
        """Look."""
        ran.append(city)
        return "Nothing."

    same = ['{"city": "Lima"}', LIMA, '{ "city":"Lima"}', '{"city":"L\\u0069ma"}', LIMA]  # one call, written in several ways
    calls = [calling((f"c{number}", "look", arguments), prompt=40 * number) for number, arguments in enumerate(same, 1)]
    with scripted(*calls, done(300, None, 6)) as (server, script), begin(server, tmp_path, tools=[look]) as loop:
        turn = loop.ask("Look.")
        assert turn.stop == "repeated_call"
        assert [result.status for result in turn.tool_calls] == ["ok", "ok", "denied", "denied", "denied"]
        assert {result.content for result in turn.tool_calls[2:]} == {REPEATED}
        assert (len(ran), len(script.requests)) == (2, 5)
        with reopen(loop) as later:
            assert later.go_on().stop == "done"
            assert script.requests[5].body.startswith(script.requests[4].body.removesuffix(b"]}"))


def test_a_repeated_call_that_ends_the_turn_leaves_none_of_the_others_open(tmp_path: Path) -> None:
    calls = calling(*((f"c{number}", "now_in", LIMA) for number in range(5)), ("c5", "now_in", OSLO), ("c6", "clock", "{}"))
    with scripted(calls, done(90, None, 6)) as (server, script), begin(server, tmp_path, tools=[now_in]) as loop:
        turn = loop.ask("Look.")
        assert turn.stop == "repeated_call"
        assert [result.content for result in turn.tool_calls[2:]] == [REPEATED] * 3 + [LIMIT_REACHED] * 2
        assert {result.status for result in turn.tool_calls[2:]} == {"denied"}
        with reopen(loop) as later:
            later.go_on()
            assert [message["content"] for message in messages(script.requests[1].body)[-2:]] == [LIMIT_REACHED] * 2


DIFFERENT: list[tuple[str, list[str]]] = [
    ("another argument", [LIMA, LIMA, OSLO, LIMA, LIMA]),
    ("another form of a number", ['{"city":"1"}', '{"city":"1"}', '{"city":"1.0"}', '{"city":"1"}']),
]


@pytest.mark.parametrize(("name", "arguments"), DIFFERENT)
def test_the_count_begins_anew_when_a_call_differs(name: str, arguments: list[str], tmp_path: Path) -> None:
    calls = [calling((f"c{number}", "now_in", each), prompt=40 * number) for number, each in enumerate(arguments, 1)]
    with scripted(*calls, done(300, None, 6)) as (server, _), begin(server, tmp_path, tools=[now_in]) as loop:
        turn = loop.ask("Look.")
        assert turn.stop == "done", name
        assert {result.status for result in turn.tool_calls} == {"ok"}


def test_the_count_begins_anew_when_the_result_differs_or_the_turn(tmp_path: Path) -> None:
    results = iter(["Nothing.", "Nothing.", "Something.", "Something."])

    def look(city: str) -> str:
        """Look."""
        return next(results)

    same = [calling((f"c{number}", "look", LIMA), prompt=40 * number) for number in range(1, 5)]
    answers = [same[0], done(50, None, 6), same[1], same[2], same[3], done(300, None, 6)]
    with scripted(*answers) as (server, _), begin(server, tmp_path, tools=[look]) as loop:
        loop.ask("Look.")
        turn = loop.ask("Look again.")
        assert [result.content for result in turn.tool_calls] == ["Nothing.", "Something.", "Something."]


# reasoning tokens


def test_the_reasoning_limit_closes_the_stream_and_nothing_is_logged(tmp_path: Path) -> None:
    endless = reasoned("I ", "think ", "and ", "think", then=[HANG])
    with scripted(done(30, 0, 6), endless, done(50, None, 6)) as (server, script):
        with begin(server, tmp_path, limits=Limits(reasoning_tokens=3)) as loop:
            loop.ask("One.")
            before = log(loop)
            turn = loop.ask("Two.")
            assert (turn.stop, turn.reasoning, turn.text, turn.requests) == ("reasoning_limit", "I think and think", "", ())
            assert script.requests[1].hung_up.wait(5)
            assert log(loop) == before
            with reopen(loop) as later:
                assert later.ask("Two.").stop == "done"
                assert script.requests[2].body == script.requests[1].body


def test_the_reasoning_limit_in_mid_turn_is_gone_on_from_with_the_same_bytes(tmp_path: Path) -> None:
    endless = reasoned("I ", "think", then=[HANG])
    with scripted(calling(("a", "now_in", LIMA)), endless, done(90, None, 6)) as (server, script):
        with begin(server, tmp_path, tools=[now_in], limits=Limits(reasoning_tokens=1)) as loop:
            turn = loop.ask("What is the time?")
            assert (turn.stop, len(turn.requests), len(turn.tool_calls)) == ("reasoning_limit", 1, 1)
            with reopen(loop) as later:
                assert later.go_on().stop == "done"
                assert script.requests[2].body == script.requests[1].body


def test_where_the_server_counts_reasoning_its_count_is_held_to_the_limit(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 30, "completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}}
    tail = sse(
        text("So."), '{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}', json.dumps({"choices": [], "usage": usage})
    )
    answer = reasoned("I think.", then=tail[1:])
    with scripted(answer, answer) as (server, script):
        with begin(server, tmp_path, limits=Limits(reasoning_tokens=3)) as loop:
            before = log(loop)
            assert loop.ask("One.").stop == "reasoning_limit"
            assert log(loop) == before
            with reopen(loop, limits=Limits(reasoning_tokens=4)) as later:
                assert later.ask("One.").stop == "done"
                assert script.requests[1].body == script.requests[0].body


# completion tokens


@pytest.mark.server
def test_text_cut_at_the_completion_limit_is_logged_and_the_turn_is_done(tiny: Server, tmp_path: Path) -> None:
    options = {"temperature": 0, "seed": 1}
    with begin(tiny, tmp_path, options=options, limits=Limits(completion_tokens=3)) as loop:
        turn = loop.ask("One.")
        assert (turn.stop, turn.text, turn.requests[0].finish_reason) == ("done", "Don", "length")
        assert answer_to(loop.session.records[2]) == "Don"
        with reopen(loop, limits=Limits(completion_tokens=3)) as later:
            turn = later.ask("Two.")
            assert (turn.stop, turn.text, turn.losses) == ("done", "Don", ())


@pytest.mark.server
@pytest.mark.parametrize("most", [5, 20, 40])
def test_a_call_of_a_real_model_that_is_cut_is_neither_logged_nor_asked_for_again(
    most: int, tiny: Server, tmp_path: Path
) -> None:
    options = {"temperature": 0, "seed": 1, "max_tokens": most}
    with relayed(tiny) as (through, relay), begin(through, tmp_path, options=options, tools=[now_in]) as loop:
        before = log(loop)
        for sent in (1, 2):
            turn = loop.ask("What is the time?")
            assert (turn.stop, turn.requests, turn.tool_calls, len(relay.requests)) == ("cut_off", (), (), sent)
            assert log(loop) == before
        assert relay.requests[1].body == relay.requests[0].body
    with quiet(resume(tiny, "s", home=tmp_path, tools=[now_in])) as later:
        assert later.ask("Then let it be.").stop == "done"


BROKEN = '{"city":"Li'
CUT: list[tuple[str, str, str, int, str]] = [
    ("broken, length", BROKEN, "length", 9, "cut_off"),
    ("broken, at the limit, whatever the server says", BROKEN, "tool_calls", 64, "cut_off"),
    ("whole, but the server says that it was cut", LIMA, "length", 64, "cut_off"),
    ("whole, at the limit", LIMA, "tool_calls", 64, "done"),
]


@pytest.mark.parametrize(("name", "arguments", "finish", "written", "stop"), CUT)
@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_calls_at_the_completion_limit(
    name: str, arguments: str, finish: str, written: int, stop: str, limit: str, tmp_path: Path
) -> None:
    calls = calling(("a", "now_in", arguments), finish=finish, written=written)
    with scripted(calls, done(90, None, 6), done(120, None, 6)) as (server, script):
        with begin(server, tmp_path, tools=[now_in], options={limit: 64}) as loop:
            before = log(loop)
            turn = loop.ask("What is the time?")
            assert turn.stop == stop, name
            assert (log(loop) == before) == (stop == "cut_off")
            assert len(script.requests) == (1 if stop == "cut_off" else 2)
            with reopen(loop) as later:
                assert later.ask("And now?").stop == "done"


def test_reasoning_that_took_all_of_the_completion_is_logged_and_a_silent_answer_is_not(tmp_path: Path) -> None:
    end = '{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}'
    with (
        scripted(reasoned("Hm.", then=sse(end)[1:]), sse(end), done(90, None, 6)) as (server, script),
        begin(server, tmp_path) as loop,
    ):
        assert (loop.ask("One.").stop, loop.session.records[-1].__class__) == ("done", UsageRecord)
        before = log(loop)
        assert loop.ask("Two.").stop == "cut_off"
        assert log(loop) == before
        with reopen(loop) as later:
            later.ask("Two.")
            assert script.requests[2].body == script.requests[1].body


def test_a_completion_limit_that_the_options_contradict_is_refused(tmp_path: Path) -> None:
    with scripted() as (server, _):
        with pytest.raises(InvalidConfig, match=r"^limits\.completion_tokens: it is 9, but the options of the epoch set 64"):
            begin(server, tmp_path, limits=Limits(completion_tokens=9))
        assert not (tmp_path / "sessions").exists()
        begin(server, tmp_path, options={}, limits=Limits(completion_tokens=9)).close()
        with pytest.raises(InvalidConfig, match="it is 8, but the options of the epoch set 9"):
            resume(server, "s", home=tmp_path, limits=Limits(completion_tokens=8))
        resume(server, "s", home=tmp_path, limits=Limits(completion_tokens=9)).close()


# malformed calls


def broken(arguments: str = '{"city": Lima}', prompt: int = 40) -> list[Step]:
    return calling(("a", "now_in", arguments), prompt=prompt, written=9)


@pytest.mark.parametrize("arguments", ['{"city": Lima}', "", " ", '{"n": NaN}', '{"n": 1e999}', "[" * 10_000, LIMA + LIMA])
def test_a_malformed_call_is_asked_for_once_more_with_the_same_bytes_and_then_ends_the_turn(
    arguments: str, tmp_path: Path
) -> None:
    answers = [done(30, 0, 6), broken(arguments), broken(arguments), done(50, None, 6)]
    events: list[TurnEvent] = []
    with scripted(*answers) as (server, script), begin(server, tmp_path, tools=[now_in]) as loop:
        loop.ask("One.")
        before = log(loop)
        turn = loop.ask("What is the time?", on_event=events.append)
        assert (turn.stop, turn.requests, turn.tool_calls) == ("malformed_call", (), ())
        assert script.requests[2].body == script.requests[1].body
        assert len(script.requests) == 3
        assert log(loop) == before
        assert [event.request for event in events if isinstance(event, RequestSent)] == [2, 2]
        assert not any(isinstance(event, ToolCalled) for event in events)
        assert events[-1] == Stopped("malformed_call")
        with reopen(loop) as later:
            assert later.ask("What is the time?").stop == "done"
            assert script.requests[3].body == script.requests[1].body


def test_a_malformed_call_in_mid_turn_and_a_retry_that_succeeds(tmp_path: Path) -> None:
    answers = [calling(("a", "now_in", LIMA)), broken(prompt=80), calling(("b", "now_in", OSLO), prompt=80), done(120, None, 6)]
    with scripted(*answers) as (server, script), begin(server, tmp_path, tools=[now_in]) as loop:
        turn = loop.ask("Both?")
        assert (turn.stop, len(turn.requests)) == ("done", 3)
        assert [result.content for result in turn.tool_calls] == ["In Lima it is 16:20.", "In Oslo it is 16:20."]
        assert script.requests[2].body == script.requests[1].body
        assert b"Lima}" not in log(loop)


def test_a_malformed_call_in_mid_turn_is_gone_on_from(tmp_path: Path) -> None:
    answers = [calling(("a", "now_in", LIMA)), broken(prompt=80), done(120, None, 6)]
    with scripted(*answers) as (server, script):
        with begin(server, tmp_path, tools=[now_in], limits=Limits(malformed_retries=0)) as loop:
            assert loop.ask("Both?").stop == "malformed_call"
            assert len(script.requests) == 2
            with reopen(loop) as later:
                assert later.go_on().stop == "done"
                assert script.requests[2].body == script.requests[1].body


def test_one_malformed_call_among_several_keeps_all_from_running(tmp_path: Path) -> None:
    calls = calling(("a", "now_in", LIMA), ("b", "now_in", "{"))
    with scripted(calls, calls) as (server, _), begin(server, tmp_path, tools=[now_in]) as loop:
        before = log(loop)
        turn = loop.ask("Both?")
        assert (turn.stop, turn.tool_calls) == ("malformed_call", ())
        assert log(loop) == before


# the numbers of a turn


def test_a_turn_that_a_limit_ended_says_what_it_did(tmp_path: Path) -> None:
    calls = [calling((f"c{number}", "now_in", LIMA), prompt=40 * number) for number in (1, 2)]
    with scripted(*calls) as (server, _), begin(server, tmp_path, tools=[now_in], limits=Limits(max_requests=2)) as loop:
        turn = loop.ask("Go?")
        assert repr(turn).startswith("Turn request_limit, 2 requests, 2 calls: prompt 120, ")
        assert turn.usage.completion_tokens == 18
        assert [type(record) for record in turn.tool_calls] == [ToolResult, ToolResult]
