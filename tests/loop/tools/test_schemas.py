"""Functions and JSON schemas as tools: the schema's exact bytes, in every process, and what does not fit."""

from __future__ import annotations

import copy
import dataclasses
import enum
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from loopkit.encoding import encode
from loopkit.errors import InvalidConfig
from loopkit.loop.tools.schemas import InvalidCall, JsonTool, make_tool
from tests.tagtext import P, assert_absent


class Unit(enum.Enum):
    METRE = "m"
    FOOT = "ft"


class Place(BaseModel):
    """Somewhere."""

    title: str = Field(title="What it is called")
    unit: Unit = Unit.METRE


@dataclasses.dataclass
class Span:
    start: int
    end: int = 9


def measure(
    copy: Place,
    json: Annotated[str, Field(description="How to write it.", max_length=3)],
    schema: Literal["b", "a"] = "b",
    spans: list[Span] | None = None,
    *,
    model_name: int = Field(4, ge=2),
) -> bytes:
    """Measure a place.

    At length.
    """
    return repr((copy, json, schema, spans, model_name)).encode()


MEASURE = (
    '{"type":"function","function":{"name":"measure","description":"Measure a place.\\n\\nAt length.","parameters":{"$defs":{'
    '"Place":{"description":"Somewhere.","properties":{"title":{"title":"What it is called","type":"string"},'
    '"unit":{"$ref":"#/$defs/Unit","default":"m"}},"required":["title"],"type":"object"},'
    '"Span":{"properties":{"start":{"type":"integer"},"end":{"default":9,"type":"integer"}},"required":["start"],"type":"object"},'
    '"Unit":{"enum":["m","ft"],"type":"string"}},"additionalProperties":false,"properties":{"copy":{"$ref":"#/$defs/Place"},'
    '"json":{"description":"How to write it.","maxLength":3,"type":"string"},'
    '"schema":{"default":"b","enum":["b","a"],"type":"string"},'
    '"spans":{"anyOf":[{"items":{"$ref":"#/$defs/Span"},"type":"array"},{"type":"null"}],"default":null},'
    '"model_name":{"default":4,"minimum":2,"type":"integer"}},"required":["copy","json"],"type":"object"}}}'
)


def make(name: str = "look", parameters: Any = None, call: Callable[[dict[str, Any]], Any] = dict) -> JsonTool:
    return JsonTool(name, "Look.", {"type": "object", "properties": {}} if parameters is None else parameters, call)


class Meter:
    def read(self, at: int) -> int:
        """Read the meter."""
        return at + 1


class TestFunctions:
    def test_the_schema_byte_for_byte(self) -> None:
        assert encode(make_tool(measure).schema).decode() == MEASURE

    def test_the_function_gets_what_its_hints_say(self) -> None:
        tool = make_tool(measure)
        values = tool.check({"copy": {"title": "x", "unit": "ft"}, "json": "abc", "spans": [{"start": "1"}]})
        assert values == {
            "copy": Place(title="x", unit=Unit.FOOT),
            "json": "abc",
            "schema": "b",
            "spans": [Span(1, 9)],
            "model_name": 4,
        }
        assert tool.run(values).startswith(b"(Place(title='x'")

    def test_no_parameters_no_docstring(self) -> None:
        def nothing() -> None: ...

        schema = encode(make_tool(nothing).schema.function).decode()
        assert schema == '{"name":"nothing","parameters":{"additionalProperties":false,"properties":{},"type":"object"}}'

    def test_another_name_and_description(self) -> None:
        function = make_tool(measure, "m-1", "Shorter.").schema.function
        assert (function.name, function.description) == ("m-1", "Shorter.")

    def test_a_method_and_a_coroutine(self) -> None:
        async def soon(n: int) -> int:
            return n

        method = make_tool(Meter().read)
        assert (method.schema.function.name, method.schema.function.description) == ("read", "Read the meter.")
        assert method.run(method.check({"at": 1})) == 2
        assert not method.is_async
        assert make_tool(soon).is_async

    def test_any_further_arguments(self) -> None:
        def gather(first: int, **rest: int) -> dict[str, int]:
            return {"first": first, **rest}

        tool = make_tool(gather)
        assert tool.run(tool.check({"first": 1, "values": "2"})) == {"first": 1, "values": 2}

    def test_strict_fields_are_strict_as_json_is(self) -> None:
        class Exact(BaseModel, strict=True):
            at: float
            tags: tuple[str, ...]

        def take(exact: Exact) -> None: ...

        take.__annotations__["exact"] = Exact  # a local class, which a hint that is a string would not find
        tool = make_tool(take)
        assert tool.check({"exact": {"at": 1, "tags": ["a"]}})["exact"].tags == ("a",)
        with pytest.raises(InvalidCall, match=r"exact\.at: Input should be a valid number"):
            tool.check({"exact": {"at": "1", "tags": []}})

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            ({}, ["copy: Missing required argument", "json: Missing required argument"]),
            ({"copy": {}, "json": "a"}, ["copy.title: Field required"]),
            ({"copy": {"title": "x"}, "json": "abcd"}, ["json: String should have at most 3 characters"]),
            ({"copy": {"title": "x"}, "json": "a", "n": 1}, ["n: Unexpected keyword argument"]),
            ({"copy": {"title": "x"}, "json": "a", "spans": [{"start": 1}, {"start": "x"}]}, ["spans.1.start: Input should be"]),
            ({"copy": {"title": "x"}, "json": "a", "model_name": 1 << 70}, ["arguments.model_name: an integer of 71 bits"]),
        ],
    )
    def test_what_does_not_fit_is_told_with_its_place(self, arguments: dict[str, Any], told: list[str]) -> None:
        with pytest.raises(InvalidCall, match=r"^The arguments do not fit measure: ") as raised:
            make_tool(measure).check(arguments)
        assert all(text in str(raised.value) for text in told)

    def test_many_faults_are_told_in_short(self) -> None:
        def take(n: list[int]) -> None: ...

        with pytest.raises(InvalidCall) as raised:
            make_tool(take).check({"n": ["x" * 1000] * 100})
        assert str(raised.value).endswith("; and 95 more")
        assert len(str(raised.value)) < 1200

    def test_an_error_inside_the_tool_is_not_one_of_the_arguments(self) -> None:
        def inner(n: int) -> Any:
            return Place.model_validate({"n": n})

        tool = make_tool(inner)
        values = tool.check({"n": 1})
        with pytest.raises(ValueError, match="Field required"):
            tool.run(values)


