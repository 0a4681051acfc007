"""How one prompt goes on from another, in tokens: made views, and the law that a kept conversation reuses what was written."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopkit.cache.losses.token_comparison import compare, reusable_tokens
from loopkit.contract.records import Usage
from loopkit.encoding import encode
from loopkit.engines.evidence.tokens import Run, TokenView


def view(*parts: tuple[str, str], size: int = 1) -> TokenView:
    """Tokens of so many bytes each, per part."""
    tokens, offsets, runs, at = array("i"), array("i"), [], 0
    for label, text in parts:
        data, start = text.encode(), len(tokens)
        for place in range(0, len(data), size):
            tokens.append(hash(data[place : place + size]) % (1 << 30))
            offsets.append(at + place)
        at += len(data)
        runs.append(Run(label, start, len(tokens)))
    offsets.append(at)
    return TokenView(tokens, "".join(text for _, text in parts), offsets, tuple(run for run in runs if run.start < run.end))


def prompt(*texts: str, size: int = 1) -> TokenView:
    """System, user, assistant, user …, each closed by the template, and the header of an answer."""
    parts = [
        each
        for at, text in enumerate(texts)
        for each in (("template", f"[{at % 3}"), (f"messages[{at}].content", text), ("template", "]"))
    ]
    return view(*parts, ("template", f"[{len(texts) % 3}"), size=size)


def body(*texts: str) -> bytes:
    roles = ["system", *["user", "assistant"] * len(texts)]
    return encode({"messages": [{"role": role, "content": text} for role, text in zip(roles, texts)]})


texts = st.text(st.characters(codec="utf-8", exclude_characters="[]"), min_size=1, max_size=12)


@given(st.lists(texts, min_size=2, max_size=6).filter(lambda each: len(each) % 2 == 0), texts, texts)
def test_a_conversation_that_is_kept_reuses_all_but_the_last_token(said: list[str], answer: str, question: str) -> None:
    before, now = prompt(*said), prompt(*said, answer, question)
    written = len(answer.encode()) + 1
    found = compare(before, now, Usage(prompt_tokens=len(before), completion_tokens=written), body(*said, answer, question))
    assert (found.how, found.exact, found.reusable) == ("extends", True, len(before) + written - 1)
    for short in range(2, written - 1):  # as many bytes, and another count: other tokens were written
        other = compare(before, now, Usage(completion_tokens=short), body(*said, answer, question))
        assert (other.how, other.exact, other.reusable) == ("retokenised", False, len(before))


@given(st.lists(texts, min_size=2, max_size=6), st.lists(texts, min_size=2, max_size=6), st.integers(0, 9))
def test_never_more_than_all_but_one_and_all_that_is_shared(a: list[str], b: list[str], written: int) -> None:
    before, now = prompt(*a), prompt(*b)
    reusable = reusable_tokens(before, now, Usage(completion_tokens=written))
    shared = next((at for at, (x, y) in enumerate(zip(before.tokens, now.tokens)) if x != y), min(len(before), len(now)))
    assert min(shared, len(now) - 1) <= reusable <= max(0, len(now) - 1)
    if shared < len(before):
        assert reusable == min(shared, len(now) - 1)


def test_the_same_prompt_again_reads_one_token() -> None:
    same = prompt("Be brief.", "Hi.")
    assert reusable_tokens(same, same, Usage(completion_tokens=5)) == len(same) - 1


@pytest.mark.parametrize(
    ("sent", "shown", "how", "same"),
    [("Done.", "Done.", "extends", 5), ("Done.", "done.", "rewritten", 0), ("Done. ", "Done.", "rewritten", 5)],
)
def test_what_was_written_is_compared_with_what_the_template_makes_of_it(sent: str, shown: str, how: str, same: int) -> None:
    before, now = prompt("Be brief.", "Hi."), prompt("Be brief.", "Hi.", shown, "More.")
    found = compare(before, now, Usage(completion_tokens=len(sent) + 1), body("Be brief.", "Hi.", sent, "More."))
    assert (found.how, found.token) == (how, len(before) + same)
    assert found.where == (None if how == "extends" else "messages[2].content")


def test_an_answer_that_was_cut_has_no_end_token() -> None:
    before, now = prompt("Be brief.", "Hi."), prompt("Be brief.", "Hi.", "Done.", "More.")
    sent = body("Be brief.", "Hi.", "Done.", "More.")
    for written, how in ((4, "retokenised"), (5, "extends"), (6, "extends"), (7, "retokenised")):
        assert compare(before, now, Usage(completion_tokens=written), sent).how == how, written


def test_behind_a_call_the_template_writes_what_the_model_closed_it_with() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
    roles = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    sent = encode({"messages": [*roles, {"role": "tool", "content": "Mist."}]})
    label = "messages[1].tool_calls[0].function"
    head = (("template", "["), ("messages[0].content", "Hi."), ("template", "]["))
    said = ((label + ".name", "look"), ("template", ", "), (label + ".arguments", '{"a": 1}'), ("template", "})]["))
    before, now = view(*head), view(*head, *said, ("messages[2].content", "Mist."))
    least, most = len('look, {"a": 1}'), len('look, {"a": 1}})][')
    for written, how in ((least - 1, "retokenised"), (least + 1, "extends"), (most + 1, "extends"), (most + 2, "retokenised")):
        assert compare(before, now, Usage(completion_tokens=written), sent).how == how, written


def test_tokens_of_several_bytes_part_where_the_byte_is() -> None:
    before, now = prompt("Be brief.", "Hi.", size=3), prompt("Be brief.", "Hi.", "Done!!x", "More.", size=3)
    found = compare(before, now, Usage(completion_tokens=4), body("Be brief.", "Hi.", "Done!?x", "More."))
    assert (found.how, found.token, found.reusable) == ("rewritten", len(before) + 1, len(before) + 1)


def test_no_control_tag_stands_in_the_evidence() -> None:
    tag = "<" + "|im_end|" + ">"
    before, now = (view(("template", f"{text}{tag}")) for text in ("a", "b"))
    found = compare(before, now, Usage(completion_tokens=4))
    assert found.how == "parts"
    assert tag not in found.was + found.now
