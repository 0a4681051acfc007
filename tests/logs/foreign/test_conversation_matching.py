"""Requests put back into their conversations by what stands in them."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopkit.encoding import encode
from loopkit.logs.foreign.conversation_matching import ConversationMatcher

SYSTEM = {"role": "system", "content": "Be brief."}


def turn(number: int, text: str) -> dict[str, Any]:
    return {"role": "assistant" if number % 2 else "user", "content": text}


def talk(*texts: str, system: dict[str, Any] | None = SYSTEM) -> list[dict[str, Any]]:
    return [*([system] if system else []), *(turn(number, text) for number, text in enumerate(texts))]


def placed(*requests: list[dict[str, Any]], **members: Any) -> list[tuple[int, int | None]]:
    found = ConversationMatcher()
    return [found.place(encode({"model": "m", **members, "messages": messages}))[:2] for messages in requests]


@given(data=st.data(), apart=st.booleans())
def test_interleaved_conversations_are_told_apart(data: st.DataObject, apart: bool) -> None:
    """With one system prompt and with the same answers: only what people asked differs, at the beginning."""
    count = data.draw(st.integers(1, 5))
    order = data.draw(st.lists(st.integers(0, count - 1), max_size=20))
    texts: list[list[str]] = [[] for _ in range(count)]
    names: dict[int, int] = {}
    last: dict[int, int] = {}
    found = ConversationMatcher()
    for index, which in enumerate(order):
        texts[which] += ["Done."] * bool(texts[which]) + [f"Question of {which}." if not texts[which] else "Go on."]
        system = {"role": "system", "content": f"You are {which}."} if apart else SYSTEM
        place = found.place(encode({"messages": talk(*texts[which], system=system), "model": "m"}))
        assert place.conversation == names.setdefault(which, len(names))
        assert place.follows == last.get(which)
        last[which] = index


@given(data=st.data())
def test_a_rewritten_history_stays_in_its_conversation(data: st.DataObject) -> None:
    size = 2 * data.draw(st.integers(1, 6)) + 1
    mine = [f"mine {number}" for number in range(size + 2)]
    others = [f"other {number}" for number in range(size + 2)]
    at = data.draw(st.integers(0, size - 1))
    edited = [*mine[:at], "now 07:31", *mine[at + 1 :]]
    sent = [talk(*mine[: size - 2]), talk(*others[:size]), talk(*mine[:size]), talk(*edited)]
    assert placed(*sent)[3] == (0, 2)
    found = ConversationMatcher()
    new = [found.place(encode({"messages": messages})).new for messages in sent][3]
    assert new == [encode(turn(at, "now 07:31")), *(encode(turn(number, mine[number])) for number in (size, size + 1))]


def test_a_clock_in_the_system_prompt_does_not_part_a_conversation() -> None:
    systems = [{"role": "system", "content": f"It is 07:3{number}."} for number in range(3)]
    sent = [talk(*(["a", "b", "c", "d", "e"][: 2 * number + 1]), system=systems[number]) for number in range(3)]
    assert placed(*sent) == [(0, None), (0, 0), (0, 1)]


def test_a_clock_in_the_first_message_does_not_part_a_conversation() -> None:
    sent = [talk(f"It is 07:3{number}. What now?", *["b", "c", "d", "e"][: 2 * number], system=None) for number in range(3)]
    assert placed(*sent) == [(0, None), (0, 0), (0, 1)]
    assert placed(sent[0], talk("Quite another question.", "b", "c", system=None)) == [(0, None), (1, None)]
    assert placed(sent[0], sent[2]) == [(0, None), (1, None)]  # of it too much is not known
    assert placed(sent[0], sent[0], sent[1]) == [(0, None), (1, None), (1, 1)]


def test_dropped_cleared_and_summarised_history_stays() -> None:
    whole = [str(number) for number in range(9)]
    assert placed(talk(*whole[:7]), talk(*whole[4:])) == [(0, None), (0, 0)]
    cleared = talk(*whole)
    cleared[4] = {"role": "tool", "content": "cleared"}
    assert placed(talk(*whole[:1]), talk(*whole[:7]), cleared) == [(0, None), (0, 0), (0, 1)]
    summarised = [SYSTEM, {"role": "user", "content": "So far: much."}, *talk(*whole)[5:]]
    assert placed(talk(*whole[:7]), summarised) == [(0, None), (0, 0)]


def test_a_few_common_words_do_not_make_two_conversations_one() -> None:
    """The second began before it was recorded."""
    sent = [talk("a", "b", "Go on.", "c", "d"), talk("v", "w", "Go on.", "x", "y")]
    assert placed(*sent) == [(0, None), (1, None)]


def test_the_same_first_request_twice_is_two_conversations() -> None:
    sent = [talk("Hi"), talk("Hi"), talk("Hi", "A", "x"), talk("Hi", "B", "y"), talk("Hi", "A", "x", "C", "z")]
    assert placed(*sent) == [(0, None), (1, None), (0, 0), (1, 1), (0, 2)]


def test_a_branch_is_a_conversation_that_goes_on_from_where_it_parted() -> None:
    sent = [talk("Hi"), talk("Hi", "A", "x"), talk("Hi", "A", "x", "B", "y"), talk("Hi", "A", "x", "C", "z", "D", "w")]
    assert placed(*sent) == [(0, None), (0, 0), (0, 1), (1, 1)]


def test_the_same_request_again_within_a_conversation_follows_it() -> None:
    assert placed(talk("Hi"), talk("Hi", "A", "x"), talk("Hi", "A", "x")) == [(0, None), (0, 0), (0, 1)]


def test_of_two_that_wait_the_one_with_the_same_tools_goes_on() -> None:
    found = ConversationMatcher()
    bodies = [encode({"tools": [name], "messages": talk(*texts)}) for name, texts in (("a", "H"), ("b", "H"), ("b", "HAx"))]
    assert [found.place(body)[:2] for body in bodies] == [(0, None), (1, None), (1, 1)]


@pytest.mark.parametrize(
    "body", [b"", b"no JSON", b"[1]", b'{"messages":1}', b'{"messages":[]}', b'{"prompt":"a"}', b'{"a":1,"a":2}']
)
def test_what_has_no_messages_stands_alone(body: bytes) -> None:
    found = ConversationMatcher()
    assert [found.place(body) for _ in range(2)] == [(0, None, []), (1, None, [])]


def test_items_of_responses_are_messages() -> None:
    first = [{"role": "user", "content": "Hi"}]
    second = [*first, {"type": "function_call", "name": "f"}, {"type": "function_call_output", "output": "1"}]
    found = ConversationMatcher()
    assert [found.place(encode({"input": items}))[:2] for items in (first, second)] == [(0, None), (0, 0)]


def test_new_messages_are_told() -> None:
    found = ConversationMatcher()
    found.place(encode({"messages": talk("Hi")}))
    assert found.place(encode({"messages": talk("Hi", "A", "x")})).new == [encode(turn(1, "A")), encode(turn(2, "x"))]


def test_many_conversations_take_time_that_grows_with_their_number() -> None:
    def seconds(count: int) -> float:
        bodies = [encode({"messages": talk(f"{number}", "Done.", "Go on.")}) for number in range(count)]
        found, began = ConversationMatcher(), time.perf_counter()
        for body in bodies:
            found.place(body)
        return time.perf_counter() - began

    few = min(seconds(500) for _ in range(3))
    assert min(seconds(5000) for _ in range(3)) < 30 * few
