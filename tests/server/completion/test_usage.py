from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopkit.contract.records import Usage
from loopkit.encoding import decode, encode
from loopkit.server.completion.usage import DIALECTS, normalise

OPENAI = {
    "prompt_tokens": 1200,
    "completion_tokens": 30,
    "total_tokens": 1230,
    "prompt_tokens_details": {"cached_tokens": 1024, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 12},
}
LLAMA = {"prompt_tokens": 23, "completion_tokens": 5, "total_tokens": 28, "prompt_tokens_details": {"cached_tokens": 20}}
TIMINGS = {"cache_n": 20, "prompt_n": 3, "prompt_ms": 4.5, "predicted_n": 5, "predicted_ms": 10.25}


@pytest.mark.parametrize(
    ("usage", "prompt", "cached", "written", "completion", "reasoning"),
    [
        pytest.param(OPENAI, 1200, 1024, None, 30, 12, id="OpenAI"),
        pytest.param(LLAMA, 23, 20, None, 5, None, id="llama.cpp"),
        pytest.param(
            {"prompt_tokens": 25, "completion_tokens": 1, "prompt_tokens_details": None}, 25, None, None, 1, None, id="null"
        ),
        pytest.param({"prompt_tokens": 25, "prompt_tokens_details": {"cached_tokens": 0}}, 25, 0, None, None, None, id="zero"),
        pytest.param(
            {"prompt_tokens": 25, "prompt_tokens_details": {"cached_tokens": None}}, 25, None, None, None, None, id="no-count"
        ),
        pytest.param({"prompt_tokens": 25}, 25, None, None, None, None, id="absent"),
        pytest.param(
            {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4, "created_cache_tokens": 5}},
            9,
            4,
            5,
            None,
            None,
            id="vLLM",
        ),
        pytest.param({"prompt_tokens": 9, "completion_tokens": 3, "reasoning_tokens": 2}, 9, None, None, 3, 2, id="SGLang"),
        pytest.param(
            {"prompt_tokens": 9, "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 5},
            9,
            4,
            None,
            None,
            None,
            id="DeepSeek",
        ),
        pytest.param({"prompt_tokens": 9, "cached_tokens": 4}, 9, 4, None, None, None, id="Moonshot"),
        pytest.param({"prompt_tokens": 9, "num_cached_tokens": 4}, 9, 4, None, None, None, id="Mistral"),
        pytest.param(
            {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2}},
            9,
            4,
            2,
            None,
            None,
            id="OpenRouter",
        ),
        pytest.param(
            {
                "prompt_tokens": 9,
                "completion_tokens": 3,
                "total_tokens": 22,
                "completion_tokens_details": {"reasoning_tokens": 10},
            },
            9,
            None,
            None,
            13,
            10,
            id="xAI",
        ),
        pytest.param(
            {"input_tokens": 5, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 7, "output_tokens": 8},
            32,
            20,
            7,
            8,
            None,
            id="Anthropic",
        ),
        pytest.param(
            {"input_tokens": 50, "input_tokens_details": {"cached_tokens": 20}, "output_tokens": 8},
            50,
            20,
            None,
            8,
            None,
            id="Responses",
        ),
        pytest.param({"prompt_tokens": 25.0}, 25, None, None, None, None, id="a-float"),
        pytest.param({}, None, None, None, None, None, id="empty"),
        pytest.param(None, None, None, None, None, None, id="none"),
    ],
)
def test_dialects(usage: dict[str, Any] | None, prompt: Any, cached: Any, written: Any, completion: Any, reasoning: Any) -> None:
    read = normalise(usage)
    assert read.fault is None
    assert read.usage == Usage(
        prompt_tokens=prompt,
        cached_tokens=cached,
        cache_write_tokens=written,
        completion_tokens=completion,
        reasoning_tokens=reasoning,
    )


def test_llama_cpp_whole() -> None:
    read = normalise(LLAMA, TIMINGS)
    assert read.fault is None
    assert read.usage == Usage(prompt_tokens=23, cached_tokens=20, completion_tokens=5, prompt_ms=4.5, predicted_ms=10.25)


def test_timings_alone_are_enough() -> None:
    read = normalise(None, TIMINGS)
    assert (read.usage.prompt_tokens, read.usage.cached_tokens, read.usage.completion_tokens) == (23, 20, 5)
    assert read.fault is None


def test_timings_without_cache_n_give_no_cached_count() -> None:
    read = normalise({"prompt_tokens": 23}, {"prompt_n": 3, "prompt_ms": 4.5})
    assert (read.usage.prompt_tokens, read.usage.cached_tokens, read.usage.prompt_ms) == (23, None, 4.5)


@pytest.mark.parametrize("value", [10**309, 1e300, float("inf"), float("nan"), -1, True, "4.5"])
def test_a_time_that_is_none_is_left_out(value: object) -> None:
    assert normalise({"prompt_tokens": 23}, {"prompt_n": 3, "prompt_ms": value}).usage == Usage(prompt_tokens=23)


@pytest.mark.parametrize(
    ("usage", "timings", "expected", "expected_message"),
    [
        pytest.param({"prompt_tokens": 30}, TIMINGS, (23, 20), "prompt is 30", id="prompt"),
        pytest.param(
            {**LLAMA, "prompt_tokens_details": {"cached_tokens": 7}}, TIMINGS, (23, 20), "timings report 20", id="cached"
        ),
        pytest.param({"prompt_tokens": 5, "prompt_cache_hit_tokens": 20}, None, (5, None), "cached tokens 20", id="inclusive"),
        pytest.param({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 9}, None, (5, None), "total is 9", id="total"),
        pytest.param({"prompt_tokens": "5"}, None, (None, None), "not a count", id="text"),
        pytest.param({"prompt_tokens": -1}, None, (None, None), "not a count", id="negative"),
        pytest.param({"prompt_tokens": True}, None, (None, None), "not a count", id="bool"),
        pytest.param({"prompt_tokens": 1 << 63}, None, (None, None), "not a count", id="too-large"),
        pytest.param(
            {"prompt_tokens": 1, "completion_tokens": 2, "reasoning_tokens": 3}, None, (1, None), "reasoning", id="reasoning"
        ),
    ],
)
def test_inconsistent_counts_are_reported(usage: Any, timings: Any, expected: Any, expected_message: str) -> None:
    read = normalise(usage, timings)
    assert (read.usage.prompt_tokens, read.usage.cached_tokens) == expected
    assert read.fault is not None
    assert expected_message in read.fault


def test_the_sample_of_every_dialect_states_whether_the_prompt_includes_the_cached() -> None:
    assert {dialect.name: dialect.inclusive for dialect in DIALECTS} == {
        "chat completions": True,
        "Anthropic": False,
        "Responses": True,
    }


counts = st.none() | st.integers(-2, 1 << 64) | st.floats(allow_nan=True) | st.booleans() | st.sampled_from(["", "5"])
names = sorted({path.split(".")[0] for each in DIALECTS for path in (each.prompt, each.completion, *each.cached, *each.written)})


@given(
    st.none() | st.dictionaries(st.sampled_from(names), counts | st.dictionaries(st.just("cached_tokens"), counts)),
    st.none() | st.dictionaries(st.sampled_from(sorted(TIMINGS)), counts),
)
def test_whatever_came_the_usage_can_be_logged(usage: Any, timings: Any) -> None:
    read = normalise(usage, timings)
    assert decode(encode(read.usage), Usage) == read.usage
    prompt, cached = read.usage.prompt_tokens, read.usage.cached_tokens
    assert prompt is None or cached is None or cached <= prompt
