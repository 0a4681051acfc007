"""A process that is killed in a tool leaves calls open: visible on resume, and settled by the person, never silently."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loopkit.contract.records import ToolResult
from loopkit.errors import InvalidConfig, NothingToGoOn, PendingCalls, ServerRefused, StreamCut
from loopkit.loop.limits import INTERRUPTED
from loopkit.loop.loop import Loop
from loopkit.loop.opening import resume
from loopkit.server.client import Server
from tests.loop.scripted_loops import begin, calling, ctrl_c, done, log, messages, quiet, reopen, scripted
from tests.server.scripted import answer, sse, text

ROOT = Path(__file__).parents[2]
LIMA, OSLO = '{"city":"Lima"}', '{"city":"Oslo"}'

CHILD = """
import os, signal, sys
from pathlib import Path
from loopkit.server.client import Server
from loopkit.server.detection import Detected
from loopkit.server.transport.connection import Wire
from tests.loop.scripted_loops import DEFAULT, begin
from tests.loop.test_pending import now_in

def kill(name, arguments):
    if arguments["city"] == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)
    return True

url, home = sys.argv[1:3]
with Server(Wire(url, api_key=sys.stdin.readline().strip() or None, timeout=30), Detected("llama.cpp")) as server:
    server._tags = DEFAULT
    begin(server, Path(home), tools=[now_in], allow=kill).ask("What is the time?")
"""


def now_in(city: str) -> str:
    """The time of day in a city."""
    return f"In {city} it is 16:20."


def killed(server: Server, home: Path, at: str) -> None:
    """Have another process begin a session, and be killed when the model calls for a city."""
    key = server._child.key if server._child is not None else ""
    command = [sys.executable, "-c", CHILD, server.url, str(home), at]
    child = subprocess.run(command, input=key + "\n", capture_output=True, text=True, cwd=ROOT, check=False)
    assert child.returncode == -signal.SIGKILL, child.stderr


def taken_up(server: Server, home: Path) -> Loop:
    return quiet(resume(server, "s", home=home, tools=[now_in]))


@pytest.mark.server
@pytest.mark.parametrize("how", ["rerun", "interrupted"])
def test_after_a_kill_in_a_tool_of_the_real_model_the_person_chooses(how: str, tiny: Server, tmp_path: Path) -> None:
    killed(tiny, tmp_path, ".")
    with taken_up(tiny, tmp_path) as loop:
        before = log(loop)
        assert [(call.function.name, call.function.arguments) for call in loop.pending] == [("now_in", '{"city": "."}')]
        for go in (lambda: loop.ask("Something else."), loop.go_on, loop.end_epoch):
            with pytest.raises(PendingCalls, match="now_in"):
                go()
        assert log(loop) == before
        (result,) = loop.settle("rerun" if how == "rerun" else "interrupted")
        wanted = ("ok", "In . it is 16:20.") if how == "rerun" else ("interrupted", INTERRUPTED)
        assert (result.status, result.content, result.call) == (*wanted, 1)
        assert loop.pending == ()
        with reopen(loop) as later:
            assert later.go_on().stop == "done"
            assert messages(list(later.session.requests())[1].body)[-1]["content"] == wanted[1]
            assert later.ask("Thanks.").losses == ()


def test_of_several_calls_those_before_the_kill_keep_their_results(tmp_path: Path) -> None:
    calls = calling(("a", "now_in", LIMA), ("b", "now_in", OSLO), ("c", "now_in", LIMA))
    with scripted(calls, done(90, None, 6)) as (server, script):
        killed(server, tmp_path, "Oslo")
        with taken_up(server, tmp_path) as loop:
            assert [call.id for call in loop.pending] == ["b", "c"]
            with pytest.raises(PendingCalls, match="now_in, now_in"):
                loop.go_on()
            assert [(result.call, result.content) for result in loop.settle("rerun")] == [
                (2, "In Oslo it is 16:20."),
                (3, "In Lima it is 16:20."),
            ]
            with reopen(loop) as later:
                later.go_on()
                answered = [message for message in messages(script.requests[1].body) if message["role"] == "tool"]
                assert [message["tool_call_id"] for message in answered] == ["a", "b", "c"]


def test_settled_calls_need_not_be_gone_on_from(tmp_path: Path) -> None:
    with scripted(calling(("a", "now_in", LIMA)), done(90, None, 6)) as (server, script):
        killed(server, tmp_path, "Lima")
        with taken_up(server, tmp_path) as loop:
            loop.settle("interrupted")
            assert loop.settle("interrupted") == ()
            assert loop.ask("Never mind.").stop == "done"
            assert [message["role"] for message in messages(script.requests[1].body)][-2:] == ["tool", "user"]


@pytest.mark.parametrize("stop", [False, True], ids=["Ctrl-C", "Stop"])
def test_a_rerun_that_is_interrupted_leaves_no_call_open(stop: bool, tmp_path: Path) -> None:
    calls = calling(("a", "now_in", LIMA), ("b", "now_in", OSLO))
    with scripted(calls, done(90, None, 6)) as (server, _):
        killed(server, tmp_path, "Lima")

        def allow(name: str, arguments: object) -> bool:
            loop.stop() if stop else ctrl_c()
            return True

        with quiet(resume(server, "s", home=tmp_path, tools=[now_in], allow=allow)) as loop:
            if stop:
                assert [result.status for result in loop.settle("rerun")] == ["ok", "interrupted"]
            else:
                with pytest.raises(KeyboardInterrupt):
                    loop.settle("rerun")
            assert loop.pending == ()
            with reopen(loop) as later:
                results = [record.status for record in later.session.records if isinstance(record, ToolResult)]
                assert results == ["ok" if stop else "interrupted", "interrupted"]
                assert later.go_on().stop == "done"


def test_no_other_way_to_settle(tmp_path: Path) -> None:
    with scripted() as (server, _), begin(server, tmp_path) as loop, pytest.raises(InvalidConfig, match="'skip' is unknown"):
        loop.settle("skip")  # type: ignore[arg-type]


# go_on


@pytest.mark.parametrize("fault", [answer('{"error":{"message":"busy"}}', 500), sse(text("Do"))], ids=["refused", "cut"])
def test_after_an_error_in_mid_turn_go_on_sends_the_same_bytes(fault: list[bytes], tmp_path: Path) -> None:
    with scripted(calling(("a", "now_in", LIMA)), fault, done(90, None, 6)) as (server, script):
        with begin(server, tmp_path, tools=[now_in]) as loop:
            with pytest.raises((ServerRefused, StreamCut)):
                loop.ask("What is the time?")
            with reopen(loop) as later:
                assert later.go_on().stop == "done"
                assert script.requests[2].body == script.requests[1].body


def test_with_nothing_to_go_on_from_go_on_says_so(tmp_path: Path) -> None:
    with scripted(done(30, 0, 6), sse(text("Do"))) as (server, script), begin(server, tmp_path) as loop:
        with pytest.raises(NothingToGoOn):
            loop.go_on()
        loop.ask("One.")
        with pytest.raises(StreamCut):
            loop.ask("Two.")  # was never logged: it is asked again, not gone on from
        with reopen(loop) as later, pytest.raises(NothingToGoOn):
            later.go_on()
        assert len(script.requests) == 2
