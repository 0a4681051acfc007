"""A card's line: short, with whole numbers, and nothing left out without a word."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from loopkit.cache.losses.findings import Coverage, Findings
from loopkit.cache.pricing import Prices, cost
from loopkit.contract.records import CacheLoss, ToolResult
from loopkit.logs.loading import load
from loopkit.reprs import WIDTH, Card
from tests.memory.make import LIGHT, PERU, QUESTION, Model, build, filled

NUMBERS = st.integers(0, 10**15).map("{:,}".format)
FACTS = st.lists(st.tuples(st.text("abc_", max_size=12), NUMBERS | st.text(max_size=200)), max_size=12)


@given(st.text(max_size=200), FACTS)
def test_a_line_has_whole_facts_or_says_how_many_it_left_out(title: str, facts: list[tuple[str, str]]) -> None:
    card = Card(title, facts)
    line, counted = card.text(), re.search(r"… (\d+) more$", card.text())
    assert len(line) <= WIDTH
    assert line.isprintable() or not line
    if len(card.whole()) <= WIDTH:
        assert line == card.whole()
    left = int(counted[1]) if counted else 0
    for name, value in facts[: len(facts) - left]:
        if value[:1].isdigit():
            assert "".join(char if char.isprintable() else "·" for char in f"{name} {value}") in line


def test_what_a_turn_and_a_memory_give_shows_itself_in_one_line(tmp_path: Path) -> None:
    memory = filled(tmp_path, 3)
    build(memory, Model())
    time = "2026-11-30T07:31:00.000Z"
    result = ToolResult(
        time=time, call=1, tool_call_id="c", name="look", content="It\n\x1b[1m " * 99, truncated=False, status="ok"
    )
    facts: dict[str, Any] = {"expected_tokens": 9_000, "expected_exact": True, "reusable_tokens": None, "cached_tokens": 0}
    facts |= {"lost_tokens": 9_000, "cause": "expired", "certainty": "confirmed", "fixable_by": "nobody", "location": "w" * 200}
    lost = CacheLoss(time=time, request=7, evidence={"gap": 1}, **facts)
    for each in (result, lost, memory.recall("Lima")[0], memory.build(PERU, LIGHT, QUESTION, model=Model())):
        line = repr(each)
        assert line.startswith(type(each).__name__)
        assert len(line) <= WIDTH
        assert line.isprintable()
        assert "UNSET" not in line
    assert "lost_tokens 9,000, cause expired" in repr(lost)


def test_spare_facts_go_first() -> None:
    facts = [(name, f"{10**9:,}") for name in ("sessions", "turns", "requests", "read", "lost")]
    assert Card("Logs", facts, spare=("turns",)).text().endswith("read 1,000,000,000, lost 1,000,000,000, … 1 more")


def test_coverage_and_the_largest_costs_are_never_hidden() -> None:
    assert repr(Findings((), 7, Coverage(0.5, 0.25, 0.125))).endswith("lost with a cause 12%")
    counts = {"prompt_tokens": [10**9], "cached_tokens": [0], "cache_write_tokens": [0], "completion_tokens": [10**9]}
    prices = Prices(uncached=3, cached=0.3, cache_write=1, output=15)
    priced = cost(counts, prices)
    assert "output 15,000" in repr(priced)
    assert str(priced).count(",") >= repr(priced).count(",")


def test_what_logs_read_and_lost_is_in_their_line_however_many_there_are() -> None:
    foreign = load(Path(__file__).parents[1] / "data" / "foreign", errors="report")
    assert re.search(r", processed [\d,]+ of [\d,]+ prompt tokens \(.*\), lost [\d,]+, … \d more$", repr(foreign))
