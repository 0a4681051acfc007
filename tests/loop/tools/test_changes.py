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
from loopkit.loop.tools.changes import ChangedTool, ToolChanges, called_found_tools, compare
from loopkit.loop.tools.registry import Registry
from loopkit.loop.tools.schemas import JsonTool

NOW = "2026-11-30T07:31:05.000000Z"


def tool(name: str, description: str = "Look.", /, **properties: Any) -> JsonTool:
    return JsonTool(name, description, {"type": "object", "properties": properties}, dict)


def snapshot(*tools: JsonTool) -> tuple[ToolSchema, ...]:
    """As it is read back from the baseline's file."""
    return Baseline.from_json(Baseline("", Registry(tools).core_schemas()).to_json()).tools


A, B = tool("a", n={"type": "integer"}), tool("b")


class TestDifferences:
    @pytest.mark.parametrize(
        ("then", "now", "used", "changes"),
        [
            ((A, B), (A, B), (), ToolChanges()),
            ((A, B), (B, A), (), ToolChanges()),
            ((), (), (), ToolChanges()),
            ((A, B), (B,), (), ToolChanges(missing=("a",))),
            ((A, B), (), (), ToolChanges(missing=("a", "b"))),
            ((A,), (B, A, tool("c")), (), ToolChanges(added=("b", "c"))),
            ((), (A,), (), ToolChanges(added=("a",))),
            ((A,), (A,), ("x", "a", "clock", "x"), ToolChanges(removed=("x",))),
            ((A, B), (B,), ("a",), ToolChanges(missing=("a",))),
            (
                (A,),
                (tool("a", "Watch.", n={"type": "integer"}),),
                (),
                ToolChanges(changed=(ChangedTool("a", 'description: "Look." → "Watch."'),)),
            ),
        ],
    )
    def test_each_kind(
        self, then: tuple[JsonTool, ...], now: tuple[JsonTool, ...], used: tuple[str, ...], changes: ToolChanges
    ) -> None:
        got = compare(snapshot(*then), Registry(now), used)
        assert got == changes
        assert bool(got) is (changes != ToolChanges())

    @pytest.mark.parametrize(
        ("now", "diff"),
        [
            (tool("a", n={"type": "number"}), 'parameters.properties.n.type: "integer" → "number"'),
            (tool("a", n={"type": "integer"}, m={}), "parameters.properties.m: added {}"),
            (tool("a"), 'parameters.properties.n: {"type":"integer"} → removed'),
            (tool("a", n={"type": "integer", "default": True}), "parameters.properties.n.default: added true"),
            (
                JsonTool("a", "Look.", {"properties": {"n": {"type": "integer"}}, "type": "object"}, dict),
                "same members in a different order",
            ),
            (tool("a", "", n={"type": "integer"}), 'description: "Look." → removed'),
            (tool("a", "y" * 100, n={"type": "integer"}), f'description: "Look." → "{"y" * 39}…{"y" * 18}"'),
        ],
    )
    def test_the_diff_is_small_and_names_the_member(self, now: JsonTool, diff: str) -> None:
        assert compare(snapshot(A), Registry([now])).changed == (ChangedTool("a", diff),)

    def test_numbers_that_compare_equal_but_are_written_otherwise_differ(self) -> None:
        then, now = tool("a", n={"default": 1}), tool("a", n={"default": 1.0})
        assert compare(snapshot(then), Registry([now])).changed == (ChangedTool("a", "parameters.properties.n.default: 1 → 1.0"),)

    def test_a_long_diff_is_cut(self) -> None:
        then = tool("a", **{f"p{number}": {} for number in range(9)})
        ((_, diff),) = compare(snapshot(then), Registry([tool("a")])).changed
        assert diff.count("removed") == 5
        assert diff.endswith("; and 4 more")

    def test_a_core_tool_that_is_found_only_today_is_neither_missing_nor_new(self) -> None:
        registry = Registry()
        registry.add(A, core=False)
        assert compare(snapshot(A), registry) == ToolChanges()

    def test_a_new_found_tool_is_no_difference(self) -> None:
        registry = Registry([A])
        registry.add(B, core=False)
        assert not compare(snapshot(A), registry)


class TestDrift:
    def test_a_missing_tool_is_refused_by_name(self) -> None:
        ToolChanges(added=("a",), removed=("b",), changed=(ChangedTool("c", "…"),)).refuse_missing()
        with pytest.raises(InvalidConfig, match=r"^tools: missing: a, b\. The epoch started with these tools"):
            ToolChanges(missing=("a", "b")).refuse_missing()

    def test_everything_else_is_said_in_a_line_each(self) -> None:
        lines = ToolChanges(changed=(ChangedTool("c", "x: 1 → 2"),), added=("a", "d"), removed=("b",)).lines()
        assert [line.split()[1].strip("'") for line in lines] == ["c", "a", "d", "b"]
        assert lines[0].endswith("x: 1 → 2.")
        assert ToolChanges().lines() == ()


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
    assert called_found_tools(log) == ("x", "y")
    assert called_found_tools([]) == ()
