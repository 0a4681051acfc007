"""OpenAI: a minimum of 1,024 tokens, blocks of 128, times to live, routing."""

from __future__ import annotations

import pytest

from loopkit import engines
from loopkit.cache.losses.expected import expect
from loopkit.cache.losses.judge import judge
from loopkit.contract.records import Usage
from loopkit.engines.evidence.observation import Observation
from tests.engines.observations import hosted

OPENAI = engines.find("openai")


@pytest.mark.parametrize(
    ("requests", "wanted"),
    [
        (hosted("openai", 0), ("routed_elsewhere", "suspected", "provider")),
        (hosted("openai", 2048), ("evicted", "suspected", "provider")),
        (hosted("openai", 0, minutes=30), ("routed_elsewhere", "suspected", "provider")),  # within an hour it may still be there
        (hosted("openai", 0, minutes=62), ("expired", "suspected", "provider")),
        (hosted("openai", 0, elapsed_ms=90_000.0), ("concurrent_first_write", "suspected", "client")),
    ],
)
def test_table(requests: tuple[Observation, Observation], wanted: tuple[str, str, str]) -> None:
    assert judge(*requests)[:3] == wanted


@pytest.mark.parametrize(
    ("previous", "prompt", "cached", "wanted"),
    [
        (900, 1000, 0, (0, False, 0, "below_minimum")),
        (1023, 1200, 0, (0, False, 0, "below_minimum")),
        (1100, 1300, 1024, (1024, False, 0, "granularity")),
        (1100, 1300, 0, (1024, False, 1024, None)),
        (2000, 2300, 1792, (1920, False, 0, "granularity")),  # within two blocks
        (2000, 2300, 1664, (1920, False, 256, None)),
    ],
)
def test_expected_tokens(previous: int, prompt: int, cached: int, wanted: tuple[object, ...]) -> None:
    before, now = Usage(prompt_tokens=previous, completion_tokens=10), Usage(prompt_tokens=prompt, cached_tokens=cached)
    assert tuple(expect(before, now, "openai")) == wanted


def test_retention_per_setting() -> None:
    assert OPENAI.retention == OPENAI.retentions["in_memory"] == (300.0, 3600.0, None)
    assert OPENAI.retentions["24h"].gone_after == 86_400.0
    assert OPENAI.cache_write_seconds() is None, "writes are not paid by time"
