"""The inference contract as bytes: within an epoch the body of each request is a strict extension of the one before."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from loopkit.contract.baseline import Baseline, messages
from loopkit.contract.json_position import first_difference, path_at
from loopkit.contract.messages import encode_message
from loopkit.contract.records import (
    Assistant,
    LogRecord,
    ServerFacts,
    SessionStart,
    TagsFacts,
    ToolResult,
    Usage,
    UsageRecord,
    User,
)
from loopkit.contract.request import RequestEncoder, head, replayed
from loopkit.encoding import encode, sha256
from loopkit.errors import ContractBroken, InvalidConfig
from tests.session.build import BASELINE, OPTIONS, TIME, TOOL, calls

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
TURNS = st.lists(st.tuples(st.none() | TEXT, st.one_of(st.just(UNSET), st.none(), TEXT), st.integers(0, 2)), max_size=8)
START = SessionStart(
    time=TIME,
    session="lima",
    epoch=0,
    slot=3,
    baseline_sha256=BASELINE.hash(),
    options=OPTIONS,
    server=ServerFacts(),
    tags=TagsFacts(id="default-1"),
)


def grown(turns: list[tuple[str | None, Any, int]]) -> tuple[list[LogRecord], list[bytes]]:
    """An epoch grown as the loop grows it, and the body of each request."""
    encoder = RequestEncoder(BASELINE, START.options, START.slot)
    records: list[LogRecord] = [START]
    bodies = []
    for number, (asked, answer, results) in enumerate(turns, 1):
        user = None if asked is None else User(time=TIME, content=asked)
        request = encoder.request(records, user)
        bodies.append(request.body)
        assert (request.sha256, request.size) == (sha256(request.body), len(request.body))
        encoder.sent(request)
        ids = [f"{number}.{index}" for index in range(results)]
        if user is not None:
            records.append(user)
        records.append(Assistant(time=TIME, content=answer, tool_calls=calls(*ids) if ids else UNSET))
        records.append(
            UsageRecord(
                time=TIME,
                request=number,
                request_sha256=request.sha256,
                request_bytes=request.size,
                usage=Usage(),
                finish_reason=None,
                response_id=None,
                attempts=1,
                elapsed_ms=0.5,
            )
        )
        records += [
            ToolResult(time=TIME, call=1, tool_call_id=id, name="f", content="", truncated=False, status="ok") for id in ids
        ]
    return records, bodies


@settings(max_examples=150)
@given(TURNS)
def test_each_request_is_a_strict_extension_of_the_one_before(turns: list[tuple[str | None, Any, int]]) -> None:
    records, bodies = grown(turns)
    for before, after in itertools.pairwise(bodies):
        assert before.endswith(b"]}")
        assert after.startswith(before[:-2])
        assert len(after) > len(before)
    assert [sent.request.body for sent in replayed(START, BASELINE, records)] == bodies
    assert all(sent.request.sha256 == sent.record.request_sha256 for sent in replayed(START, BASELINE, records))


@given(TURNS)
def test_the_body_is_the_pinned_members_then_the_replay(turns: list[tuple[str | None, Any, int]]) -> None:
    records, bodies = grown([*turns, ("Hi.", "Yes.", 0)])
    body = json.loads(bodies[-1])
    assert list(body) == [*OPTIONS, "id_slot", "tools", "messages"]
    assert (body["id_slot"], body["tools"]) == (3, [json.loads(encode(TOOL))])
    assert body["messages"] == [json.loads(encode_message(message)) for message in messages(BASELINE, records[:-2])]


def test_resuming_goes_on_with_an_extension() -> None:
    records, bodies = grown([("One?", "Yes.", 2), (None, "No.", 0)])
    encoder = RequestEncoder.resume(START, BASELINE, records)
    after = encoder.request(records, User(time=TIME, content="Three?"))
    assert after.body.startswith(bodies[-1][:-2])
    forged = [
        replace(record, request_sha256="0" * 64) if isinstance(record, UsageRecord) and record.request == 2 else record
        for record in records
    ]
    with pytest.raises(ContractBroken, match="request 2 of epoch 0"):
        RequestEncoder.resume(START, BASELINE, forged)


def test_a_record_changed_after_it_was_sent_is_named() -> None:
    encoder = RequestEncoder(BASELINE, OPTIONS, None)
    asked = User(time=TIME, content="What is the time?")
    records: list[LogRecord] = [START, asked]
    encoder.sent(encoder.request(records))
    records[1] = User(time=TIME, content="What is the lime?")
    with pytest.raises(ContractBroken) as caught:
        encoder.request([*records, Assistant(time=TIME, content="")])
    assert caught.value.member == "messages[1].content"
    assert "Nothing was sent" in str(caught.value)
    encoder.sent(encoder.request([START, asked]))
    with pytest.raises(ContractBroken):
        encoder.request([START])


def test_a_request_does_not_change_with_what_comes_later() -> None:
    encoder = RequestEncoder(BASELINE, OPTIONS, None)
    records: list[LogRecord] = [START]
    first = encoder.request(records, User(time=TIME, content="One?"))
    body = first.body
    encoder.sent(first)
    records += [User(time=TIME, content="One?"), Assistant(time=TIME, content="Yes.")]
    second = encoder.request(records, User(time=TIME, content="Two?"))
    assert (first.body, len(first), len(second)) == (body, 2, 4)
    assert b"".join(second.pieces(10)) == second.body
    assert second.prefix + b"]}" == second.body


@pytest.mark.parametrize("name", ["messages", "tools", "id_slot"])
def test_options_cannot_take_the_place_of_a_member(name: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"options\.{name}"):
        head(BASELINE, {name: 1}, None)


def test_without_tools_none_are_sent() -> None:
    assert head(Baseline("", ()), {}, None) == b'{"messages":[{"role":"system","content":""}'


@given(st.binary(max_size=40), st.integers(0, 40), st.binary(max_size=10))
def test_the_first_difference(data: bytes, at: int, other: bytes) -> None:
    changed = data[:at] + other
    offset = first_difference(data, changed)
    assert data[:offset] == changed[:offset]
    assert data[offset : offset + 1] != changed[offset : offset + 1] or offset == min(len(data), len(changed))


@pytest.mark.parametrize("length", [*range(62, 67), 127, 128, 129, 191, 1000])
def test_the_first_difference_of_long_ones(length: int) -> None:
    for at in range(length):
        assert first_difference("é" * length, "é" * at + "e" * (length - at)) == at
    assert first_difference(b"a" * length, b"a" * (length + 1)) == length


@pytest.mark.parametrize(
    ("part", "member"),
    [(b"0.5", "temperature"), (b'"Hi', "messages[1].content"), (b"function", "tools[0].type"), (b'"x"', "a.b[1].c")],
)
def test_a_byte_is_named_by_its_member(part: bytes, member: str) -> None:
    body = (
        b'{"temperature":0.5,"a":{"b":[1,{"c":"x"}]},"tools":[{"type":"function"}],'
        b'"messages":[{"role":"system","content":""},{"role":"user","content":"Hi \\"there"}]}'
    )
    assert path_at(body, body.index(part)) == member
