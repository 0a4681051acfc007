"""Records: strict, in declared order, and the model's own output byte for byte."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from loopkit.contract.messages import ChatMessage, Extra, encode_message
from loopkit.contract.records import Assistant, EpochEnd, LogRecord, ToolResult, Usage, User, decode_record, encode_record
from loopkit.encoding import encode
from loopkit.errors import EncodeError

TIME = "2026-11-30T07:31:05.000000Z"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
OPTIONAL = st.one_of(st.just(UNSET), st.none(), TEXT)


def test_every_record_begins_with_kind_and_time() -> None:
    kinds = {kind.__struct_config__.tag: kind for kind in get_args(LogRecord)}
    assert list(kinds) == ["session_start", "user", "assistant", "tool_result", "usage", "cache_loss", "epoch_end"]
    for tag, kind in kinds.items():
        config = kind.__struct_config__
        assert (config.tag_field, config.frozen, config.forbid_unknown_fields) == ("kind", True, True), tag
        assert kind.__struct_fields__[0] == "time"
    assert encode_record(User(time=TIME, content="Hi.")).startswith(b'{"kind":"user","time":"' + TIME.encode())


@given(OPTIONAL, OPTIONAL)
def test_absent_null_and_empty_are_three_things(content: Any, reasoning: Any) -> None:
    record = Assistant(time=TIME, content=content, reasoning_content=reasoning)
    data = encode_record(record)
    again = decode_record(data)
    assert isinstance(again, Assistant)
    assert again == record
    assert (b'"content":' in data) == (content is not UNSET)
    assert again.content is UNSET if content is UNSET else again.content == content
    message = encode_message(ChatMessage(role="assistant", content=content, reasoning_content=reasoning))
    assert (b'"content":' in message) == (content is not UNSET)
    assert (b'"reasoning_content":' in message) == (reasoning is not UNSET)


@pytest.mark.parametrize(
    "calls",
    [
        b"null",
        b"[]",
        rb'[{"id":"a","type":"function","function":{"name":"f","arguments":"{ \"b\" : 1.10, \"a\":1, \"a\":2 }"}}]',
        rb'[ {"function":{"arguments":"","name":"f"},"id":"\u0061","signature":"x","n":1.10} ]',
    ],
)
def test_calls_are_kept_as_the_server_wrote_them(calls: bytes) -> None:
    record = Assistant(time=TIME, content=None, tool_calls=Raw(calls))
    data = encode_record(record)
    assert data.endswith(b'"tool_calls":' + calls + b"}")
    again = decode_record(data)
    assert isinstance(again, Assistant)
    assert again.tool_calls == Raw(calls)
    assert len(again.calls()) == calls.count(b'"id"')
    assert calls in encode_message(ChatMessage(role="assistant", content=None, tool_calls=Raw(calls)))


def test_unknown_members_stay_in_their_order_and_reasoning_under_its_name() -> None:
    members = {"zeta": Raw(b'{"b": 1.10, "a": "\\u00e9"}'), "alpha": Raw(b"null")}
    record = Assistant(time=TIME, content="4", reasoning_content="2+2", extra=Extra(reasoning_name="thinking", members=members))
    again = decode_record(encode_record(record))
    assert isinstance(again, Assistant)
    assert again == record
    message = ChatMessage(role="assistant", content=again.content, reasoning_content=again.reasoning_content, extra=again.extra)
    assert encode_message(message) == (
        rb'{"role":"assistant","content":"4","thinking":"2+2","zeta":{"b": 1.10, "a": "\u00e9"},"alpha":null}'
    )


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind":"user","time":"%s","content":"x","note":1}',
        b'{"kind":"note","time":"%s","content":"x"}',
        b'{"kind":"user","time":"%s"}',
        b'{"time":"%s","content":"x"}',
        b'{"kind":"user","time":"%s","content":null}',
        b'{"kind":"user","time":"%s","content":"x","replaced":null}',
        b'{"kind":"user","time":"%s","content":"x","replaced":0}',
        b'{"kind":"user","time":"%s","content":"x","replaced":1.0}',
        b'{"kind":"epoch_end","time":"%s","reason":"bored","prompt_tokens":1,"context_size":2}',
        b'{"kind":"epoch_end","time":"%s","reason":"asked","prompt_tokens":NaN,"context_size":2}',
        b'{"kind":"epoch_end","time":"%s","reason":"asked","prompt_tokens":-1,"context_size":2}',
        b'{"kind":"epoch_end","time":"%s","reason":"asked","prompt_tokens":true,"context_size":2}',
        b'{"kind":"assistant","time":"%s","tool_calls":{}}',
        b'{"kind":"assistant","time":"%s","tool_calls":[{"id":1}]}',
        b'{"kind":"assistant","time":"%s","extra":{"members":{"a":NaN}}}',
    ],
)
def test_what_is_no_record_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        decode_record(line % TIME.encode())


@pytest.mark.parametrize("time", ["", "yesterday", "2026-11-30T07:31:05Z", "2026-11-30T07:31:05.000000z", None, 3])
def test_a_time_in_another_form_is_not_written(time: Any) -> None:
    with pytest.raises(EncodeError, match=r"user\.time"):
        encode_record(User(time=time, content=""))


def test_null_is_not_zero() -> None:
    assert Usage().read_tokens is None
    assert Usage(prompt_tokens=5).read_tokens is None
    assert Usage(prompt_tokens=5, cached_tokens=0).read_tokens == 5
    assert encode(Usage(cached_tokens=0)) != encode(Usage())
    assert b'"cached_tokens":null' in encode(Usage())


def test_records_cannot_be_changed() -> None:
    record = EpochEnd(time=TIME, reason="asked", prompt_tokens=None, context_size=None)
    with pytest.raises(AttributeError):
        record.reason = "context_full"  # type: ignore[misc]


def test_a_message_that_cannot_be_encoded_is_named() -> None:
    with pytest.raises(EncodeError, match=r"message\.content cannot be encoded: the lone surrogate"):
        encode_message(ChatMessage(role="user", content="half \ud83d"))
    with pytest.raises(EncodeError, match=r"message\.tool_calls"):
        encode_message(ChatMessage(role="assistant", tool_calls=Raw(b"[1")))


def test_a_tool_result_has_its_members_in_order() -> None:
    record = ToolResult(
        time=TIME, call=1, tool_call_id="a", name="f", content="", truncated=False, status="denied", neutralised=2
    )
    assert list(msgspec.json.decode(encode_record(record))) == [
        "kind",
        "time",
        "call",
        "tool_call_id",
        "name",
        "content",
        "truncated",
        "status",
        "neutralised",
    ]
