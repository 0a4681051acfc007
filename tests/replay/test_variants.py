"""Variants change what they say, and nothing else; on the bodies of random conversations, as laws."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopkit.errors import InvalidConfig
from loopkit.replay.variants import VARIANTS, EditableRequest, Variant, applied, variant_of, window

MOMENT = "2026-11-30T07:31:05.000001Z"
Message = dict[str, Any]
ALL = [*VARIANTS.values(), window(1), window(2)]
MAY_CHANGE = {
    "live_system": {"system": {"content"}},
    "clock_in_system": {"system": {"content"}},
    "history_reserialised": {"assistant": {"tool_calls"}},
    "reasoning_dropped": {"assistant": {"reasoning_content", "reasoning"}},
    "results_cleared": {"tool": {"content"}},
}

TEXT = st.sampled_from(["Be brief.", "1.10 é", "", "x" * 120, "日本 \n \\u00e9"])
ARGUMENTS = st.sampled_from(['{"b":1.10,"a":"é"}', "{}", '{"a": "{"}', "[1]", "not json"])


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Some turns, with parallel calls, results in any order, and reasoning."""
    messages: list[Message] = [{"role": "system", "content": draw(TEXT)}] if draw(st.booleans()) else []
    calls = 0
    for _ in range(draw(st.integers(1, 5))):
        messages.append({"role": "user", "content": draw(TEXT)})
        for _ in range(draw(st.integers(0, 2))):
            called = [f"c{calls + at}" for at in range(draw(st.integers(1, 3)))]
            calls += len(called)
            made = [{"id": id, "type": "function", "function": {"name": "f", "arguments": draw(ARGUMENTS)}} for id in called]
            messages.append({"role": "assistant", "content": None, "reasoning_content": draw(TEXT), "tool_calls": made})
            messages += [{"role": "tool", "tool_call_id": id, "content": draw(TEXT)} for id in draw(st.permutations(called))]
        messages.append({"role": "assistant", "content": draw(TEXT), "n": 1})
    del messages[len(messages) - draw(st.integers(0, 1)) :]
    return messages


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """With any white space, and members on both sides of the messages."""
    messages = draw(conversations())
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")]))
    tools = [{"type": "function", "function": {"name": name}} for name in "abcd"[: draw(st.integers(0, 4))]]
    members = {"temperature": 0.10, "tools": tools, "messages": messages, "max_tokens": 7}
    names = draw(st.permutations(list(members)))
    chosen = {name: members[name] for name in names if name != "tools" or tools}
    return json.dumps(chosen, separators=separators, ensure_ascii=draw(st.booleans())).encode()


def parts(body: bytes) -> tuple[dict[str, Any], list[Message]]:
    members = json.loads(body)
    return members, members.pop("messages")


@given(bodies(), st.sampled_from(ALL), st.integers(1, 9))
def test_a_variant_gives_the_same_for_the_same_whatever_was_drawn_before(body: bytes, variant: Variant, number: int) -> None:
    first = applied(variant, body, number, MOMENT)
    random.seed(number)
    assert applied(variant, body, number, MOMENT) == first
    state = random.getstate()
    applied(variant, body, number, MOMENT)
    assert random.getstate() == state


@given(bodies(), st.sampled_from(ALL), st.integers(1, 9))
def test_members_stay_as_they_are_in_their_order(body: bytes, variant: Variant, number: int) -> None:
    (before, _), (after, _) = parts(body), parts(applied(variant, body, number, MOMENT))
    assert list(before) == list(after)
    if variant.name == "tools_shuffled":
        by_name = [sorted(members.get("tools", []), key=str) for members in (before, after)]
        assert by_name[0] == by_name[1]
        before, after = ({**members, "tools": None} for members in (before, after))
    assert before == after