def by_position(x: int, /) -> None: ...


def any_number(*x: int) -> None: ...


def of_nowhere(x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def of_a_class(x: threading.Event) -> None: ...


def of_a_callable(x: Callable[[], int]) -> None: ...


def not_a_number(x: float = float("nan")) -> None: ...


def yields() -> Iterator[int]:
    yield 1


async def yields_later() -> AsyncIterator[int]:
    yield 1


class TestRefused:
    @pytest.mark.parametrize(
        ("tool", "why"),
        [
            (by_position, "tool by_position: its parameter x is positional-only"),
            (any_number, "tool any_number: its parameter x is positional-only"),
            (of_nowhere, "tool of_nowhere: a type hint cannot be evaluated: name 'Nowhere' is not defined"),
            (of_a_class, "tool of_a_class: a type hint has no JSON schema: "),
            (of_a_callable, "tool of_a_callable: a type hint has no JSON schema: Cannot generate a JsonSchema"),
            (not_a_number, r"tool not_a_number.*default: nan is not a JSON number"),
            (yields, "tool yields: generators are not supported"),
            (yields_later, "tool yields_later: generators are not supported"),
            (lambda: 1, r"tools: '·lambda·' is not a valid tool name"),
            (print, "tools: a builtin_function_or_method is neither"),
            ({"type": "function"}, "tools: a dict is neither"),
            (make("a b"), "tools: 'a b' is not a valid tool name"),
            (make("é"), "is not a valid tool name"),
            (make("a" * 65), "is not a valid tool name"),
            (make("name\n"), "is not a valid tool name"),
            (make(parameters={}), r"tool look\.parameters: expected a JSON schema of an object"),
            (make(parameters=[]), r"tool look\.parameters: expected a JSON schema of an object"),
            (make(parameters={"type": "string"}), r"tool look\.parameters: expected a JSON schema of an object"),
            (
                make(parameters={"type": "object", "properties": {"n": {"type": "strng"}}}),
                r"tool look\.parameters\.properties\.n\.type: 'strng' is not valid",
            ),
            (make(parameters={"type": "object", "x-at": {1.5: 2}}), r"tool look\.parameters\.x-at: the key 1\.5 is not a string"),
            (make(parameters={"type": "object", "enum": {1 << 70}}), "an integer of 71 bits does not fit 64"),
            (make(parameters={"type": "object", "default": {"a": object()}}), "JSON cannot represent an object"),
        ],
    )
    def test_what_cannot_be_a_tool_is_named(self, tool: Any, why: str) -> None:
        with pytest.raises(InvalidConfig, match=why):
            make_tool(tool)

    def test_no_error_shows_a_control_tag(self) -> None:
        tag = P("im_end")
        for tool in (
            make(tag),
            make(parameters={"type": "object", "properties": {tag: {"type": tag}}}),
            make(parameters={"type": "object", "x-at": {tag: float("nan")}}),
        ):
            with pytest.raises(InvalidConfig) as raised:
                make_tool(tool)
            assert_absent(tag, str(raised.value), "an error")


class TestJsonTools:
    LOOK: ClassVar[Any] = {
        "type": "object",
        "properties": {"n": {"type": "integer", "description": "How many."}, "at": {"$ref": "#/$defs/at"}},
        "required": ["n"],
        "$defs": {"at": {"type": "array", "items": {"enum": ["x", "y"]}}},
    }

    def test_the_schema_is_sent_as_it_was_given(self) -> None:
        made = make_tool(make(parameters=self.LOOK))
        assert encode(made.schema.function.parameters) == encode(self.LOOK)
        assert (made.schema.function.name, made.schema.function.description) == ("look", "Look.")

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            ({"n": 1, "at": ["x", "y"], "more": True}, None),
            ({}, "'n' is a required property"),
            ({"n": "1"}, "n: '1' is not of type 'integer'"),
            ({"n": 1, "at": ["x", "z"]}, "at.1: 'z' is not one of ['x', 'y']"),
        ],
    )
    def test_arguments_are_checked(self, arguments: dict[str, Any], told: str | None) -> None:
        tool = make_tool(make(parameters=self.LOOK))
        if told is None:
            assert tool.check(arguments) == arguments
            return
        with pytest.raises(InvalidCall) as raised:
            tool.check(arguments)
        assert str(raised.value) == f"The arguments do not fit look: {told}"

    def test_what_was_checked_is_what_the_tool_gets(self) -> None:
        tool = make_tool(make())
        arguments = {"to": ["a"]}
        values = tool.check(arguments)
        arguments["to"].append("b")
        assert values == {"to": ["a"]}

    def test_a_later_change_of_what_was_given_changes_nothing(self) -> None:
        given = copy.deepcopy(self.LOOK)
        tool = make_tool(make(parameters=given))
        given["required"].append("at")
        given["properties"]["n"]["type"] = "string"
        assert tool.schema.function.parameters == self.LOOK
        assert tool.check({"n": 1}) == {"n": 1}

    @pytest.mark.filterwarnings(
        "ignore::DeprecationWarning"
    )  # jsonschema warns before it fetches; as an error it would not fetch
    def test_a_reference_to_elsewhere_is_not_fetched(self, tmp_path: Path) -> None:
        elsewhere = tmp_path / "schema.json"
        elsewhere.write_text('{"type": "integer"}')
        for ref in ("#/$defs/none", elsewhere.as_uri()):
            tool = make_tool(make(parameters={"type": "object", "properties": {"n": {"$ref": ref}}}))
            with pytest.raises(InvalidCall, match=r"its schema refers to .* which it does not contain"):
                tool.check({"n": 1})


