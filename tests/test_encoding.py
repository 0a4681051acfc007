"""One form for wire and log: what goes in comes back, in its order, and what JSON cannot hold is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from loopkit.encoding import (
    canonical,
    compact,
    crc32,
    decode,
    decode_lenient,
    encode,
    find_unencodable,
    lines,
    replace_surrogates,
    sha256,
)
from loopkit.errors import EncodeError

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_what_goes_in_comes_back_in_its_order(value: Any) -> None:
    data = encode(value)
    assert decode(data) == value == json.loads(data)
    assert encode(decode(data)) == data
    assert b"\n" not in data
    assert find_unencodable(value, "value") is None


def test_members_keep_their_order_and_text_its_characters() -> None:
    assert encode({"b": 1, "a": {"z": [], "y": {}}}) == b'{"b":1,"a":{"z":[],"y":{}}}'
    assert encode("é\u2028\u0085\x7f<😀/") == '"é\u2028\u0085\x7f<😀/"'.encode()
    assert encode('"\\\n\x01') == rb'"\"\\\n\u0001"'


@pytest.mark.parametrize(
    ("value", "member", "why"),
    [
        ({"a": [1, float("nan")]}, "x.a[1]", "nan"),
        ({"a": float("-inf")}, "x.a", "-inf"),
        ({"a": "b \udc80"}, "x.a", "lone surrogate"),
        ({"\ud83d": 1}, "x key '\\ud83d'", "lone surrogate"),
        ([1 << 64], "x[0]", "65 bits"),
        ({1: 2}, "x", "key 1 is not a string"),
        ({"a": b"bytes"}, "x.a", "bytes"),
        ({"a": {1, 2}}, "x.a", "set"),
        (Raw(b"[1"), "x", "truncated"),
        (Raw(b"[\n1]"), "x", "line break"),
        (Raw(b'"\xff"'), "x", "utf-8"),
    ],
)
def test_what_json_cannot_hold_is_named(value: Any, member: str, why: str) -> None:
    with pytest.raises(EncodeError) as caught:
        encode(value, "x")
    assert caught.value.member == member
    assert why in caught.value.why


def test_nesting_without_end_is_an_error_and_no_crash() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(EncodeError, match="nested too deep"):
        encode(value)


@pytest.mark.parametrize(
    "data",
    [
        b"NaN",
        b"Infinity",
        b'{"n":1e999}',
        b"[" * 100000,
        b'"\\ud83d"',
        b'"\xff"',
        b"",
        b"{}{}",
        b'\xef\xbb\xbf"a"',
        b"01",
        b"[1,]",
        b'"\n"',
    ],
)
def test_what_is_not_json_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data)


def test_a_server_may_send_lone_surrogates() -> None:
    assert decode_lenient(rb'{"t":"\ud99c"}') == {"t": "\ud99c"}
    with pytest.raises(ValueError):
        decode_lenient(b"{")


@given(st.text(st.characters()))
def test_mended_text_can_be_encoded_and_sound_text_is_untouched(text: str) -> None:
    mended, count = replace_surrogates(text)
    encode(mended)
    assert replace_surrogates(mended) == (mended, 0)
    if count == 0 and text.isascii():
        assert mended is text


def test_surrogates_split_over_fragments_join() -> None:
    assert replace_surrogates("\ud83d" + "\ude00") == ("😀", 0)
    assert replace_surrogates("ok \ud83d") == ("ok \ufffd", 1)
    assert replace_surrogates("\ude00\ud83d") == ("\ufffd\ufffd", 2)


def test_lines_end_in_line_feeds_only() -> None:
    data = "a\u2028b\u0085c\x0bd\x0c\r\ne\rf".encode()
    assert [line for _, line in lines(data)] == data.split(b"\n")
    assert list(lines(b"a\n\nb\n")) == [(0, b"a"), (2, b""), (3, b"b")]


def test_compact_changes_white_space_only() -> None:
    assert compact(b'{ "n" : 1.10,\n "n": "a  b", "e": 1E5 }') == b'{"n":1.10,"n":"a  b","e":1E5}'


@given(st.binary(), st.binary())
def test_sums_are_the_well_known_ones(a: bytes, b: bytes) -> None:
    assert crc32(a + b) == crc32(b, crc32(a)) == zlib.crc32(a + b)
    assert crc32(b"123456789") == 0xCBF43926
    assert sha256(b"abc").startswith("ba7816bf")


def test_another_hash_seed_gives_the_same_bytes() -> None:
    code = "from loopkit.encoding import encode; print(encode({k: [k] for k in 'the quick brown fox'.split()}))"
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            cwd=Path(__file__).parents[1],
        ).stdout
        for seed in ("0", "1", "99")
    }
    assert len(printed) == 1


class TestCanonical:
    @pytest.mark.parametrize(
        ("one", "other", "equal"),
        [
            ('{"a":1,"b":[{"c":2,"d":3}]}', '{ "b": [{"d": 3, "c": 2}], "a": 1 }', True),
            ('{"a":"\\u00e9"}', '{"a":"é"}', True),
            ('{"a":1.10}', '{"a":1.1}', True),
            ('{"a":1}', '{"a":1.0}', False),
            ('{"a":1}', '{"a":true}', False),
            ('{"a":0}', '{"a":false}', False),
            ('{"a":[1,2]}', '{"a":[2,1]}', False),
            ('{"a":null}', "{}", False),
            ('{"a": 1', '{"a":1', False),
            ('{"n": 111111111111111111111111111111}', '{"n": 111111111111111111111111111112}', False),
            ('{"half": "\ud83d"}', '{"half": "\ud83e"}', False),
        ],
    )
    def test_what_says_the_same(self, one: str, other: str, *, equal: bool) -> None:
        assert (canonical(one) == canonical(other)) is equal

    @given(st.dictionaries(st.text("ab"), st.lists(st.integers(-9, 9) | st.dictionaries(st.text("cd"), st.booleans()))))
    def test_neither_order_nor_white_space_counts(self, value: dict[str, Any]) -> None:
        turned = dict(reversed(value.items()))
        assert canonical(json.dumps(value)) == canonical(json.dumps(turned, indent=2))