@given(bodies(), st.sampled_from([variant for variant in ALL if variant.name in MAY_CHANGE]), st.integers(1, 9))
def test_a_message_changes_in_its_member_alone(body: bytes, variant: Variant, number: int) -> None:
    changed = applied(variant, body, number, MOMENT)
    (_, before), (_, after) = parts(body), parts(changed)
    assert len(before) == len(after)
    for old, new in zip(before, after, strict=True):
        differing = {name for name in old | new if old.get(name, ...) != new.get(name, ...)}
        assert differing <= MAY_CHANGE[variant.name].get(old["role"], set())


@given(bodies(), st.sampled_from(ALL), st.integers(1, 9))
def test_what_is_not_changed_stays_byte_for_byte(body: bytes, variant: Variant, number: int) -> None:
    seen: list[EditableRequest] = []

    def looking(sent: EditableRequest) -> EditableRequest:
        seen.append(sent)
        return sent

    look = variant_of(looking)
    assert applied(look, body, number, MOMENT) is body
    applied(look, applied(variant, body, number, MOMENT), number, MOMENT)
    before, after = seen
    kept = [text for text in after.messages if text in before.messages]
    different = [text for text in after.messages if text not in before.messages]
    most = {"summarised": 2, "live_system": 1, "clock_in_system": 1, "tools_shuffled": 0, "window(1)": 0, "window(2)": 0}
    assert len(different) <= most.get(variant.name, len(before.messages))
    places = iter(before.messages)
    assert all(text in places for text in kept)  # in their order
    assert {name for name in before.members if before.members[name] != after.members[name]} <= {"tools"}


@given(bodies(), st.sampled_from(ALL), st.integers(1, 9))
def test_a_result_keeps_its_call_and_a_call_its_result(body: bytes, variant: Variant, number: int) -> None:
    _, messages = parts(applied(variant, body, number, MOMENT))
    called: set[str] = set()
    for message in messages:
        called |= {call["id"] for call in message.get("tool_calls", ())}
        assert message["role"] != "tool" or message["tool_call_id"] in called
    results = {message["tool_call_id"] for message in messages if message["role"] == "tool"}
    _, before = parts(body)
    answered = {message["tool_call_id"] for message in before if message["role"] == "tool"}
    assert called & answered == results


@given(bodies())
def test_a_window_holds_the_last_turns_and_what_stands_before_the_first(body: bytes) -> None:
    _, before = parts(body)
    _, after = parts(applied(window(2), body, 1, MOMENT))
    head = 0 if before[0]["role"] == "user" else 1
    asked = [at for at, message in enumerate(before) if message["role"] == "user"]
    assert after == (before[:head] + before[asked[-2] :] if len(asked) > 2 else before)


BODY = json.dumps(
    {
        "tools": [{"name": name} for name in "abcde"],
        "messages": [
            {"role": "system", "content": "Be brief."},
            *[
                message
                for turn in range(5)
                for message in (
                    {"role": "user", "content": f"Question\n {turn}?"},
                    {
                        "role": "assistant",
                        "reasoning_content": "Hm.",
                        "content": "",
                        "tool_calls": [{"id": f"c{turn}", "function": {"name": "f", "arguments": '{"b": 1.10, "a": [1,2]}'}}],
                    },
                    {"role": "tool", "tool_call_id": f"c{turn}", "content": f"result {turn}"},
                )
            ],
        ],
    }
).encode()


def made(name: str, number: int = 1) -> tuple[dict[str, Any], list[Message]]:
    return parts(applied(variant_of(name), BODY, number, MOMENT))


def test_the_system_prompt_begins_with_a_clock_or_with_a_line_of_the_turn() -> None:
    assert made("clock_in_system")[1][0]["content"] == f"The time is {MOMENT}.\n\nBe brief."
    assert made("live_system")[1][0]["content"] == "Messages from the user so far: 5.\n\nBe brief."
    in_parts = BODY.replace(b'"Be brief."', b'[{"type":"text","text":"Be brief."}]')
    changed = parts(applied(variant_of("live_system"), in_parts, 1, MOMENT))[1][0]["content"]
    assert [part["text"] for part in changed] == ["Messages from the user so far: 5.\n\n", "Be brief."]


