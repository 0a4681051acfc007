"""Anthropic: break points and their look-back, two times to live, its own words for a miss."""

from __future__ import annotations

import pytest

from loopkit import engines
from loopkit.cache.losses.expected import expect
from loopkit.cache.losses.judge import judge
from loopkit.contract.records import Usage
from loopkit.engines.evidence.observation import Observation
from tests.engines.observations import A1, U1, U2, body, hosted

ANTHROPIC = engines.find("anthropic")


@pytest.mark.parametrize(
    ("requests", "wanted"),
    [
        (hosted("anthropic", 0, minutes=10), ("expired", "suspected", "provider")),
        (hosted("anthropic", 0, body=body(U1, *[A1, U2] * 12)), ("lookback", "confirmed", "client")),
        (hosted("anthropic", 0, body=body(U1, *[A1, U2] * 10)), ("routed_elsewhere", "suspected", "provider")),  # 20 blocks
        (hosted("anthropic", 0, minutes=4), ("routed_elsewhere", "suspected", "provider")),
        (hosted("anthropic", 0, verdict="unavailable"), ("routed_elsewhere", "suspected", "provider")),
    ],
)
def test_table(requests: tuple[Observation, Observation], wanted: tuple[str, str, str]) -> None:
    assert judge(*requests)[:3] == wanted


def test_the_next_request_finds_what_was_read_and_written() -> None:
    previous = Usage(prompt_tokens=5000, cached_tokens=3000, cache_write_tokens=1500, completion_tokens=90)
    assert ANTHROPIC.kept(previous) == (4500, 1, True)
    assert expect(previous, Usage(prompt_tokens=5200, cached_tokens=4400), "anthropic").lost_tokens == 100
    unknown = previous.__class__(prompt_tokens=5000, cached_tokens=3000)
    assert ANTHROPIC.kept(unknown) == (5000, 128, False)


def test_retention_per_setting() -> None:
    assert ANTHROPIC.retention == ANTHROPIC.retentions["5m"]
    assert {name: each.gone_after for name, each in ANTHROPIC.retentions.items()} == {"5m": 300.0, "1h": 3600.0}
    assert {each.counted_from for each in ANTHROPIC.retentions.values()} == {"request"}
    assert (ANTHROPIC.cache_write_seconds(), ANTHROPIC.cache_write_seconds(one_hour=True)) == (300.0, 3600.0)


@pytest.mark.parametrize("minutes", [10, 59])
def test_a_write_for_an_hour_outlives_five_minutes(minutes: int) -> None:
    before, now = hosted("anthropic", 0, minutes=minutes)
    kept = Observation(usage=before.usage, engine="anthropic", body=before.body, time=before.time, kept_seconds=3600.0)
    assert judge(kept, now).cause == "routed_elsewhere"


def test_its_verdict_agrees_with_the_bytes() -> None:
    found = judge(*hosted("anthropic", 0, body=body({**U1, "content": "Ha."}, A1, U2), verdict="messages_changed"))
    assert (found.cause, found.location) == ("history_changed", "messages[1].content")
    assert "ours" not in found.evidence


def test_minimums_are_those_of_the_documentation() -> None:
    assert set(ANTHROPIC.minimums.values()) == {512, 1024, 2048, 4096}
    assert ANTHROPIC.minimum == 0, "expectations do not use the minimum per model yet"
