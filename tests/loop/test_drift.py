"""Today's tools against an epoch's."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from loopkit.contract.baseline import Baseline
from loopkit.contract.messages import ToolSchema
from loopkit.contract.records import Assistant, LogRecord, ToolResult, User
from loopkit.encoding import encode
from loopkit.errors import InvalidConfig
from loopkit.loop.drift import Change, Drift, differences, found_tools
from loopkit.loop.schemas import JsonTool
from loopkit.loop.tools import Registry

NOW = "2026-11-30T07:31:05.000000Z"


def tool(name: str, description: str = "Look.", /, **properties: Any) -> JsonTool:
    return JsonTool(name, description, {"type": "object", "properties": properties}, dict)


def snapshot(*tools: JsonTool) -> tuple[ToolSchema, ...]:
    """As it is read back from the baseline's file."""
    return Baseline.from_json(Baseline("", Registry(tools).core_schemas()).to_json()).tools


A, B = tool("a", n={"type": "integer"}), tool("b")


class TestDifferences:
    @pytest.mark.parametrize(
        ("then", "now", "used", "drift"),
        [
            ((A, B), (A, B), (), Drift()),
            ((A, B), (B, A), (), Drift()),
            ((), (), (), Drift()),
            ((A, B), (B,), (), Drift(missing=("a",))),
            ((A, B), (), (), Drift(missing=("a", "b"))),
            ((A,), (B, A, tool("c")), (), Drift(added=("b", "c"))),
            ((), (A,), (), Drift(added=("a",))),
            ((A,), (A,), ("x", "a", "clock", "x"), Drift(removed=("x",))),
            ((A, B), (B,), ("a",), Drift(missing=("a",))),
            (
                (A,),
                (tool("a", "Watch.", n={"type": "integer"}),),
                (),
                Drift(changed=(Change("a", 'description: "Look." → "Watch."'),)),
            ),
        ],
    )
    def test_each_kind(self, then: tuple[JsonTool, ...], now: tuple[JsonTool, ...], used: tuple[str, ...], drift: Drift) -> None:
        got = differences(snapshot(*then), Registry(now), used)
        assert got == drift
        assert bool(got) is (drift != Drift())

    @pytest.mark.parametrize(
        ("now", "diff"),
        [
            (tool("a", n={"type": "number"}), 'parameters.properties.n.type: "integer" → "number"'),
            (tool("a", n={"type": "integer"}, m={}), "parameters.properties.m: new, {}"),
            (tool("a"), 'parameters.properties.n: {"type":"integer"} → gone'),
            (tool("a", n={"type": "integer", "default": True}), "parameters.properties.n.default: new, true"),
            (
                JsonTool("a", "Look.", {"properties": {"n": {"type": "integer"}}, "type": "object"}, dict),
                "the same members in another order",
            ),
            (tool("a", "", n={"type": "integer"}), 'description: "Look." → gone'),
            (tool("a", "y" * 100, n={"type": "integer"}), f'description: "Look." → "{"y" * 39}…{"y" * 18}"'),
        ],
    )
    def test_the_diff_is_small_and_names_the_member(self, now: JsonTool, diff: str) -> None:
        assert differences(snapshot(A), Registry([now])).changed == (Change("a", diff),)

    def test_numbers_that_compare_equal_but_are_written_otherwise_differ(self) -> None:
        then, now = tool("a", n={"default": 1}), tool("a", n={"default": 1.0})
        assert differences(snapshot(then), Registry([now])).changed == (Change("a", "parameters.properties.n.default: 1 → 1.0"),)

    def test_a_long_diff_is_cut(self) -> None:
        then = tool("a", **{f"p{number}": {} for number in range(9)})
        ((_, diff),) = differences(snapshot(then), Registry([tool("a")])).changed
        assert diff.count("gone") == 5
        assert diff.endswith("; and 4 more")

    def test_a_core_tool_that_is_found_only_today_is_neither_missing_nor_new(self) -> None:
        registry = Registry()
        registry.add(A, core=False)
        assert differences(snapshot(A), registry) == Drift()

    def test_a_new_found_tool_is_no_difference(self) -> None:
        registry = Registry([A])
        registry.add(B, core=False)
        assert not differences(snapshot(A), registry)


class TestDrift:
    def test_a_missing_tool_is_refused_by_name(self) -> None:
        Drift(added=("a",), removed=("b",), changed=(Change("c", "…"),)).require()
        with pytest.raises(InvalidConfig, match=r"^tools: the model was told of a, b when the epoch began"):
            Drift(missing=("a", "b")).require()

    def test_everything_else_is_said_in_a_line_each(self) -> None:
        lines = Drift(changed=(Change("c", "x: 1 → 2"),), added=("a", "d"), removed=("b",)).lines()
        assert [line.split()[1].strip(",") for line in lines] == ["c", "a", "d", "b"]
        assert lines[0].endswith("x: 1 → 2")
        assert Drift().lines() == ()


def asked(*calls: tuple[str, str]) -> Assistant:
    members = [{"id": "c", "type": "function", "function": {"name": name, "arguments": text}} for name, text in calls]
    return Assistant(time=NOW, tool_calls=Raw(encode(members)))


def answered(number: int, status: Any = "ok") -> ToolResult:
    return ToolResult(time=NOW, call=number, tool_call_id="c", name="n", content="", truncated=False, status=status)


def test_found_tools_are_those_called_with_a_result() -> None:
    def call(name: str) -> tuple[str, str]:
        return "call_tool", f'{{"name": "{name}", "arguments": {{}}}}'

    log: list[LogRecord] = [
        User(time=NOW, content="Hi."),
        asked(call("x"), ("clock", "{}"), call("unknown")),
        answered(1),
        answered(2),
        answered(3, "failed"),
        asked(call("y"), call("x"), call("late")),
        answered(4),
        answered(5),
    ]
    assert found_tools(log) == ("x", "y")
    assert found_tools([]) == ()
