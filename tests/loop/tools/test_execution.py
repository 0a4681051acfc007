"""The port: what is asked before a call, and what each way of going wrong tells the model."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import AfterValidator
from typing_extensions import Annotated  # noqa: UP035  read by pydantic at run time, as a person's own tool may have it

from loopkit.errors import InvalidConfig, LoopBusy, SessionNotFound
from loopkit.loop.tools.execution import Denied, Failed, Ok, Outcome, PythonPort, ToolPort
from loopkit.loop.tools.registry import Registry
from loopkit.loop.tools.schemas import JsonTool

who = contextvars.ContextVar("who", default="nobody")


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


def remove(path: str) -> dict[str, str]:
    """Remove a file."""
    return {"removed": path}


def port_of(*tools: Callable[..., Any] | JsonTool, **options: Any) -> PythonPort:
    return PythonPort(Registry(tools), **options)


class TestOk:
    def test_it_is_a_port(self) -> None:
        port: ToolPort = port_of(add)
        assert port.call("add", '{"a": 1, "b": 2}') == Ok("3")

    def test_a_json_tool_gets_one_dictionary(self) -> None:
        tool = JsonTool("keys", "Keys.", {"type": "object"}, list)
        assert port_of(tool).call("keys", '{"b": 1, "a": 2}') == Ok('["b","a"]')

    def test_a_found_tool(self) -> None:
        registry = Registry()
        registry.add(add, core=False)
        port = PythonPort(registry)
        assert port.call("call_tool", '{"name":"add","arguments":{"a":1}}') == Ok("2")
        assert '"name":"add"' in port.call("find_tool", '{"query":"numbers"}').content

    def test_the_last_of_a_members_values_counts_for_all(self) -> None:
        seen: list[Any] = []

        def allow(name: str, arguments: dict[str, Any]) -> bool:
            seen.append(arguments)
            return True

        assert port_of(remove, allow=allow).call("remove", '{"path":"a","path":"b"}') == Ok('{"removed":"b"}')
        assert seen == [{"path": "b"}]

    def test_the_outcomes_are_told_apart(self) -> None:
        outcomes: list[Outcome] = [Ok("x"), Denied("x"), Failed("x")]
        assert [outcome.status for outcome in outcomes] == ["ok", "denied", "failed"]
        assert all(one != other for one in outcomes for other in outcomes if one is not other)


class TestAllow:
    @pytest.mark.parametrize(
        ("verdict", "outcome"),
        [
            (True, Ok('{"removed":"a"}')),
            (False, Denied("Denied: this call was not allowed.")),
            ("", Denied("Denied: this call was not allowed.")),
            ("ask me tomorrow", Denied("Denied: ask me tomorrow")),
        ],
    )
    def test_what_it_may_say(self, verdict: Any, outcome: Outcome) -> None:
        assert port_of(remove, allow=lambda name, arguments: verdict).call("remove", '{"path":"a"}') == outcome

    @pytest.mark.parametrize("verdict", [None, 1, 0, b"yes", [], (True,)])
    def test_anything_else_is_the_owners_error_and_nothing_is_run(self, verdict: Any) -> None:
        ran: list[str] = []
        tool = JsonTool("remove", "", {"type": "object"}, lambda values: ran.append("ran"))
        with pytest.raises(InvalidConfig) as raised:
            port_of(tool, allow=lambda name, arguments: verdict).call("remove", "{}")
        assert f"allow: it returned {verdict!r} for the tool remove" in str(raised.value)
        assert ran == []

    def test_it_is_asked_about_the_tool_that_will_run(self) -> None:
        asked: list[tuple[str, dict[str, Any]]] = []

        def allow(name: str, arguments: dict[str, Any]) -> bool:
            asked.append((name, dict(arguments)))
            return name != "remove"

        port = port_of(remove, allow=allow)
        assert isinstance(port.call("call_tool", '{"name":"remove","arguments":{"path":"a"}}'), Denied)
        assert isinstance(port.call("remove", '{"path":"a"}'), Denied)
        assert isinstance(port.call("clock", "{}"), Ok)
        assert asked == [("remove", {"path": "a"}), ("remove", {"path": "a"}), ("clock", {})]

    def test_it_is_not_asked_about_a_call_that_cannot_be_run(self) -> None:
        def allow(name: str, arguments: dict[str, Any]) -> bool:
            raise AssertionError("asked")

        port = port_of(remove, allow=allow)
        assert isinstance(port.call("remove", "{}"), Failed)
        assert isinstance(port.call("nothing", "{}"), Failed)

    @pytest.mark.parametrize(
        "tool", [remove, JsonTool("remove", "", {"type": "object"}, lambda values: {"removed": values["path"]})]
    )
    def test_what_it_does_to_the_arguments_does_not_reach_the_tool(self, tool: Any) -> None:
        port = port_of(tool, allow=lambda name, arguments: arguments.update(path="b") is None)
        assert port.call("remove", '{"path":"a"}') == Ok('{"removed":"a"}')

    def test_an_error_of_its_own_passes_through(self) -> None:
        def allow(name: str, arguments: dict[str, Any]) -> bool:
            return bool(arguments["mode"])

        with pytest.raises(KeyError):
            port_of(remove, allow=allow).call("remove", '{"path":"a"}')


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def fail(error: BaseException) -> JsonTool:
    def call(values: dict[str, Any]) -> None:
        raise error

    return JsonTool("fail", "", {"type": "object"}, call)


class TestFailed:
    @pytest.mark.parametrize(
        ("name", "arguments", "told"),
        [
            ("ad", '{"a":1}', "There is no tool 'ad'. The nearest names are: add."),
            ("add", "{}", "The arguments do not fit add: a: Missing required argument"),
            ("add", '{"a": "x"}', "The arguments do not fit add: a: Input should be a valid integer, unable to parse"),
            ("add", '{"a": 1', "The arguments of this call are not JSON: "),
            ("add", "", "The arguments of this call are not JSON: "),
            ("add", '{"a": "\ud83d"}', "The arguments of this call are not JSON: "),
            ("add", "[1]", "The arguments of this call are not a JSON object but '[1]'. Write one JSON object."),
            ("add", "null", "The arguments of this call are not a JSON object but 'null'."),
        ],
    )
    def test_a_call_that_does_not_fit(self, name: str, arguments: str, told: str) -> None:
        outcome = port_of(add).call(name, arguments)
        assert isinstance(outcome, Failed)
        assert outcome.content.startswith(told)

    @pytest.mark.parametrize("seconds", [None, 60])
    @pytest.mark.parametrize(
        ("error", "told"),
        [
            (ValueError("no such city"), "fail failed: ValueError: no such city"),
            (FileNotFoundError(2, "No such file", "a.txt"), "fail failed: FileNotFoundError: [Errno 2] No such file: 'a.txt'"),
            (TimeoutError(), "fail failed: TimeoutError"),
            (KeyError("x"), "fail failed: KeyError: 'x'"),
            (StopIteration(), "fail failed: StopIteration"),
            (asyncio.CancelledError(), "fail failed: asyncio.exceptions.CancelledError"),
            (SessionNotFound("runs/x"), "fail failed: loopkit.errors.SessionNotFound: no session found: runs/x does not exist"),
            (Broken(), "fail failed: "),
        ],
    )
    def test_a_tool_that_raises(self, error: BaseException, told: str, seconds: float | None) -> None:
        outcome = port_of(fail(error), seconds=seconds).call("fail", "{}")
        assert isinstance(outcome, Failed)
        assert outcome.content.startswith(told)
        assert type(error).__name__ in outcome.content

    @pytest.mark.parametrize("seconds", [None, 60])
    @pytest.mark.parametrize("error", [KeyboardInterrupt()])
    def test_what_is_not_the_models_to_know_passes_through(self, error: BaseException, seconds: float | None) -> None:
        with pytest.raises(type(error)) as raised:
            port_of(fail(error), seconds=seconds).call("fail", "{}")
        assert raised.value is error

    def test_a_validator_that_raises_what_pydantic_does_not_expect(self) -> None:
        errors: list[Exception] = [OSError(5, "no dice"), LoopBusy("s")]  # one of loopkit's own as well

        def odd(value: int) -> int:
            raise errors[value]

        def throw(n: Any) -> None: ...

        throw.__annotations__["n"] = Annotated[int, AfterValidator(odd)]
        assert port_of(throw).call("throw", '{"n":0}') == Failed("throw failed: OSError: [Errno 5] no dice")
        assert port_of(throw).call("throw", '{"n":1}').content.startswith("throw failed: loopkit.errors.LoopBusy: ")

    @pytest.mark.parametrize("value", [b"GIF89a", {"a": {1: 2, "1": 3}}])
    def test_a_result_that_is_no_text(self, value: Any) -> None:
        outcome = port_of(JsonTool("give", "", {"type": "object"}, lambda values: value)).call("give", "{}")
        assert isinstance(outcome, Failed)
        assert outcome.content.startswith("give failed: ")

    def test_a_result_that_holds_itself(self) -> None:
        endless: list[Any] = []
        endless.append(endless)
        outcome = port_of(JsonTool("give", "", {"type": "object"}, lambda values: endless)).call("give", "{}")
        assert outcome.content.startswith("give failed: RecursionError")


class TestTime:
    @pytest.mark.parametrize("seconds", [0, -1, float("nan"), "1", True])
    def test_what_is_no_time(self, seconds: Any) -> None:
        with pytest.raises(InvalidConfig, match=r"^seconds: "):
            port_of(add, seconds=seconds)

    def test_too_long_and_the_thread_is_left_to_end(self) -> None:
        go, started, ended = threading.Event(), threading.Event(), threading.Event()
        threads: list[threading.Thread] = []

        def wait() -> None:
            threads.append(threading.current_thread())
            started.set()
            go.wait()
            ended.set()

        outcome = port_of(wait, seconds=0.01).call("wait", "{}")
        assert outcome == Failed("wait gave no result within 0.01 s. It was left, and may still be running.")
        assert started.wait(30)
        assert threads[0].daemon
        assert not ended.is_set()
        go.set()
        assert ended.wait(30)

    def test_a_tool_that_reads_forever_is_bounded_as_well_when_its_text_is_made(self) -> None:
        go = threading.Event()

        class Slow:
            def __str__(self) -> str:
                go.wait()
                return ""

        outcome = port_of(JsonTool("slow", "", {"type": "object"}, lambda values: Slow()), seconds=0.01).call("slow", "{}")
        go.set()
        assert isinstance(outcome, Failed)

    @pytest.mark.parametrize(("seconds", "same"), [(None, True), (60, False)])
    def test_without_a_limit_it_runs_in_the_callers_thread_where_ctrl_c_stops_it(
        self, seconds: float | None, *, same: bool
    ) -> None:
        def thread() -> int:
            return threading.get_ident()

        assert (port_of(thread, seconds=seconds).call("thread", "{}") == Ok(str(threading.get_ident()))) is same

    @pytest.mark.parametrize("seconds", [None, 60])
    def test_ctrl_c_is_not_kept_waiting_by_a_tool(self, seconds: float | None) -> None:
        go, gone = threading.Event(), threading.Event()

        def hang() -> None:
            try:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                go.wait()
            finally:
                gone.set()

        with pytest.raises(KeyboardInterrupt):
            port_of(hang, seconds=seconds).call("hang", "{}")
        go.set()
        assert gone.wait(30)

    def test_the_callers_context_reaches_the_thread(self) -> None:
        token = who.set("me")
        try:
            assert port_of(JsonTool("who", "", {"type": "object"}, lambda values: who.get()), seconds=60).call("who", "{}") == Ok(
                "me"
            )
        finally:
            who.reset(token)


async def later(n: int) -> int:
    """Later."""
    await asyncio.sleep(0)
    return n


class TestCoroutines:
    @pytest.mark.parametrize("seconds", [None, 60])
    def test_are_awaited_also_where_an_event_loop_runs(self, seconds: float | None) -> None:
        port = port_of(later, seconds=seconds)
        assert port.call("later", '{"n":1}') == Ok("1")

        async def cell() -> Outcome:
            return port.call("later", '{"n":2}')

        assert asyncio.run(cell()) == Ok("2")

    def test_time_out(self) -> None:
        go = threading.Event()

        async def hang() -> None:
            await asyncio.to_thread(go.wait)

        assert isinstance(port_of(hang, seconds=0.01).call("hang", "{}"), Failed)
        go.set()

    def test_one_that_was_hidden_in_a_plain_function_is_told(self) -> None:
        def hidden() -> Any:
            return later(1)

        outcome = port_of(hidden).call("hidden", "{}")
        assert outcome == Failed("hidden failed: TypeError: result is a coroutine: make the tool an async def, or return a list")
