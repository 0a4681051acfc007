"""Pages: both forms have the same words, whatever the texts are; nothing but the page's own elements comes into the HTML."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from loopkit.contract.messages import ToolCall, ToolCallFunction
from loopkit.contract.records import Assistant, ToolResult
from loopkit.encoding import encode
from loopkit.reprs import LONGEST, Card
from loopkit.widgets.rendering import CELL, PageBlock, Table, as_html, as_text
from loopkit.widgets.transcript import ChatTranscript
from tests.logs.make import assistant, stamp
from tests.reading_html import Read, bare

TEXTS = st.text(st.characters(exclude_categories=[]) | st.sampled_from("<>&\"'$\\=/:\n\t\x00\x1b\u202e\ud83d"), max_size=60)
BLOCKS = st.builds(PageBlock, TEXTS, TEXTS, st.booleans())
TABLES = st.integers(1, 3).flatmap(
    lambda width: st.builds(Table, *(2 * [st.lists(TEXTS, min_size=width, max_size=width)])).map(
        lambda table: Table(table.header, [table.rows])  # type: ignore[list-item]
    )
)


@given(st.lists(BLOCKS | TABLES, max_size=4))
def test_both_forms_have_the_same_words_and_html_is_text_alone(page: list[PageBlock | Table]) -> None:
    assert bare(Read(as_html(page)).text) == bare(as_text(page))
    as_html(page).encode()


@given(TEXTS, st.lists(st.tuples(TEXTS, TEXTS), max_size=4))
def test_a_card_s_html_is_text_alone(title: str, facts: list[tuple[str, str]]) -> None:
    card = Card(title, facts)
    Read(card.html()).text.encode()
    assert len(card.text()) <= 110
    assert card.text().isprintable()


def test_what_is_left_out_is_counted_once() -> None:
    word = "w" * 1_000_000
    said = ChatTranscript([assistant(1, word)])
    for block in said.blocks()[0]:
        for form in (as_text([block]), as_html([block]), Card("a", [("b", word)]).html()):
            assert f"ww… [{1_000_000 - LONGEST:,} more characters]" in form
            assert form.count("more character") == 1
    assert as_text([Table(["a"], [[word]])]).endswith(f"ww… [{1_000_000 - CELL:,} more characters]")


def test_of_a_tool_call_long_arguments_do_not_hide_the_result() -> None:
    result = ToolResult(time=stamp(2), call=1, tool_call_id="a", name="t", content="It is late.", truncated=False, status="ok")
    call = ToolCall(id="a", function=ToolCallFunction(name="t", arguments=encode({"text": "w" * 1_000_000}).decode()))
    called = Assistant(time=stamp(1), content=None, tool_calls=Raw(encode([call])))
    text = as_text(ChatTranscript([called, result]).blocks()[0])
    assert "more characters]" in text
    assert "→ It is late." in text


def test_a_long_conversation_shows_its_end_and_says_so() -> None:
    transcript = ChatTranscript(assistant(number, f"Answer {number}.") for number in range(1, 251))
    settled, writing = transcript.blocks()
    assert settled[0].text == "50 earlier parts are only in the log"
    assert (settled[1].text, settled[-1].text, len(settled), writing) == ("Answer 51.", "Answer 250.", 201, [])
