"""Ctrl-C at every moment of a turn: the log at a record boundary, every open call answered, and the turn gone on with.

The fifty placed interrupts are real SIGINTs on the real server. The sweep raises at the steps at which Python takes a signal,
over a whole turn; ``LOOPKIT_INTERRUPTS`` sets at how many of them (50; 0 for all).
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import loopkit
from loopkit.contract.records import ToolResult
from loopkit.errors import PendingCalls
from loopkit.loop.events import TurnEvent
from loopkit.loop.limits import INTERRUPTED, Limits
from loopkit.loop.loop import Loop
from loopkit.server.client import Server
from loopkit.server.completion.deltas import TextDelta
from loopkit.server.detection import Detected
from loopkit.server.transport.connection import Wire
from loopkit.session import disk
from tests.loop.scripted_loops import begin, calling, ctrl_c, done, log, messages, quiet, reopen, scripted, threads_of_ours
from tests.server.scripted import HANG, Relay, Scripted, head, read_request, sse, text

LIMA = '{"city":"Lima"}'
SAMPLE = int(os.environ.get("LOOPKIT_INTERRUPTS", "50"))


def now_in(city: str) -> str:
    """The time of day in a city."""
    return f"In {city} it is 16:20."


def goes_on(loop: Loop) -> None:
    """The log is sound, no call is open, and the session goes on, here and from the disk."""
    assert loop.pending == ()
    assert threads_of_ours() == []
    with reopen(loop) as later:
        if later._is_unfinished():
            assert later.go_on().stop == "done"
        turn = later.ask("What is the time now?")
        assert (turn.stop, [result.status for result in turn.tool_calls]) == ("done", ["ok"])


class Gate(Relay):
    """Stands before a real server, and interrupts while the client waits for the first byte of the n-th answer."""

    def __init__(self, url: str, at: int) -> None:
        self._at = at
        self._asked = itertools.count(1)
        super().__init__(url)

    def handle(self, connection: socket.socket) -> None:
        asks = connection.recv(4, socket.MSG_PEEK) == b"POST"  # not for the server's counters
        if not asks or next(self._asked) != self._at:
            return super().handle(connection)
        assert read_request(connection) is not None
        ctrl_c()
        assert connection.recv(1) == b""  # the client hangs up
        return None


@contextlib.contextmanager
def gated(server: Server, at: int) -> Iterator[Server]:
    assert server._child is not None
    with (
        Gate(server.url, at) as gate,
        Server(Wire(gate.url, api_key=server._child.key, timeout=30), Detected("llama.cpp", None, "tiny")) as through,
    ):
        through._tags = server.tags()
        yield through


# the fifty: 2 × 5 + 2 × 5 + 2 × 5 + 8 + 12


@pytest.mark.server
@pytest.mark.parametrize("turns", range(5))
@pytest.mark.parametrize("request_of_turn", [1, 2])
def test_ctrl_c_before_the_first_byte(request_of_turn: int, turns: int, tiny: Server, tmp_path: Path) -> None:
    with gated(tiny, turns + request_of_turn) as through, begin(through, tmp_path, tools=[now_in], slot=0) as loop:
        for number in range(turns):
            loop.ask(f"{number}.")
        before = log(loop)
        with pytest.raises(KeyboardInterrupt):
            loop.ask("What is the time?")
        assert (log(loop) == before) == (request_of_turn == 1)
        loop._state.server = tiny
        goes_on(loop)


@pytest.mark.server
@pytest.mark.parametrize("delta", range(5))
@pytest.mark.parametrize("request_of_turn", [1, 2])
def test_ctrl_c_in_the_stream(request_of_turn: int, delta: int, tiny: Server, tmp_path: Path) -> None:
    seen = itertools.count()

    def interrupt(event: TurnEvent) -> None:
        if isinstance(event, TextDelta) and next(seen) == delta:
            ctrl_c()

    with begin(tiny, tmp_path, tools=[now_in]) as loop:
        with pytest.raises(KeyboardInterrupt):
            loop.ask("Hello." if request_of_turn == 1 else "What is the time?", on_event=interrupt)
        assert log(loop).count(b"\n") == (1 if request_of_turn == 1 else 5)
        goes_on(loop)


@pytest.mark.server
@pytest.mark.parametrize("turns", range(5))
@pytest.mark.parametrize("request_of_turn", [1, 2])
def test_ctrl_c_between_completion_and_append(
    request_of_turn: int, turns: int, tiny: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loopkit.cache.losses.expected import expect

    completed = itertools.count(1)

    def interrupting(*arguments: Any, **more: Any) -> Any:
        if next(completed) == turns + request_of_turn:
            ctrl_c()
        return expect(*arguments, **more)

    monkeypatch.setattr("loopkit.loop.turn.expect", interrupting)
    with begin(tiny, tmp_path, tools=[now_in]) as loop:
        for number in range(turns):
            loop.ask(f"{number}.")
        before = log(loop)
        with pytest.raises(KeyboardInterrupt):
            loop.ask("What is the time?")
        assert (log(loop) == before) == (request_of_turn == 1)
        goes_on(loop)


def in_this_thread(city: str) -> str:
    """The time of day in a city."""
    ctrl_c()
    return "It is 16:20."


async def asynchronous(city: str) -> str:
    """The time of day in a city."""
    ctrl_c()
    return "It is 16:20."


@pytest.mark.server
@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("tool", [in_this_thread, asynchronous])
def test_ctrl_c_in_a_tool(tool: Callable[[str], Any], turns: int, tiny: Server, tmp_path: Path) -> None:
    with begin(tiny, tmp_path, tools=[tool]) as loop:
        for number in range(turns):
            loop.ask(f"{number}.")
        with pytest.raises(KeyboardInterrupt):
            loop.ask("What is the time?")
        result = loop.session.records[-1]
        assert isinstance(result, ToolResult)
        assert (result.status, result.content, result.call) == ("interrupted", INTERRUPTED, 1)
        while threads_of_ours():
            pass  # the coroutine's own thread ends of itself
        with reopen(loop) as later:
            assert later.go_on().stop == "done"
            assert messages(list(later.session.requests())[-1].body)[-1]["content"] == INTERRUPTED


STEPS = ["before the write", "half written", "before the sync", "after the sync"]


@pytest.mark.server
@pytest.mark.parametrize("append", [1, 2, 3], ids=["a call", "a result", "an answer"])
@pytest.mark.parametrize("step", STEPS)
def test_ctrl_c_in_the_append(step: str, append: int, tiny: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, sync, appended = disk._write_whole, disk._sync_data, itertools.count(1)
    at = 0

    def writing(fd: int, data: bytes) -> None:
        nonlocal at
        at = next(appended)
        if at == append and step == "before the write":
            ctrl_c()
        if at == append and step == "half written":
            write(fd, data[: len(data) // 2])
            ctrl_c()
        write(fd, data)

    def syncing(fd: int) -> None:
        if at == append and step == "before the sync":
            ctrl_c()
        sync(fd)
        if at == append and step == "after the sync":
            ctrl_c()

    with begin(tiny, tmp_path, tools=[now_in]) as loop:
        monkeypatch.setattr(disk, "_write_whole", writing)
        monkeypatch.setattr(disk, "_sync_data", syncing)
        with pytest.raises(KeyboardInterrupt):
            loop.ask("What is the time?")
        monkeypatch.undo()
        results = [record.status for record in loop.session.records if isinstance(record, ToolResult)]
        assert results == [[], ["interrupted"], ["ok"]][append - 1]
        goes_on(loop)


# every step


class Engine(Scripted):
    """Calls a tool where the last message is a user's, else answers; its counts are those of the bytes."""

    def __init__(self) -> None:
        super().__init__([])

    def handle(self, connection: socket.socket) -> None:
        request = read_request(connection)
        if request is None:
            return
        if "/chat/completions" not in request.line:
            connection.sendall(head(404) + b"{}")
            return
        self.requests.append(request)
        count, asked = len(request.body), messages(request.body)[-1]["role"] == "user"
        calls = (("a", "now_in", LIMA), ("b", "now_in", LIMA))
        for step in calling(*calls, prompt=count) if asked else done(count, None, 6):
            assert isinstance(step, bytes)
            connection.sendall(step)


