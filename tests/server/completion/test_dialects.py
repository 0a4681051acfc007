"""Every dialect of usage that can come with a chat completion, as whole answers and as streams; and reports from the field."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from loopkit.contract.records import Usage
from loopkit.encoding import encode
from loopkit.server.completion.assembly import Assembly, Completion, parse_completion

URL = "http://host"
TEXT = '{"choices":[{"index":0,"delta":{"role":"assistant","content":"Done."}}]}'
STOP = '{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'


def counts(prompt: int | None, cached: int | None, written: int | None, completion: int | None, reasoning: int | None) -> Usage:
    return Usage(
        prompt_tokens=prompt,
        cached_tokens=cached,
        cache_write_tokens=written,
        completion_tokens=completion,
        reasoning_tokens=reasoning,
    )


def details(**members: Any) -> dict[str, Any]:
    return {"prompt_tokens_details": members}


def thought(tokens: int | None) -> dict[str, Any]:
    return {"completion_tokens_details": {"reasoning_tokens": tokens}}


BASE = {"prompt_tokens": 100, "completion_tokens": 30, "total_tokens": 130}

# A row each of the dialects' table; a server's several ways stand under its name.
ROWS = {
    "OpenAI": (BASE | details(cached_tokens=75, audio_tokens=0) | thought(12), counts(100, 75, None, 30, 12)),
    "OpenAI, writes": (BASE | details(cached_tokens=75, cache_write_tokens=20) | thought(0), counts(100, 75, 20, 30, 0)),
    "llama.cpp": (BASE | details(cached_tokens=75), counts(100, 75, None, 30, None)),
    "llama.cpp before March 2026": (BASE, counts(100, None, None, 30, None)),
    "vLLM without the flag": (BASE | {"prompt_tokens_details": None}, counts(100, None, None, 30, None)),
    "vLLM": (
        BASE | details(cached_tokens=64, created_cache_tokens=32, multimodal_tokens=None) | thought(5),
        counts(100, 64, 32, 30, 5),
    ),
    "SGLang without the flag": (
        BASE | {"prompt_tokens_details": None, "reasoning_tokens": 7},
        counts(100, None, None, 30, 7),
    ),
    "SGLang": (BASE | details(cached_tokens=64) | {"reasoning_tokens": 0}, counts(100, 64, None, 30, 0)),
    "DeepSeek": (
        BASE | {"prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36} | thought(9),
        counts(100, 64, None, 30, 9),
    ),
    "Mistral": (BASE | details(cached_tokens=64), counts(100, 64, None, 30, None)),
    "Mistral, at the top": (BASE | {"num_cached_tokens": 64}, counts(100, 64, None, 30, None)),
    "xAI": (
        BASE
        | details(text_tokens=100, cached_tokens=64)
        | thought(50)
        | {"total_tokens": 180},  # reasoning beside the completion
        counts(100, 64, None, 80, 50),
    ),
    "xAI, reasoning included": (BASE | details(cached_tokens=64) | thought(20), counts(100, 64, None, 30, 20)),
    "Zhipu": (BASE | details(cached_tokens=64), counts(100, 64, None, 30, None)),
    "Moonshot": (BASE | {"cached_tokens": 64}, counts(100, 64, None, 30, None)),
    "OpenRouter": (
        BASE | details(cached_tokens=64, cache_write_tokens=20, audio_tokens=0) | thought(3) | {"cost": 0.0012, "is_byok": False},
        counts(100, 64, 20, 30, 3),
    ),
    "LM Studio": (BASE, counts(100, None, None, 30, None)),
    "LiteLLM": (BASE | details(cached_tokens=64, cache_creation_tokens=20), counts(100, 64, 20, 30, None)),
    "LiteLLM before Anthropic": (
        BASE | {"cache_read_input_tokens": 64, "cache_creation_input_tokens": 20},
        counts(100, 64, 20, 30, None),
    ),
    "Ollama /v1": (BASE, counts(100, None, None, 30, None)),
    "Anthropic": (
        {"input_tokens": 25, "cache_read_input_tokens": 55, "cache_creation_input_tokens": 20, "output_tokens": 30}
        | {"cache_creation": {"ephemeral_5m_input_tokens": 20}, "output_tokens_details": {"thinking_tokens": 4}},
        counts(100, 55, 20, 30, 4),
    ),
    "llama.cpp /v1/messages": (
        {"input_tokens": 25, "cache_read_input_tokens": 75, "output_tokens": 30},
        counts(100, 75, None, 30, None),
    ),
    "OpenAI Responses": (
        {
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 75, "cache_write_tokens": 10},
            "output_tokens": 30,
            "output_tokens_details": {"reasoning_tokens": 8},
            "total_tokens": 130,
        },
        counts(100, 75, 10, 30, 8),
    ),
}


def of_stream(*events: str) -> Completion:
    assembly = Assembly(URL)
    for event in events:
        assembly.feed(event)
    return assembly.finish()


def of_whole(**members: Any) -> Completion:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Done."}, "finish_reason": "stop"}
    return parse_completion(encode({"choices": [choice], **members}), URL)


def chunk(**members: Any) -> str:
    return encode({"choices": [], **members}).decode()


@pytest.mark.parametrize(("usage", "expected"), [pytest.param(*row, id=name) for name, row in ROWS.items()])
def test_every_row_whole_and_streamed(usage: dict[str, Any], expected: Usage) -> None:
    for completion in (of_whole(usage=usage), of_stream(TEXT, STOP, chunk(usage=usage), "[DONE]")):
        assert completion.usage == expected
        assert (completion.usage_fault, completion.reported) == (None, UNSET)


def test_old_moonshot_puts_it_on_the_choice() -> None:
    usage = BASE | {"cached_tokens": 64}
    choice = {"index": 0, "delta": {}, "finish_reason": "stop", "usage": usage}
    assert of_stream(TEXT, encode({"choices": [choice]}).decode(), "[DONE]").usage == counts(100, 64, None, 30, None)
    choice = {"index": 0, "message": {"role": "assistant", "content": "Done."}, "finish_reason": "stop", "usage": usage}
    assert parse_completion(encode({"choices": [choice]}), URL).usage == counts(100, 64, None, 30, None)


TIMINGS = {"cache_n": 75, "prompt_n": 25, "prompt_ms": 4.5, "predicted_n": 30, "predicted_ms": 10.25}


@pytest.mark.parametrize("usage", [{}, {"usage": BASE}, {"usage": BASE | details(cached_tokens=75)}])
def test_llama_cpps_timings(usage: dict[str, Any]) -> None:
    expected = replace(counts(100, 75, None, 30, None), prompt_ms=4.5, predicted_ms=10.25)
    on_finish = encode({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "timings": TIMINGS}).decode()
    for completion in (
        of_whole(**usage, timings=TIMINGS),
        of_stream(TEXT, STOP, chunk(**usage, timings=TIMINGS), "[DONE]"),
        of_stream(TEXT, on_finish, chunk(**usage), "[DONE]"),
    ):
        assert (completion.usage, completion.usage_fault) == (expected, None)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        pytest.param({}, None, id="absent"),
        pytest.param({"prompt_tokens_details": None}, None, id="null"),
        pytest.param(details(), None, id="empty"),
        pytest.param(details(cached_tokens=None), None, id="null-inside"),
        pytest.param(details(cached_tokens=0), 0, id="zero"),
        pytest.param(details(cached_tokens=75), 75, id="number"),
        pytest.param(details(cached_tokens=None) | {"prompt_cache_hit_tokens": 75}, 75, id="null-beside-a-number"),
        pytest.param(details(cached_tokens=0) | {"cached_tokens": None}, 0, id="zero-beside-null"),
    ],
)
def test_absent_null_and_zero(usage: dict[str, Any], expected: int | None) -> None:
    assert of_whole(usage=BASE | usage).usage == counts(100, expected, None, 30, None)


@pytest.mark.parametrize(
    ("usage", "expected", "expected_message"),
    [
        pytest.param(BASE | {"total_tokens": 131}, counts(100, None, None, 30, None), "the total is 131", id="total"),
        pytest.param(
            BASE | {"prompt_cache_hit_tokens": 400}, counts(100, None, None, 30, None), "cached tokens 400", id="cached"
        ),
        pytest.param(
            BASE | details(cached_tokens=75, cache_write_tokens=26),
            counts(100, 75, None, 30, None),
            "cache writes 26",
            id="written",
        ),
        pytest.param(
            BASE | {"prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 35},
            counts(100, 64, None, 30, None),
            "64 and uncached tokens 35",
            id="hits-and-misses",
        ),
        pytest.param(BASE | thought(31), counts(100, None, None, 30, 31), "reasoning tokens 31", id="reasoning"),
        pytest.param(
            {"input_tokens": 25, "cache_read_input_tokens": None, "cache_creation_input_tokens": 20, "output_tokens": 30},
            counts(None, None, 20, 30, None),
            "input_tokens 25 excludes cached tokens",
            id="Anthropic-without-the-cached",
        ),
    ],
)
def test_inconsistent_counts_are_reported_and_kept(usage: dict[str, Any], expected: Usage, expected_message: str) -> None:
    completion = of_whole(usage=usage)
    assert completion.usage == expected
    assert expected_message in (completion.usage_fault or "")
    assert completion.reported != UNSET
    assert bytes(completion.reported) == encode(usage)


@pytest.mark.parametrize("number", ["1e400", "9" * 5000, "-1e400"], ids=["1e400", "5,000 digits", "-1e400"])
@pytest.mark.parametrize(
    ("members", "prompt"),
    [
        ('"usage":{"prompt_tokens":N}', None),
        ('"usage":{"prompt_tokens":100,"total_tokens":7,"completion_tokens":3,"of_its_own":N}', None),
        ('"usage":{"prompt_tokens":100},"timings":{"prompt_ms":N}', 100),
        ('"usage":{"prompt_tokens":N},"timings":{"cache_n":75,"prompt_n":25,"predicted_ms":N}', None),
    ],
)
def test_a_number_that_nothing_can_hold_is_as_if_it_had_not_been_reported(members: str, prompt: int | None, number: str) -> None:
    body = '{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}],' + members.replace("N", number) + "}"
    completion = parse_completion(body.encode(), URL)
    assert completion.usage == Usage(prompt_tokens=prompt)
    assert (completion.reported, completion.usage_fault) == (UNSET, None)


def test_b17_null_is_not_zero_even_after_a_hit() -> None:
    reported, silent = (
        of_whole(usage=BASE | more).usage for more in (details(cached_tokens=75), {"prompt_tokens_details": None})
    )
    assert (reported.cached_tokens, silent.cached_tokens) == (75, None)
    assert (reported.read_tokens, silent.read_tokens) == (25, None)


def test_b18_no_cached_count_is_made_up_from_times() -> None:
    timings = {"prompt_n": 100, "prompt_ms": 57_000.0, "predicted_n": 30}
    assert of_whole(usage=BASE, timings=timings).usage == replace(counts(100, None, None, 30, None), prompt_ms=57_000.0)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([TEXT, STOP, chunk(usage=BASE), "[DONE]"], id="last-chunk"),
        pytest.param(
            [TEXT, encode({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": BASE}).decode()], id="finish-chunk"
        ),
        pytest.param(
            [
                encode(
                    {"choices": [{"delta": {"content": word}}], "usage": {"prompt_tokens": 100, "completion_tokens": n}}
                ).decode()
                for n, word in enumerate(("Do", "ne."))
            ]
            + [STOP, chunk(usage=None), chunk(usage=BASE), chunk(usage=None)],
            id="every-chunk-running",
        ),
        pytest.param(
            [TEXT, encode({"choices": [{"delta": {}, "finish_reason": "stop", "usage": BASE}]}).decode()], id="on-the-choice"
        ),
    ],
)
def test_b19_usage_in_all_four_places(events: list[str]) -> None:
    completion = of_stream(*events)
    assert completion.text == "Done."
    assert completion.usage == counts(100, None, None, 30, None)


def test_b19_no_usage_is_unknown_and_no_error() -> None:
    assert of_stream(TEXT, STOP, "[DONE]").usage == Usage()


def test_b28_both_conventions_give_one_total() -> None:
    """Prompt = cached + written + fresh, whatever the dialect counts in."""
    openai = of_whole(usage=BASE | details(cached_tokens=75)).usage
    anthropic = {"input_tokens": 25, "cache_read_input_tokens": 75, "cache_creation_input_tokens": 0, "output_tokens": 30}
    both = [openai, of_whole(usage=anthropic).usage]
    assert [each.prompt_tokens for each in both] == [100, 100]
    assert [each.read_tokens for each in both] == [25, 25]
    for usage, _ in ROWS.values():
        read = of_whole(usage=usage).usage
        assert read.prompt_tokens is not None
        assert read.prompt_tokens - (read.cached_tokens or 0) - (read.cache_write_tokens or 0) >= 0
