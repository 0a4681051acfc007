"""vLLM: whole blocks, and completions that some of its models do not keep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loopkit.cache.losses.expected import estimated_block, expect
from loopkit.cache.losses.findings import diagnose
from loopkit.contract.records import Usage
from loopkit.engines.evidence.observation import Observation
from tests.engines.observations import (
    Case,
    Wanted,
    check_diagnosis,
    first,
    second,
)

TABLE: list[Case] = [
    (
        "too little was written to say that it is not kept",
        replace(first(after=None, tokens=None), engine="vllm", usage=Usage(prompt_tokens=4100, completion_tokens=31)),
        replace(second(0, before=None, engine="vllm", tokens=None), usage=Usage(prompt_tokens=5000, cached_tokens=4096)),
        [],
        ("unexplained", "unexplained", None, None),
    ),
    (
        "an engine that keeps prompts alone",
        replace(first(after=None, tokens=None), engine="vllm", usage=Usage(prompt_tokens=4100, completion_tokens=700)),
        replace(second(0, before=None, engine="vllm", tokens=None), usage=Usage(prompt_tokens=5000, cached_tokens=4096)),
        [],
        ("generation_not_cached", "suspected", "server", "completion"),
    ),
]


@pytest.mark.parametrize(("name", "previous", "now", "between", "wanted"), TABLE, ids=[row[0] for row in TABLE])
def test_table(name: str, previous: Observation, now: Observation, between: list[Observation], wanted: Wanted) -> None:
    check_diagnosis(previous, now, between, wanted)


def test_b20_a_shortfall_of_a_block_is_no_loss() -> None:
    before, now = Usage(prompt_tokens=8702, cached_tokens=6592), Usage(prompt_tokens=9155, cached_tokens=6592)
    assert expect(before, now, "vllm", block=1648).lost_tokens == 0
    assert expect(before, now, "vllm", block=16).lost_tokens > 0
    assert estimated_block([1648, 6592, 4944]) == 1648


def test_a_block_is_told_to_diagnose_as_to_expect() -> None:
    usages = Usage(prompt_tokens=1000), Usage(prompt_tokens=1300, cached_tokens=512)
    requests = [Observation(usage=usage, engine="vllm") for usage in usages]
    assert [loss.expected_tokens for loss in diagnose(requests).losses] == [992]
    assert [loss.expected_tokens for loss in diagnose(requests, block=100).losses] == [1000]
    assert not diagnose(requests, block=512).losses, "all of the one block that there is"


def test_an_engine_that_keeps_prompts_alone_is_one_finding_a_session() -> None:
    counts = [(100, 0, 40), (160, 96, 20), (230, 160, 40), (300, 224, 9), (350, 0, 9)]
    usages = [Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=written) for prompt, cached, written in counts]
    requests = [Observation(usage=usage, engine="vllm", session="a", request=at) for at, usage in enumerate(usages, 1)]
    found = diagnose(requests).losses
    assert [(loss.observation.request, loss.diagnosis.cause, loss.lost_tokens) for loss in found] == [
        (2, "generation_not_cached", 32),
        (5, "unexplained", 288),  # of the prompt alone
    ]
    later = expect(usages[1], usages[2], "vllm", completions_kept=False)
    assert later == (160, True, 0, "generation_not_cached")
    assert expect(usages[1], usages[2], "vllm").lost_tokens == 16
    other = [replace(each, session="b") for each in requests[:2]]
    assert [loss.observation.session for loss in diagnose([*requests[:2], *other]).losses] == ["a", "b"]


@pytest.mark.parametrize(
    ("cached", "wanted"),
    [(128, (128, True, 0, "granularity")), (112, (128, True, 16, None))],
)
def test_expected_tokens_are_whole_blocks(cached: int, wanted: tuple[object, ...]) -> None:
    before, now = Usage(prompt_tokens=100, cached_tokens=0, completion_tokens=30), Usage(prompt_tokens=200, cached_tokens=cached)
    assert tuple(expect(before, now, "vllm")) == wanted
