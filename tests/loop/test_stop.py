"""Stop, from another thread or a callback, wherever the turn is; events that are left or fail; cells with an event loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from loopkit.contract.records import ToolResult
from loopkit.loop.events import Stopped, Turn, TurnEvent
from loopkit.server.client import Server
from loopkit.server.completion.deltas import TextDelta
from loopkit.session.session import Session
from tests.loop.scripted_loops import begin, calling, ctrl_c, done, log, reopen, scripted, threads_of_ours
from tests.server.scripted import HANG, answer, head, sse, text

LIMA = '{"city":"Lima"}'


def now_in(city: str) -> str:
    """The time of day in a city."""
    return f"In {city} it is 16:20."


def print_it(page: str) -> str:
    """Print a page."""
    return "Printed."


@pytest.mark.parametrize("begun", [[], [head()], sse(text("Do"))], ids=["no byte", "no event", "in the stream"])
def test_stop_ends_a_turn_whose_server_says_nothing(begun: list[Any], tmp_path: Path) -> None:
    reached, streamed = threading.Event(), threading.Event()
    turns: list[Turn] = []
    events: list[TurnEvent] = []

    def watch(event: TurnEvent) -> None:
        events.append(event)
        if isinstance(event, TextDelta):
            streamed.set()

    with scripted([*begun, reached.set, HANG], done(30, 0, 6)) as (server, script), begin(server, tmp_path) as loop:
        before = log(loop)
        thread = threading.Thread(target=lambda: turns.append(loop.ask("One.", on_event=watch)))
        thread.start()
        assert reached.wait(5)
        assert len(begun) < 2 or streamed.wait(5)
        loop.stop()
        thread.join(10)
        assert not thread.is_alive()
        assert script.requests[0].hung_up.wait(10)
        (turn,) = turns
        assert (turn.stop, turn.text, turn.requests) == ("interrupted", "Do" if len(begun) > 1 else "", ())
        assert events[-1] == Stopped("interrupted")
        assert log(loop) == before
        with reopen(loop) as later:
            later.ask("One.")
            assert script.requests[1].body == script.requests[0].body


def test_stop_ends_the_wait_for_another_attempt(tmp_path: Path) -> None:
    reached = threading.Event()

    def stop() -> None:
        reached.wait()
        loop.stop()

    busy = [*answer('{"error":{"message":"busy"}}', 429, Retry_After="50"), reached.set]
    with scripted(busy) as (server, script), begin(server, tmp_path) as loop:
        threading.Thread(target=stop, daemon=True).start()
        assert loop.ask("One.").stop == "interrupted"
        assert len(script.requests) == 1


def test_stop_in_a_tool_keeps_its_result_and_answers_the_others(tmp_path: Path) -> None:
    def tool(city: str) -> str:
        """Stop the turn."""
        loop.stop()
        return "It is late."

    calls = calling(("a", "tool", LIMA), ("b", "tool", LIMA))
    with scripted(calls, done(90, None, 6)) as (server, script), begin(server, tmp_path, tools=[tool]) as loop:
        turn = loop.ask("Both?")
        assert (turn.stop, [result.status for result in turn.tool_calls]) == ("interrupted", ["ok", "interrupted"])
        assert len(script.requests) == 1
        with reopen(loop) as later:
            assert later.go_on().stop == "done"


def test_stop_in_the_last_tool_sends_nothing_more(tmp_path: Path) -> None:
    def tool(city: str) -> str:
        """Stop the turn."""
        loop.stop()
        return "It is late."

    with (
        scripted(calling(("a", "tool", LIMA)), done(90, None, 6)) as (server, script),
        begin(server, tmp_path, tools=[tool]) as loop,
    ):
        turn = loop.ask("Go?")
        assert (turn.stop, [result.status for result in turn.tool_calls]) == ("interrupted", ["ok"])
        assert len(script.requests) == 1
        assert loop.go_on().stop == "done"


def test_stop_while_nothing_runs_stops_nothing(tmp_path: Path) -> None:
    with scripted(done(30, 0, 6), done(50, None, 6)) as (server, _), begin(server, tmp_path) as loop:
        loop.stop()
        assert loop.ask("One.").stop == "done"
        loop.stop()
        assert loop.ask("Two.").stop == "done"


@pytest.mark.server
def test_stop_in_the_stream_of_the_real_server(tiny: Server, tmp_path: Path) -> None:
    def stop(event: TurnEvent) -> None:
        if isinstance(event, TextDelta):
            loop.stop()

    with begin(tiny, tmp_path) as loop:
        turn = loop.ask("One.", on_event=stop)
        assert (turn.stop, turn.text) == ("interrupted", "D")
        assert loop.ask("Two.").losses == ()


# a generator that is left


@pytest.mark.parametrize("begun", [[], sse(text("Do"))], ids=["no byte", "in the stream"])
def test_leaving_the_events_early_stops_the_turn_and_leaves_no_thread(begun: list[Any], tmp_path: Path) -> None:
    reached = threading.Event()
    with scripted([*begun, reached.set, HANG], done(30, 0, 6)) as (server, script), begin(server, tmp_path) as loop:
        before = log(loop)
        events = loop.events("One.")
        next(events)
        assert reached.wait(5)
        if begun:
            assert next(events) == TextDelta("Do")
        events.close()
        assert threads_of_ours() == []
        assert script.requests[0].hung_up.wait(10)
        assert log(loop) == before
        assert loop.ask("One.").stop == "done"


def test_ctrl_c_while_events_are_waited_for_stops_the_turn(tmp_path: Path) -> None:
    with scripted([*sse(text("Do")), ctrl_c, HANG], done(30, 0, 6)) as (server, _), begin(server, tmp_path) as loop:
        with pytest.raises(KeyboardInterrupt):
            for _ in loop.events("One."):
                pass
        assert threads_of_ours() == []
        assert loop.ask("One.").stop == "done"


def test_an_error_of_the_turn_comes_out_of_the_events(tmp_path: Path) -> None:
    with scripted(calling(("a", "now_in", LIMA))) as (server, _), begin(server, tmp_path, tools=[now_in]) as loop:
        seen: list[TurnEvent] = []
        with pytest.raises(Exception, match="no response after"):
            seen.extend(loop.events("Go?"))
        assert threads_of_ours() == []
        assert loop.pending == ()


def test_a_watcher_that_fails_leaves_no_call_open(tmp_path: Path) -> None:
    def fail(event: TurnEvent) -> None:
        if isinstance(event, ToolResult):
            raise BrokenPipeError("nobody reads any more")

    calls = calling(*((name, "now_in", LIMA) for name in "abc"))
    with scripted(calls, done(90, None, 6)) as (server, _), begin(server, tmp_path, tools=[now_in]) as loop:
        with pytest.raises(BrokenPipeError):
            loop.ask("All?", on_event=fail)
        statuses = [record.status for record in loop.session.records if isinstance(record, ToolResult)]
        assert statuses == ["ok", "interrupted", "interrupted"]
        with reopen(loop) as later:
            assert later.go_on().stop == "done"


def test_ctrl_c_just_when_an_epoch_was_opened_leaves_no_stale_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Session.next_epoch

    def interrupted(session: Session, *arguments: Any, **more: Any) -> None:
        opened(session, *arguments, **more)
        ctrl_c()

    with scripted(done(30, 0, 6), done(60, None, 6)) as (server, script), begin(server, tmp_path, tools=[now_in]) as loop:
        loop.ask("One.")
        loop.tools.add(print_it)
        loop.end_epoch()
        monkeypatch.setattr(Session, "next_epoch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.ask("Two.")
        monkeypatch.undo()
        assert (loop.session.epoch, len(script.requests)) == (1, 1)
        assert loop.ask("Two.").stop == "done"
        assert b"print_it" in script.requests[1].body
        reopen(loop).close()


# cells whose event loop runs


def test_ask_in_a_running_event_loop_and_in_a_thread_beside_it(tmp_path: Path) -> None:
    async def later(city: str) -> str:
        """The time of day in a city."""
        await asyncio.sleep(0)
        return f"In {city} it is 16:20."

    async def cell() -> list[Turn]:
        beside = asyncio.create_task(asyncio.sleep(0))  # objects of this loop are not touched
        turns = [loop.ask("What is the time?"), await asyncio.to_thread(loop.ask, "And now?")]
        await beside
        return turns

    answers = [
        step for prompt in (40, 140) for step in (calling(("a", "later", LIMA), prompt=prompt), done(prompt + 50, None, 6))
    ]
    with scripted(*answers) as (server, _), begin(server, tmp_path, tools=[later]) as loop:
        for turn in asyncio.run(cell()):
            assert (turn.stop, turn.text, turn.tool_calls[0].content) == ("done", "Done.", "In Lima it is 16:20.")