def test_tools_come_in_another_order_with_another_number() -> None:
    orders = {tuple(tool["name"] for tool in made("tools_shuffled", number)[0]["tools"]) for number in range(1, 9)}
    assert len(orders) > 4
    assert made("tools_shuffled", 3) == made("tools_shuffled", 3)


def test_arguments_of_earlier_turns_are_written_anew() -> None:
    calls = [
        message["tool_calls"][0]["function"]["arguments"]
        for message in made("history_reserialised")[1]
        if "tool_calls" in message
    ]
    assert calls == ['{"a":[1,2],"b":1.1}'] * 4 + ['{"b": 1.10, "a": [1,2]}']


def test_earlier_reasoning_is_left_out_and_old_results_are_cleared() -> None:
    thoughts = [message.get("reasoning_content") for message in made("reasoning_dropped")[1] if message["role"] == "assistant"]
    assert thoughts == [None] * 4 + ["Hm."]
    results = [message["content"] for message in made("results_cleared")[1] if message["role"] == "tool"]
    assert results == ["(This result was cleared to save space.)"] * 2 + ["result 2", "result 3", "result 4"]


def test_a_summary_stands_for_all_turns_but_the_last_two() -> None:
    before, after = parts(BODY)[1], made("summarised")[1]
    assert [message["role"] for message in after[:4]] == ["system", "user", "assistant", "user"]
    assert after[2]["content"] == "You asked:\n- Question 0?\n- Question 1?\n- Question 2?"
    assert after[3:] == before[-6:]


def test_a_function_of_ones_own_may_take_members_out_and_put_some_in() -> None:
    def colder(sent: EditableRequest) -> EditableRequest:
        return sent._replace(members={"seed": str(sent.number).encode()}, messages=sent.messages[:1])

    assert json.loads(applied(variant_of(colder), BODY, 7, MOMENT)) == {
        "seed": 7,
        "messages": [{"role": "system", "content": "Be brief."}],
    }
    assert variant_of(colder).name == "colder"

    def broken(sent: EditableRequest) -> EditableRequest:
        return sent._replace(messages=[b"{"])

    with pytest.raises(InvalidConfig, match="broken returned invalid JSON for request 1"):
        applied(variant_of(broken), BODY, 1, MOMENT)


def test_names_that_are_none_and_bodies_that_are_none_are_refused() -> None:
    assert sorted(VARIANTS) == sorted([*MAY_CHANGE, "tools_shuffled", "summarised"])
    assert variant_of("window(12)").name == "window(12)"
    for name in ("window", "window(-1)", "live"):
        with pytest.raises(InvalidConfig, match=r"Choose from clock_in_system, .*, window\(n\)"):
            variant_of(name)
    with pytest.raises(InvalidConfig, match=r"window\(0\) would send no turn"):
        variant_of("window(0)")
    for body in (b"[]", b'{"prompt":"x"}', b'{"n":1,"n":2,"messages":[]}'):
        with pytest.raises(InvalidConfig, match="request 3 is not a JSON object with messages"):
            applied(variant_of("summarised"), body, 3, MOMENT)
    with pytest.raises(InvalidConfig, match="request 3 is not a chat request: Expected `object`"):
        applied(variant_of("summarised"), b'{"messages":["x"]}', 3, MOMENT)


@pytest.mark.parametrize(
    "change",
    [
        lambda _: None,
        lambda sent: (sent.members, sent.messages),
        lambda sent: sent._replace(members=None),
        lambda sent: sent._replace(messages=None),
        lambda sent: sent._replace(messages=b"[]"),
        lambda sent: sent._replace(messages=[text.decode() for text in sent.messages]),
        lambda sent: sent._replace(members={**sent.members, "seed": 1}),
        lambda sent: sent._replace(members={**sent.members, 1: b"1"}),
    ],
)
def test_a_function_that_gives_no_request_is_refused(change: Any) -> None:
    with pytest.raises(InvalidConfig, match="did not return an EditableRequest of JSON texts"):
        applied(Variant("mine", change), BODY, 1, MOMENT)
    with pytest.raises(InvalidConfig, match="expected a variant; got an int"):
        variant_of(5)  # type: ignore[arg-type]
