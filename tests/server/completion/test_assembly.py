"""Streams as they really are, each as a table row; what the assembly makes of them is compared as values and as bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from loopkit.contract.messages import Extra
from loopkit.contract.records import decode_record, encode_record
from loopkit.encoding import decode, encode, replace_surrogates
from loopkit.errors import ContextExceeded, ServerRefused, StreamCut
from loopkit.server.completion.assembly import Assembly, Completion, parse_completion
from loopkit.server.completion.deltas import Delta, Progress, ReasoningDelta, TextDelta, ToolCallDelta

URL = "http://host"
TIME = "2026-11-30T07:31:05.000000Z"
ROLE = '{"choices":[{"index":0,"delta":{"role":"assistant","content":null}}]}'
STOP = '{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
USAGE = '{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}'


def delta(**members: Any) -> str:
    return encode({"choices": [{"index": 0, "delta": members}]}).decode()


def raw_delta(inner: str) -> str:
    return '{"choices":[{"index":0,"delta":' + inner + "}]}"


def run(*events: str, first_call: int = 1) -> tuple[Completion, list[Delta]]:
    assembly = Assembly(URL, first_call=first_call)
    deltas = [each for event in events for each in assembly.feed(event)]
    completion = assembly.finish()
    record = completion.assistant(TIME)
    assert decode_record(encode_record(record)) == record  # whatever came can be logged
    return completion, deltas


def calls(*fragments: dict[str, Any], first_call: int = 1) -> list[tuple[str, str, str]]:
    completion, _ = run(ROLE, *(delta(tool_calls=[each]) for each in fragments), STOP, first_call=first_call)
    return [(call.id, call.function.name, call.function.arguments) for call in completion.assistant(TIME).calls()]


def part(arguments: Any = None, *, name: str | None = None, **members: Any) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {**members, "function": function}


@pytest.mark.parametrize(
    ("events", "content"),
    [
        pytest.param([ROLE, delta(content="Do"), delta(content="ne."), STOP], "Done.", id="text"),
        pytest.param([ROLE, STOP], None, id="null-and-no-text"),
        pytest.param([delta(role="assistant", content=""), STOP], "", id="empty"),
        pytest.param([delta(role="assistant", content=None), delta(content=""), STOP], "", id="null-then-empty"),
        pytest.param([delta(role="assistant"), STOP], UNSET, id="never-there"),
        pytest.param([ROLE, delta(content=" \n"), STOP], " \n", id="white-space"),
        pytest.param([ROLE, delta(content="a\u2028b\u0085c\u000bd"), STOP], "a\u2028b\u0085c\u000bd", id="line-separators"),
        pytest.param([ROLE, delta(content="x"), STOP, "[DONE]", "garbage", '{"error":1}'], "x", id="after-done"),
        pytest.param([ROLE, delta(content="x"), "[DONE]"], "x", id="done-without-finish-reason"),
        pytest.param([ROLE, '{"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}'], "x", id="text-on-finish"),
        pytest.param(["", ROLE, delta(content="x"), STOP], "x", id="empty-data"),
        pytest.param(
            [ROLE, '{"choices":[{"index":1,"delta":{"content":"b"}},{"delta":{"content":"a"}}]}', STOP], "a", id="second-choice"
        ),
        pytest.param([ROLE, '{"choices":[{"delta":\n{"content":"x"}}]}', STOP], "x", id="over-two-data-lines"),
        pytest.param([ROLE, '{"choices":[{"delta":{"content":"x"},"finish_reason":""}]}', STOP], "x", id="empty-finish-reason"),
    ],
)
def test_content(events: list[str], content: Any) -> None:
    completion, deltas = run(*events)
    assert completion.content == content
    assert "".join(each.text for each in deltas if isinstance(each, TextDelta)) == completion.text


FINISH_WITH_USAGE = '{"choices":[{"delta":{},"finish_reason":"stop"}],"usage":' + USAGE + "}"


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([ROLE, STOP, '{"choices":[],"usage":' + USAGE + "}", "[DONE]"], id="own-chunk"),
        pytest.param([ROLE, FINISH_WITH_USAGE], id="finish-chunk"),
        pytest.param(
            [
                '{"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}',
                FINISH_WITH_USAGE,
                '{"choices":[],"usage":null}',
            ],
            id="every-chunk-last-non-null-wins",
        ),
        pytest.param([ROLE, '{"choices":[{"delta":{},"finish_reason":"stop","usage":' + USAGE + "}]}"], id="on-the-choice"),
    ],
)
def test_usage_wherever_it_stands(events: list[str]) -> None:
    usage = run(*events)[0].usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (5, 2, None)


def test_no_usage_is_no_error() -> None:
    completion, _ = run(ROLE, STOP)
    assert completion.usage.prompt_tokens is None
    assert completion.reported is UNSET


def test_usage_that_does_not_add_up_is_kept_as_reported() -> None:
    odd = '{ "prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 9}, "price": 1.10 }'
    completion, _ = run(ROLE, STOP, '{"choices":[],"usage":' + odd + "}")
    assert bytes(completion.reported or b"") == b'{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":9},"price":1.10}'
    assert "cached tokens 9" in (completion.usage_fault or "")


def test_llama_cpp_timings_and_progress() -> None:
    reading = '"prompt_progress":{"total":9,"cache":4,"processed":6,"time_ms":3}'
    progress = '{"choices":[{"delta":{"role":"assistant","content":null}}],' + reading + "}"
    last = '{"choices":[],"usage":' + USAGE + ',"timings":{"cache_n":4,"prompt_n":1,"prompt_ms":2.5}}'
    completion, deltas = run(progress, delta(content="x"), STOP, last)
    assert deltas[0] == Progress(total=9, cached=4, processed=6, ms=3)
    assert (completion.usage.cached_tokens, completion.usage.prompt_ms) == (4, 2.5)


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([], "no choice"),
        (["[DONE]"], "no choice"),
        ([ROLE, delta(content="x")], "without a finish_reason"),
        ([ROLE, delta(tool_calls=[part('{"a":', index=0, id="c", name="f")])], "without a finish_reason"),
        ([ROLE, "Internal Server Error"], "not part of a chat completion"),
        ([ROLE, '{"choices":[{"delta":{"content":"x"'], "not part of a chat completion"),
        ([ROLE, '{"choices":[{"delta":{"tool_calls":[null]}}]}'], "not part of a chat completion"),
        ([ROLE, '{"x":' + "[" * 100_000], "nested too deep"),
        ([ROLE, '["a"]'], "not part of a chat completion"),
        ([ROLE, delta(content="x"), delta(content=["y"]), STOP], "have different types"),
        ([ROLE, '{"choices":[],"prompt_progress":{"total":1}}', STOP], "not part of a chat completion"),
    ],
)
def test_what_is_not_a_final_answer_is_cut(events: list[str], why: str) -> None:
    with pytest.raises(StreamCut, match=why):
        run(*events)


@pytest.mark.parametrize("before", [[], [ROLE], [ROLE, delta(content="x")], [ROLE, STOP]])
@pytest.mark.parametrize(
    ("event", "kind", "expected_message"),
    [
        ('{"error":{"message":"it broke","code":500}}', ServerRefused, "HTTP 500: it broke"),
        ('{"error":"it broke"}', ServerRefused, "HTTP 200: it broke"),
        ('{"object":"error","message":"it broke","code":503}', ServerRefused, "HTTP 503: it broke"),
        (
            '{"error":{"code":400,"type":"exceed_context_size_error","n_prompt_tokens":14429,"n_ctx":8192}}',
            ContextExceeded,
            "prompt of 14429 tokens does not fit its context of 8192",
        ),
        ('{"error":{"message":"the request exceeds the available context size"}}', ContextExceeded, "the prompt does not fit"),
    ],
)
def test_an_error_object_anywhere_in_a_stream(
    before: list[str], event: str, kind: type[Exception], expected_message: str
) -> None:
    with pytest.raises(kind, match=expected_message):
        run(*before, event)


def test_an_error_event_need_not_be_json() -> None:
    with pytest.raises(ServerRefused, match="it broke"):
        Assembly(URL).feed("it broke", "error")


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_under_its_own_name(name: str) -> None:
    completion, deltas = run(ROLE, delta(**{name: "2+2 "}), delta(**{name: "is 4"}), delta(content="4"), STOP)
    assert completion.reasoning_content == "2+2 is 4"
    assert completion.extra == (UNSET if name == "reasoning_content" else Extra(reasoning_name=name))
    assert [each.text for each in deltas if isinstance(each, ReasoningDelta)] == ["2+2 ", "is 4"]
    assert deltas[-1] == TextDelta("4")


@pytest.mark.parametrize(
    ("inner", "reasoning", "extra"),
    [
        ('{"reasoning_content":null}', None, UNSET),
        ('{"reasoning":null}', None, Extra(reasoning_name="reasoning")),
        ('{"reasoning":""}', "", Extra(reasoning_name="reasoning")),
        ("{}", UNSET, UNSET),
    ],
)
def test_reasoning_null_empty_and_absent(inner: str, reasoning: Any, extra: Any) -> None:
    completion, _ = run(raw_delta(inner), STOP)
    assert (completion.reasoning_content, completion.extra) == (reasoning, extra)


def test_both_reasoning_names_at_once_are_both_kept_and_shown_once() -> None:
    completion, deltas = run(delta(reasoning="a", reasoning_content="a"), STOP)
    assert completion.reasoning_content == "a"
    assert completion.extra == Extra(members={"reasoning": Raw(b'"a"')})
    assert deltas == [ReasoningDelta("a")]


def test_unknown_members_keep_their_order_and_the_form_of_their_numbers() -> None:
    completion, _ = run(
        raw_delta('{"role":"assistant","zeta":1.10,"content":"x","details":[{"b":1e2,"a":"\\u00e9"}]}'),
        raw_delta('{"zeta":null,"details":[{ "c": -0.0 }],"signature":"ab"}'),
        raw_delta('{"signature":"cd"}'),
        STOP,
    )
    assert completion.extra != UNSET
    assert completion.extra.members != UNSET
    assert [(name, bytes(raw)) for name, raw in completion.extra.members.items()] == [
        ("zeta", b"1.10"),
        ("details", b'[{"b":1e2,"a":"\\u00e9"},{"c":-0.0}]'),
        ("signature", b'"abcd"'),
    ]


def test_content_in_parts_goes_back_as_it_came() -> None:
    completion = parse_completion(b'{"choices":[{"message":{"content":[{"type":"text","text":"x"}]}}]}', URL)
    assert completion.content is UNSET
    assert completion.extra == Extra(members={"content": Raw(b'[{"type":"text","text":"x"}]')})


F, G = '{"a":1}', '{"b":2}'


@pytest.mark.parametrize(
    ("fragments", "expected"),
    [
        pytest.param(
            [part("", index=0, id="x", name="f"), part('{"a"', index=0), part(":1}", index=0)],
            [("x", "f", F)],
            id="arguments-in-fragments",
        ),
        pytest.param(
            [part('{"a"', index=0, id="x", name="f"), part(":1}", index=0, id="x", name="f")],
            [("x", "f", F)],
            id="id-and-name-every-time",
        ),
        pytest.param(
            [
                part("", index=0, id="x", name="f"),
                part("", index=1, id="y", name="g"),
                part('{"b":', index=1),
                part('{"a":', index=0),
                part("1}", index=0),
                part("2}", index=1),
            ],
            [("x", "f", F), ("y", "g", G)],
            id="interleaved",
        ),
        pytest.param(
            [part(F, index=0, id="x", name="f"), part(G, index=0, id="y", name="g")],
            [("x", "f", F), ("y", "g", G)],
            id="same-index-new-id",
        ),
        pytest.param(
            [part('{"a"', index=0, id="x", name="f"), part(G, index=0, id="y", name="f")],
            [("x", "f", '{"a"'), ("y", "f", G)],
            id="same-index-and-name-new-id",
        ),
        pytest.param(
            [part("", index=0, id="x", name="f"), part("", index=0, id="y", name="g"), part(G, index=0)],
            [("x", "f", ""), ("y", "g", G)],
            id="goes-on-with-the-latest-of-an-index",
        ),
        pytest.param([part(F, id="x", name="f"), part(G, id="y", name="g")], [("x", "f", F), ("y", "g", G)], id="no-index"),
        pytest.param(
            [part('{"a"', id="x", name="f"), part('{"b"', id="y", name="g"), part(":1}", id="x"), part(":2}", id="y")],
            [("x", "f", F), ("y", "g", G)],
            id="no-index-interleaved-by-id",
        ),
        pytest.param([part('{"a"', id="x", name="f"), part(":1}")], [("x", "f", F)], id="no-index-and-no-id-goes-on"),
        pytest.param([part(F, name="f"), part(G, name="f")], [("call_7", "f", F), ("call_8", "f", G)], id="only-names"),
        pytest.param(
            [part(F, index=0, name="f"), part(G, index=0, name="f")],
            [("call_7", "f", F), ("call_8", "f", G)],
            id="always-index-0",
        ),
        pytest.param(
            [part(F, index=0, id="c", name="f"), part(G, index=0, id="c", name="f")],
            [("c", "f", F), ("call_8", "f", G)],
            id="one-constant-id",
        ),
        pytest.param(
            [part(F, index=0, id="c", name="f"), part(G, index=1, id="c", name="g")],
            [("c", "f", F), ("call_8", "g", G)],
            id="id-twice",
        ),
        pytest.param(
            [part(F, index=0, id="call_8", name="f"), part(G, index=1, id=None, name="g"), part(G, index=2, id="", name="g")],
            [("call_8", "f", F), ("call_8_", "g", G), ("call_9", "g", G)],
            id="made-ids-do-not-collide",
        ),
        pytest.param([part({"a": 1}, index=0, id="x", name="f")], [("x", "f", F)], id="arguments-as-an-object"),
        pytest.param([part("", index=0, id="x", name="f")], [("x", "f", "")], id="empty-arguments"),
        pytest.param([part("{}", index=0, id="x", name="f")], [("x", "f", "{}")], id="no-arguments"),
        pytest.param([part(index=0, id="x", name="f")], [("x", "f", "{}")], id="arguments-absent"),
        pytest.param([part(F, index=0, id="x")], [("x", "", F)], id="no-name"),
        pytest.param([{"index": 0, "id": "x", "function": None}], [("x", "", "{}")], id="no-function"),
        pytest.param(
            [part('{"t":"\\ud99c"}', index=0, id="x", name="f")], [("x", "f", '{"t":"\\ufffd"}')], id="lone-escape-in-arguments"
        ),
    ],
)
def test_tool_calls(fragments: list[dict[str, Any]], expected: list[tuple[str, str, str]]) -> None:
    assert calls(*fragments, first_call=7) == expected
    assert calls(*fragments, first_call=7) == expected


def test_tool_call_deltas_say_where_a_call_begins() -> None:
    _, deltas = run(
        delta(tool_calls=[part("", index=0, id="x", name="f"), part("{}", index=1, id="y", name="g")]),
        delta(tool_calls=[part(F, index=0)]),
        STOP,
    )
    assert deltas == [ToolCallDelta(0, "f", ""), ToolCallDelta(1, "g", "{}"), ToolCallDelta(0, None, F)]


def test_unknown_members_of_a_call_are_kept() -> None:
    function = '"function":{"strict":true,"name":"f","arguments":""}'
    first = '{"index":0,"type":"function","id":"x","extra_content":{"score":1.0},' + function + "}"
    completion, _ = run(raw_delta('{"tool_calls":[' + first + "]}"), delta(tool_calls=[part(F, index=0, type="function")]), STOP)
    assert bytes(completion.tool_calls or b"") == (
        b'[{"type":"function","id":"x","extra_content":{"score":1.0},'
        b'"function":{"strict":true,"name":"f","arguments":"{\\"a\\":1}"}}]'
    )


def test_halves_of_a_character_in_two_fragments_are_joined_and_lone_ones_counted() -> None:
    completion, deltas = run(
        raw_delta(r'{"content":"a \ud83d"}'),
        raw_delta(r'{"content":"\ude00 b \ud83d"}'),
        raw_delta(r'{"content":"c","note":"\ud800"}'),
        STOP,
    )
    assert completion.content == "a 😀 b \ufffdc"
    assert completion.extra == Extra(members={"note": Raw('"\ufffd"'.encode())})
    assert completion.replaced == 2
    assert "".join(each.text for each in deltas if isinstance(each, TextDelta)) == completion.content


def test_a_half_at_the_very_end_is_shown_and_counted() -> None:
    completion, deltas = run(raw_delta(r'{"content":"a\ud83d"}'), STOP)
    assert (completion.content, completion.replaced) == ("a\ufffd", 1)
    assert deltas == [TextDelta("a"), TextDelta("\ufffd")]


def test_lone_halves_in_calls_and_nested_members_are_counted() -> None:
    fragments = [
        r'{"tool_calls":[{"index":0,"id":"x","function":{"name":"f","arguments":"{\"t\":\"\ud83d"}}],"deep":[1.10,{"k":"\ud800"}]}',
        r'{"tool_calls":[{"index":0,"function":{"arguments":"\ude00\ud800\"}"}}]}',
    ]
    completion, _ = run(*map(raw_delta, fragments), STOP)
    assert decode(completion.assistant(TIME).calls()[0].function.arguments) == {"t": "😀\ufffd"}
    assert completion.extra == Extra(members={"deep": Raw(b'[1.10,{"k":"\\ufffd"}]')})
    assert completion.replaced == 2


pieces = st.lists(
    st.sampled_from(["a", "é", "\u2028", "\\", '"', "\n", "\ud83d", "\ude00", "😀", "\x00", "{", "}"]), max_size=6
).map("".join)


@given(st.lists(pieces, max_size=5))
def test_however_a_text_is_cut_it_is_the_same_text(texts: list[str]) -> None:
    def escaped(text: str) -> str:
        return '"' + "".join(f"\\u{ord(char):04x}" if ord(char) < 0x10000 else char for char in text) + '"'

    events = [raw_delta('{"content":' + escaped(text) + "}") for text in texts]
    calls_ = [raw_delta('{"tool_calls":[{"index":0,"function":{"arguments":' + escaped(text) + "}}]}") for text in texts]
    completion, deltas = run(*events, *calls_, STOP)
    expected, lone = replace_surrogates("".join(texts))
    assert completion.text == expected
    assert "".join(each.text for each in deltas if isinstance(each, TextDelta)) == expected
    assert completion.replaced == lone * (1 + bool(texts))
