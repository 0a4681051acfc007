"""Hosted providers: the rules that they share, and the facts of DeepSeek and Gemini."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loopkit import engines
from loopkit.cache.losses.judge import judge
from loopkit.contract.records import Usage
from tests.engines.observations import hosted

HOSTED = [engine.name for engine in engines.ENGINES if engine.hosted]
VERDICTS = {word: found for each in engines.ENGINES for word, found in each.verdicts.items()}


def test_the_providers() -> None:
    assert set(HOSTED) == {"anthropic", "openai", "deepseek", "gemini"}


@pytest.mark.parametrize("engine", HOSTED)
def test_rules_that_all_share(engine: str) -> None:
    before, now = hosted(engine, 0)
    assert judge(before, now).cause == "routed_elsewhere"
    assert judge(before, replace(now, usage=Usage(prompt_tokens=5100, cached_tokens=2048))).cause == "evicted"
    assert judge(replace(before, model="x"), replace(now, model="y"))[:3] == ("model_changed", "confirmed", "client")
    assert judge(*hosted(engine, 0, elapsed_ms=90_000.0)).cause == "concurrent_first_write"
    assert judge(replace(before, kept_seconds=30.0), now).cause == "expired"
    assert judge(replace(before, body=None), replace(now, body=None)).cause == "unexplained"
    shorter = Usage(prompt_tokens=4000, cached_tokens=0)
    assert judge(replace(before, body=None), replace(now, body=None, usage=shorter)).cause == "history_changed"


@pytest.mark.parametrize("engine", ["deepseek", "gemini"])
def test_without_a_time_limit_nothing_expires(engine: str) -> None:
    found = engines.find(engine)
    assert (found.retention, found.exact, found.minimum, found.cache_write_seconds()) == (None, False, 0, None)
    assert judge(*hosted(engine, 0, minutes=600)).cause == "routed_elsewhere"


def test_minimums_of_gemini_are_those_of_the_documentation() -> None:
    assert engines.find("gemini").minimums["2.5-pro"] == 2048
    assert engines.find("gemini").retentions["explicit"].gone_after == 3600.0


@pytest.mark.parametrize("word", sorted(VERDICTS))
def test_a_verdict_wins_and_the_own_diagnosis_is_in_the_evidence(word: str) -> None:
    before, now = hosted("anthropic", 0, verdict=word)
    found = judge(before, now)
    assert (found.cause, found.certainty, found.fixable_by) == (VERDICTS[word][0], "confirmed", VERDICTS[word][1])
    assert found.evidence["ours"]["cause"] == "routed_elsewhere"


def test_an_unknown_verdict_changes_nothing() -> None:
    before, now = hosted("openai", 0)
    assert judge(before, replace(now, verdict="cosmic_rays")) == judge(before, now)