SETS = """
import enum
from loopkit.encoding import encode
from loopkit.loop.tools.schemas import JsonTool
from loopkit.loop.tools.registry import Registry

class Unit(enum.Enum):
    METRE = "m"
    FOOT = "ft"

def tidy(
    names: set[str] = frozenset({"b", "a", "d", "c"}),
    by_kind: dict[str, set[str]] = {"x": {"q", "p", "r", "o"}},
    units: set[Unit] = frozenset({Unit.METRE, Unit.FOOT}),
) -> str:
    "Tidy."

b_and_a = {"b", "a", "e", "d", "c"}
look = JsonTool("look", "Look.", {
    "type": "object", "properties": {name: {} for name in "abcde"}, "required": b_and_a,
    "$defs": {"inner": {"enum": frozenset({"u", "v", 1, None})}},
}, dict)
print(encode(Registry([tidy, look]).core_schemas()).decode())
"""


class TestTheSameBytes:
    def test_in_processes_with_other_hash_seeds(self) -> None:
        printed = {
            subprocess.run(
                [sys.executable, "-c", SETS],
                env={**os.environ, "PYTHONHASHSEED": str(seed)},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for seed in (0, 1, 2)
        }
        assert len(printed) == 1
        (text,) = printed
        assert '"required":["a","b","c","d","e"]' in text
        assert '"default":["a","b","c","d"]' in text
        assert '"default":{"x":["o","p","q","r"]}' in text
        assert '"default":["ft","m"]' in text
        assert '"enum":["u","v",1,null]' in text

    @given(
        st.lists(st.text("abc019_", min_size=1) | st.integers(-99, 99) | st.booleans(), unique_by=encode).flatmap(
            lambda values: st.tuples(st.just(values), st.permutations(values))
        )
    )
    def test_whatever_the_order_in_which_a_set_was_built(self, orders: tuple[list[Any], list[Any]]) -> None:
        one, other = (
            make_tool(make(parameters={"type": "object", "x-set": set(order), "x-sets": [frozenset(order)]})) for order in orders
        )
        if set(map(encode, set(orders[0]))) == set(map(encode, set(orders[1]))):  # of 1 and True, a set keeps the first
            assert encode(one.schema) == encode(other.schema)
