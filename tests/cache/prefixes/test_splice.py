"""A spliced object differs in what was changed, and in no other byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopkit.cache.prefixes.splice import spliced

VALUES = st.sampled_from(["1.10", '"é\\u00e9, }"', "[ 1,{} ]", '{"a": {"messages":[]}}', "null", "[]"])
SPACE = st.sampled_from(["", " ", "\n\t"])
NAMES = ["a", "messages", "seed", 'q"\\', "é"]


@st.composite
def objects(draw: st.DrawFn) -> tuple[dict[str, str], str]:
    names = draw(st.permutations(NAMES))[: draw(st.integers(0, len(NAMES)))]
    values = {name: draw(VALUES) for name in names}
    spaced = [f"{draw(SPACE)}{json.dumps(name)}{draw(SPACE)}:{draw(SPACE)}{value}{draw(SPACE)}" for name, value in values.items()]
    return values, f"{draw(SPACE)}{{{','.join(spaced)}}}{draw(SPACE)}"


@given(objects())
def test_with_nothing_changed_it_is_the_same(made: tuple[dict[str, str], str]) -> None:
    values, text = made
    assert spliced(text.encode(), {}) == text.encode()
    assert spliced(text.encode(), {name: value.encode() for name, value in values.items()}) == text.encode()


@given(objects(), st.sampled_from([*NAMES, "new"]), st.sampled_from([b"7.0", b'{"x": 1}']))
def test_a_member_is_changed_put_in_or_taken_out(made: tuple[dict[str, str], str], name: str, value: bytes) -> None:
    values, text = made
    changed = spliced(text.encode(), {name: value}).decode()
    expected = {n: json.loads(v) for n, v in {**values, name: value.decode()}.items()}
    assert json.loads(changed) == expected
    if name in values:
        assert list(json.loads(changed)) == list(values)
        assert spliced(changed.encode(), {name: values[name].encode()}).decode() == text  # and back again
    without = spliced(text.encode(), {name: None}).decode()
    expected.pop(name)
    assert json.loads(without) == expected


def test_what_is_no_object_is_refused() -> None:
    for text in (b"[1]", b'{"a":1,"a":2}', b'{"a"'):
        with pytest.raises(ValueError, match="not a JSON object with unique member names"):
            spliced(text, {"a": b"1"})
