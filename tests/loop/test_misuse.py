"""Calls that are wrong: each is refused before anything is sent or made, and says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from loopkit.errors import InvalidConfig, ServerUnreachable, SessionClosed
from loopkit.loop.limits import Limits
from loopkit.loop.loop import Loop
from loopkit.loop.opening import resume, start
from loopkit.loop.tools.execution import PythonPort
from loopkit.loop.tools.registry import Registry
from loopkit.plot import prefix_reuse
from loopkit.server.client import Server
from loopkit.server.opening import connect, serve
from tests.loop.scripted_loops import begin, done, scripted
from tests.server.scripted import Scripted, answer


def now_in(city: str) -> str:
    """The time of day in a city."""
    return city


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("a single function as tools", {"tools": now_in}, r"tools: a single tool is not a list of tools\. Write tools=\["),
    ("a member that loopkit writes", {"options": {"messages": []}}, r"options\.messages: loopkit writes this member itself"),
    ("no way out of a full context", {"on_full": "rol"}, "on_full"),
    ("no way to carry over", {"carry": "all"}, "carry"),
    (
        "a file as memory",
        {"memory": Path("core.md")},
        r"memory: expected a str or a Memory; got a \w*Path\. Pass the block",
    ),
]


@pytest.mark.parametrize(("name", "more", "said"), WRONG)
def test_a_wrong_argument_of_start_is_named_and_leaves_no_session(
    name: str, more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with scripted() as (server, script), pytest.raises(InvalidConfig, match=said):
        begin(server, tmp_path, **more)
    assert script.requests == [], name
    assert list((tmp_path / "sessions").glob("*")) == []


def test_what_is_no_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"server: expected a Server; got a str\. Use lk\.serve"):
        start(cast(Server, "http://127.0.0.1:8080"), system="Be brief.", home=tmp_path)


def test_a_server_that_was_closed_is_refused_before_there_is_a_session(tmp_path: Path) -> None:
    with scripted(done(9, 0, 1)) as (server, _):
        begin(server, tmp_path / "before").close()
        server.close()
        calls: list[Callable[[], object]] = [
            lambda: begin(server, tmp_path / "home"),
            lambda: resume(server, "s", home=tmp_path / "before"),
            server.doctor,
        ]
        for call in calls:
            with pytest.raises(ServerUnreachable, match=r"this Server was closed\. Call serve or connect again$"):
                call()
    assert not (tmp_path / "home").exists()


def test_what_is_no_text_is_not_asked(tmp_path: Path) -> None:
    with scripted() as (server, script), begin(server, tmp_path) as loop:
        for wrong in (3, None, b"hi"):
            with pytest.raises(InvalidConfig, match="text: expected a str; got"):
                loop.ask(cast(str, wrong))
        assert script.requests == []


CLOSED: list[Callable[[Loop], object]] = [
    lambda loop: loop.ask("Hi."),
    lambda loop: loop.go_on(),
    lambda loop: loop.end_epoch(),
    lambda loop: loop.warm(),
]


@pytest.mark.parametrize("call", CLOSED)
def test_a_closed_loop_sends_nothing_and_says_how_to_open_it(call: Callable[[Loop], object], tmp_path: Path) -> None:
    with scripted(done(30, 0, 6)) as (server, script):
        loop = begin(server, tmp_path)
        loop.ask("Hi.")
        loop.close()
        with pytest.raises(SessionClosed, match=r"it was closed\. To continue, open the session again \(lk\.resume"):
            call(loop)
        assert len(script.requests) == 1


def test_what_a_new_epoch_begins_with_can_be_changed_on_an_open_loop(tmp_path: Path) -> None:
    with scripted() as (server, _), begin(server, tmp_path) as loop:
        assert loop.carry == "turn"
        loop.carry = None
        assert loop.carry is None
        with pytest.raises(InvalidConfig, match="carry"):
            loop.carry = cast(Any, "all")


def test_an_error_in_allow_says_that_it_is_one(tmp_path: Path) -> None:
    def allow(name: str, arguments: dict[str, Any]) -> bool:
        raise ZeroDivisionError("division by zero")

    with pytest.raises(ZeroDivisionError) as caught:
        PythonPort(Registry([now_in]), allow=allow).call("now_in", '{"city":"Lima"}')
    assert caught.value.__notes__ == ["Raised by allow= for the tool 'now_in', which was not run."]


def test_a_model_that_the_server_does_not_list_is_refused_when_connecting() -> None:
    listed = answer('{"data":[{"id":"m1"}]}')
    with (
        Scripted([listed]) as script,
        pytest.raises(InvalidConfig, match=r"model: the server does not list 'gpt-9'\. It lists m1"),
    ):
        connect(script.url, model="gpt-9")


def test_a_parameter_of_serve_that_is_spelled_wrong_is_named() -> None:
    with pytest.raises(InvalidConfig, match="The nearest names: context"):
        serve("tiny", contxt=512)
    with pytest.raises(InvalidConfig, match="expected a name or a path; got an int"):
        serve(cast(str, 3))


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"expected Logs or a frame; got a str\. Pass a frame like lk\.load"):
        prefix_reuse(cast(Any, "runs"))


def test_a_tool_that_exits_is_a_failed_tool() -> None:
    def leave() -> None:
        """Leave."""
        raise SystemExit(3)

    for seconds in (None, 60):
        outcome = PythonPort(Registry([leave]), seconds=seconds).call("leave", "{}")
        assert (outcome.status, outcome.content) == ("failed", "leave failed: SystemExit: 3")


@pytest.mark.parametrize("seconds", [1e300, float("inf"), 0, -1, True, "1"])
def test_what_no_thread_can_wait_for_is_no_time_limit(seconds: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"limits\.tool_seconds"):
        Limits(tool_seconds=seconds)
