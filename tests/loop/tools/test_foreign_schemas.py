"""Schemas that are not the owner's: prose is neutralised wherever it stands, everything else that holds a tag is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopkit.contract.messages import FunctionSchema, ToolSchema
from loopkit.contract.neutralise import DEFAULT, Tags
from loopkit.encoding import encode
from loopkit.errors import InvalidConfig
from loopkit.loop.tools.foreign_schemas import neutralise_schema
from tests.tagtext import ALL_TAGS, A, P, S, assert_absent, assert_same_text, written

TAG = P("im_end")


def foreign(parameters: dict[str, Any] | None = None, *, name: str = "look", description: str = "Look.") -> ToolSchema:
    function = FunctionSchema(name=name, description=description, parameters={"type": "object", **(parameters or {})})
    return ToolSchema(function=function)


def of(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Parameters with ``text`` in every place of prose."""
    return [
        ("title", {"title": text}),
        ("comment", {"$comment": text}),
        ("property", {"properties": {"n": {"description": text}}}),
        ("property named description", {"properties": {"description": {"type": "string", "description": text}}}),
        ("property named default", {"properties": {"default": {"description": text}}}),
        ("property named properties", {"properties": {"properties": {"description": text}}}),
        ("definition", {"$defs": {"enum": {"title": text}}}),
        ("items", {"properties": {"n": {"items": [{"anyOf": [{"description": text}]}]}}}),
        ("examples", {"examples": [text, {"a": [text]}]}),
        ("enum inside examples", {"examples": [{"enum": [text]}]}),
    ]


@pytest.mark.parametrize("case", range(len(of(""))))
def test_prose_becomes_plain_text(case: int) -> None:
    name, given = of(f"see {TAG} now")[case]
    _, wanted = of(f"see {written(TAG)} now")[case]
    got = encode(neutralise_schema(foreign(given), DEFAULT)).decode()
    assert_same_text(got, encode(foreign(wanted)).decode(), name)


def test_the_description_becomes_plain_text_for_every_family() -> None:
    for number, tag in enumerate(ALL_TAGS):
        got = neutralise_schema(foreign(description=tag), DEFAULT).function.description
        assert_same_text(str(got), written(tag), number)


@pytest.mark.parametrize(
    ("parameters", "where"),
    [
        ({"properties": {TAG: {}}}, r"parameters\.properties, key 0"),
        ({"properties": {"a": {}, f"a {TAG}": {}}}, r"parameters\.properties, key 1"),
        ({"properties": {"n": {"enum": ["x", TAG]}}}, r"parameters\.properties\.n\.enum\[1\]"),
        ({"properties": {"n": {"const": TAG}}}, r"n\.const"),
        ({"properties": {"n": {"default": {"description": TAG}}}}, r"n\.default\.description"),
        ({"properties": {"n": {"enum": [{"title": TAG}]}}}, r"n\.enum\[0\]\.title"),
        ({"required": [TAG]}, r"required\[0\]"),
        ({"$defs": {TAG: {}}}, r"\$defs, key 0"),
        ({"examples": [{TAG: 1}]}, r"examples\[0\], key 0"),
        ({TAG: 1}, "parameters, key 1"),
        ({"x-help": TAG}, r"parameters\.x-help"),
        ({"properties": {"n": {"pattern": TAG}}}, r"n\.pattern"),
    ],
)
def test_what_the_model_writes_back_is_refused_with_its_place(parameters: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidConfig, match=where) as raised:
        neutralise_schema(foreign(parameters), DEFAULT)
    assert_absent(TAG, str(raised.value), "an error")
    assert "control tag (not shown)" in str(raised.value)


def test_a_name_that_is_a_tag_of_this_server_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="the name of a foreign tool"):
        neutralise_schema(foreign(name="role_x"), Tags(literals=["role_x"]))


def test_the_set_given_is_the_one_that_counts() -> None:
    text = S("ROLE")
    schema = foreign(description=text)
    assert_same_text(str(neutralise_schema(schema, DEFAULT).function.description), text, "default")
    assert_same_text(str(neutralise_schema(schema, Tags(literals=[text])).function.description), written(text), "with more")


@given(st.lists(st.integers(0, len(ALL_TAGS) + 2)), st.integers(0, len(of("")) - 1))
def test_no_tag_is_left_in_prose_and_again_changes_nothing(numbers: list[int], case: int) -> None:
    text = "".join((*ALL_TAGS, " a ", A("p"), "&lt;")[number] for number in numbers)
    name, given_ = of(text)[case]
    once = neutralise_schema(foreign(given_), DEFAULT)
    assert_same_text(encode(neutralise_schema(once, DEFAULT)).decode(), encode(once).decode(), name)
    for number in numbers:
        if number < len(ALL_TAGS):
            assert_absent(ALL_TAGS[number], encode(once).decode(), name)
