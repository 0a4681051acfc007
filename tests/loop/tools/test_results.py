"""Results as text, and the cap."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from loopkit.encoding import decode
from loopkit.loop.tools.results import as_text, cap

NOTICE = re.compile(r"\n\[Cut: the first ([0-9,]+) of ([0-9,]+) bytes are shown\.\]")


class TestCap:
    @given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), st.integers(0, 80))
    def test_cuts_between_characters_and_says_so(self, text: str, limit: int) -> None:
        data = text.encode()
        capped = cap(text, limit)
        if len(data) <= limit:
            assert capped == (text, False)
            assert capped.text is text
            return
        assert capped.truncated
        notice = capped.text[capped.text.rindex("\n[Cut: ") :]
        kept = capped.text.removesuffix(notice)
        shown = len(kept.encode())
        assert text.startswith(kept)
        assert limit - 4 < shown <= limit, "not one character more would fit"
        match = NOTICE.fullmatch(notice)
        assert match is not None
        assert [int(number.replace(",", "")) for number in match.groups()] == [shown, len(data)]

    @pytest.mark.parametrize(("char", "width"), [("a", 1), ("é", 2), ("€", 3), ("😀", 4)])
    def test_at_the_limit_and_one_beyond(self, char: str, width: int) -> None:
        text = char * 100
        assert cap(text, 100 * width) == (text, False)
        cut = cap(text, 100 * width - 1)
        assert cut.text.startswith(char * 99 + "\n")
        assert cut.truncated

    def test_the_default_is_16_kib(self) -> None:
        assert not cap("x" * 16384).truncated
        assert cap("x" * 16385).text == "x" * 16384 + "\n[Cut: the first 16,384 of 16,385 bytes are shown.]"


@dataclasses.dataclass
class City:
    name: str
    area: float


class Town(BaseModel):
    name: str
    since: datetime.date


class Point(NamedTuple):
    x: int
    y: int


class Colour(enum.Enum):
    RED = "red"


class Word(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "not the text"


NOTE = "\n[Written as text, since JSON cannot hold it: "


class TestAsText:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ("as it is \ud83d", "as it is \ud83d"),
            (Word("text"), "text"),
            (None, "null"),
            (True, "true"),
            (3, "3"),
            (2.50, "2.5"),
            (math.nan, "nan"),
            ({"b": 1, "a": [None, "é"]}, '{"b":1,"a":[null,"é"]}'),
            ([], "[]"),
            ((1, "2"), '[1,"2"]'),
            ({"b", "a", "c"}, '["a","b","c"]'),
            (frozenset({10, 9}), "[10,9]"),
            (City("Lima", 2672.3), '{"name":"Lima","area":2672.3}'),
            ([City("Lima", 1)], '[{"name":"Lima","area":1}]'),
            (Town(name="Cusco", since=datetime.date(1100, 1, 2)), '{"name":"Cusco","since":"1100-01-02"}'),
            (Point(1, 2), "[1,2]"),
            ({1: "a", None: "b", False: "c", 2.5: "d"}, '{"1":"a","null":"b","false":"c","2.5":"d"}'),
            ({"when": datetime.date(2026, 11, 30), "path": PurePosixPath("a/b")}, '{"when":"2026-11-30","path":"a/b"}'),
            (Decimal("1.10"), "1.10"),
            (PurePosixPath("a/b"), "a/b"),
            (Colour.RED, "Colour.RED"),
            ({"s": math.nan, "t": -math.inf}, '{"s":"nan","t":"-inf"}' + NOTE + "result.s, result.t]"),
            ([1 << 64], '["18446744073709551616"]' + NOTE + "result[0]]"),
            ({"a": "\ud83d"}, '{"a":"\ufffd"}' + NOTE + "result.a (lone surrogates)]"),
            ({"\ud83d": 1}, '{"\ufffd":1}' + NOTE + "result, a key (lone surrogates)]"),
            ({"a": "\ud83d\ude00"}, '{"a":"😀"}'),
            ([math.inf] * 5, '["inf","inf","inf","inf","inf"]' + NOTE + "result[0], result[1], result[2] and 2 more]"),
        ],
    )
    def test_each_kind_of_value(self, value: Any, text: str) -> None:
        assert as_text(value) == text

    @pytest.mark.parametrize(
        ("value", "where"),
        [(b"GIF", "result"), (bytearray(), "result"), ({"a": [b""]}, r"result\.a\[0\]"), (memoryview(b""), "result")],
    )
    def test_bytes_are_not_text(self, value: Any, where: str) -> None:
        with pytest.raises(TypeError, match=rf"^{where} is bytes"):
            as_text(value)

    def test_two_keys_that_become_one_are_refused(self) -> None:
        with pytest.raises(ValueError, match="two keys that are both '1'"):
            as_text({1: "a", "1": "b"})

    def test_what_was_never_run_is_refused(self) -> None:
        async def later() -> None: ...

        def some() -> Iterator[int]:
            yield 1

        for value, kind in ((later(), "coroutine"), (some(), "generator")):
            with pytest.raises(TypeError, match=f"result is a {kind}"):
                as_text(value)

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False, allow_infinity=False),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        ).filter(lambda value: isinstance(value, list | dict))
    )
    def test_json_reads_back_as_the_value(self, value: Any) -> None:
        assert decode(as_text(value)) == value