ROOT = str(Path(loopkit.__file__).parent)


class Sweep:
    """Raises KeyboardInterrupt at the n-th step of our own code at which Python may take a signal: calls and returns."""

    def __init__(self, at: int) -> None:
        self.at, self.seen = at, 0

    def step(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "c_call" or not code.co_filename.startswith(ROOT):
            return
        if code.co_flags & inspect.CO_GENERATOR or code.co_name == "trace":
            return  # generators, ours and httpcore's, end here when they are dropped, and Python swallows what is raised then
        self.seen += 1
        if self.seen == self.at:
            raise KeyboardInterrupt

    def __enter__(self) -> Sweep:
        sys.setprofile(self.step)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)


def test_an_interrupt_at_any_step_of_a_turn(tmp_path: Path) -> None:
    with Engine() as engine, Server(Wire(engine.url, timeout=30), Detected("llama.cpp")) as server:
        server._tags = loopkit.contract.neutralise.DEFAULT
        with begin(server, tmp_path, "count", tools=[now_in]) as loop:
            loop.ask("Before.")  # a server is asked once for what it does not show
            with Sweep(0) as sweep:
                loop.ask("What is the time?")
        steps = sweep.seen
        places = range(1, steps + 1, max(1, steps // SAMPLE) if SAMPLE else 1)
        for at in places:
            with begin(server, tmp_path, f"at-{at}", tools=[now_in]) as loop:
                loop.ask("Before.")
                with contextlib.suppress(KeyboardInterrupt), Sweep(at):
                    loop.ask("What is the time?")
                    raise AssertionError(f"step {at} of {steps} was not reached")
                assert loop.pending == (), at
                assert loop.go_on().stop == "done" if loop._is_unfinished() else True
                assert loop.ask("And now?").stop == "done", at
                with reopen(loop) as later:
                    assert later.ask("And from the disk?").stop == "done", at


# more than one


def test_a_second_interrupt_while_calls_are_answered_leaves_a_log_that_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = disk._write_whole

    def interrupted_again(fd: int, data: bytes) -> None:
        write(fd, data[:20])
        ctrl_c()

    def tool(city: str) -> str:
        """Interrupt, and have the answers that follow interrupted as well."""
        monkeypatch.setattr(disk, "_write_whole", interrupted_again)
        ctrl_c()
        return ""

    calls = calling(("a", "tool", LIMA), ("b", "tool", LIMA))
    with scripted(calls, done(90, None, 6)) as (server, script), begin(server, tmp_path, tools=[tool]) as loop:
        with pytest.raises(KeyboardInterrupt):
            loop.ask("Both?")
        monkeypatch.undo()
        with reopen(loop) as later:
            assert [call.id for call in later.pending] == ["a", "b"]
            with pytest.raises(PendingCalls, match="tool"):
                later.ask("Something else.")
            assert [result.status for result in later.settle("interrupted")] == ["interrupted"] * 2
            assert later.go_on().stop == "done"
            assert [message["content"] for message in messages(script.requests[1].body)[-2:]] == [INTERRUPTED] * 2


def test_of_several_open_calls_those_that_ran_keep_their_results(tmp_path: Path) -> None:
    ran: list[str] = []

    def tool(city: str) -> str:
        """Interrupt at the second call."""
        ran.append(city)
        if len(ran) == 2:
            ctrl_c()
        return f"It is late in {city}."

    calls = calling(("a", "tool", LIMA), ("b", "tool", '{"city":"Oslo"}'), ("c", "tool", '{"city":"Rome"}'))
    with scripted(calls, done(90, None, 6)) as (server, script), begin(server, tmp_path, tools=[tool]) as loop:
        with pytest.raises(KeyboardInterrupt):
            loop.ask("All?")
        results = [record for record in loop.session.records if isinstance(record, ToolResult)]
        assert [(result.call, result.tool_call_id, result.status) for result in results] == [
            (1, "a", "ok"),
            (2, "b", "interrupted"),
            (3, "c", "interrupted"),
        ]
        assert ran == ["Lima", "Oslo"]
        with reopen(loop) as later:
            later.ask("Never mind.")
            roles = [message["role"] for message in messages(script.requests[1].body)]
            assert roles == ["system", "user", "assistant", "tool", "tool", "tool", "user"]


# what is left behind


@pytest.mark.parametrize("begun", [[], [head()], sse(text("Do"))], ids=["no byte", "no event", "in the stream"])
def test_after_ctrl_c_the_connection_is_closed_no_thread_lives_and_the_log_stands_still(begun: list[Any], tmp_path: Path) -> None:
    with scripted([*begun, ctrl_c, HANG], done(30, 0, 6)) as (server, script), begin(server, tmp_path) as loop:
        before = log(loop)
        caught: list[BaseException] = []  # a cell keeps the traceback, and with it every frame
        try:
            loop.ask("One.")
        except KeyboardInterrupt as error:
            caught.append(error)
        assert caught
        assert script.requests[0].hung_up.wait(10)
        assert threads_of_ours() == []
        assert log(loop) == before
        assert loop.ask("One.").stop == "done"
        assert script.requests[1].body == script.requests[0].body


def test_a_tool_that_runs_in_a_thread_is_left_at_once(tmp_path: Path) -> None:
    release = threading.Event()

    def tool(city: str) -> str:
        """Interrupt, and go on for ever."""
        ctrl_c()
        release.wait()
        return ""

    with scripted(calling(("a", "tool", LIMA)), done(90, None, 6)) as (server, _):
        with begin(server, tmp_path, tools=[tool], limits=Limits(tool_seconds=600)) as loop:
            with pytest.raises(KeyboardInterrupt):
                loop.ask("Go?")
            assert loop.pending == ()
            before = log(loop)
            release.set()
            for thread in threads_of_ours():
                thread.join(5)
            assert log(loop) == before
            assert quiet(loop).go_on().stop == "done"


def test_a_request_that_was_left_is_not_in_the_log(tmp_path: Path) -> None:
    with scripted([*sse(text("Do")), ctrl_c, HANG], done(30, 0, 6)) as (server, _), begin(server, tmp_path) as loop:
        with pytest.raises(KeyboardInterrupt):
            loop.ask("One.")
        loop.ask("Two.")
        assert [json.loads(line)["kind"] for line in log(loop).splitlines()] == ["session_start", "user", "assistant", "usage"]
