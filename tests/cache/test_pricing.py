"""Money and seconds: sums that can be done by hand, and what is not known is not 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from loopkit.cache import Observation, Prices, cost
from loopkit.contract.records import Usage
from loopkit.errors import InvalidConfig
from loopkit.logs.loading import load
from tests.logs.make import kept, replay, start, write, write_session

WRITTEN = Prices(uncached=3, cached=0.3, cache_write=3.75, output=15)
PLAIN = Prices(uncached=3, cached=0.3, cache_write=None, output=15)


def frame(**columns: list[Any]) -> pd.DataFrame:
    return pd.DataFrame(columns).convert_dtypes()


def test_each_kind_of_token_at_its_price() -> None:
    made = frame(
        prompt_tokens=[1_000_000],
        cached_tokens=[600_000],
        cache_write_tokens=[300_000],
        completion_tokens=[10_000],
        lost_tokens=[0],
    )
    found = cost(made, WRITTEN)
    assert found.parts == pytest.approx({"uncached": 0.3, "cached": 0.18, "cache_write": 1.125, "output": 0.15})
    assert found.spent == pytest.approx(1.755)
    assert (found.lost, found.lost_tokens, found.lost_seconds) == (0, 0, None)
    plain = cost(made, PLAIN)
    assert plain.parts == pytest.approx({"uncached": 1.2, "cached": 0.18, "cache_write": 0, "output": 0.15})


def test_a_loss_costs_what_writing_and_reading_cost_above_the_cached_price() -> None:
    made = frame(
        prompt_tokens=[1_000_000] * 2,
        cached_tokens=[0, 0],
        cache_write_tokens=[200_000, 900_000],
        completion_tokens=[1, 1],
        lost_tokens=[500_000, 500_000],
    )
    first, second = (cost(made.iloc[[at]], WRITTEN).lost for at in (0, 1))
    assert first == pytest.approx(0.2 * 3.75 + 0.3 * 3 - 0.5 * 0.3)
    assert second == pytest.approx(0.5 * 3.75 - 0.5 * 0.3)
    assert cost(made, PLAIN).lost == pytest.approx(2 * 0.5 * (3 - 0.3))


def test_what_is_not_reported_is_not_priced_and_said() -> None:
    made = frame(
        prompt_tokens=[1000, 1000, None, 1000],
        cached_tokens=[0, None, 0, 0],
        completion_tokens=[0, 0, 0, None],
        lost_tokens=[0, None, None, 500],
    )
    found = cost(made, PLAIN)
    assert (found.requests, found.priced) == (4, 1)
    assert found.spent == pytest.approx(0.003)
    assert (found.judged, found.lost_tokens) == (2, 500)
    assert repr(found).startswith("Cost of 4 requests: spent 0.003 (1 priced), lost 500 tokens for 0.00135 (2 judged)")
    with_a_price_of_writing = cost(made, WRITTEN)
    assert (with_a_price_of_writing.priced, with_a_price_of_writing.spent) == (0, None)
    assert with_a_price_of_writing.judged == 1, "no loss costs nothing; what one costs depends on what was written"
    assert repr(with_a_price_of_writing) == "Cost of 4 requests: spent unknown (0 priced), lost unknown (1 judged)"
    nothing = cost({"prompt_tokens": []}, PLAIN)
    assert (nothing.spent, nothing.lost, nothing.lost_tokens) == (None, None, None)
    assert repr(nothing) == "Cost of 0 requests: spent unknown, lost unknown"


def test_losses_in_seconds_by_each_servers_own_line() -> None:
    read = [100, 200, 400, 800, 1600]
    made = frame(
        prompt_tokens=read * 2 + [50, 50],
        cached_tokens=[0] * 12,
        completion_tokens=[1] * 12,
        lost_tokens=[0, 0, 0, 0, 1000] * 2 + [40, 0],
        prompt_ms=[10 + each for each in read] + [10 + 4 * each for each in read] + [50.0, 50.0],
        model=["slate"] * 5 + ["chalk"] * 5 + ["new", "new"],
    )
    found = cost(made, PLAIN)
    assert list(found.lines) == ["slate", "chalk"]
    assert found.lines["chalk"].seconds_per_token == pytest.approx(0.004)
    assert found.lost_seconds == pytest.approx(1 + 4)
    assert found.lost_seconds_interval == pytest.approx((5, 5))
    assert (found.timed_tokens, found.lost_tokens) == (2000, 2040)


def test_requests_as_diagnose_takes_them() -> None:
    def seen(session: str, prompt: int, cached: int | None) -> Observation:
        return Observation(
            session=session, engine="llama.cpp", usage=Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=11)
        )

    found = cost([seen("a", 1000, 0), seen("b", 90, None), seen("a", 1200, 10), seen("b", 100, None)], PLAIN)
    assert (found.priced, found.judged, found.lost_tokens) == (2, 2, 1000)


def test_text_and_html_say_the_same() -> None:
    found = cost(frame(prompt_tokens=[10], cached_tokens=[0], completion_tokens=[1], lost_tokens=[0]), PLAIN)
    card = found._card()
    assert repr(found).startswith(f"{card.title}: ")
    assert all(value in found._repr_html_() for _, value in card.facts)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1, True, "3", None])
def test_a_price_is_a_number(bad: Any) -> None:
    with pytest.raises(InvalidConfig, match="is not a price"):
        Prices(uncached=bad, cached=0, cache_write=None, output=0)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({}, "column prompt_tokens is missing"),
        ([b"{}"], "a bytes has no usage"),
        (7, "expected Logs or a frame; got an int"),
        ({"prompt_tokens": ["many"]}, "expected numbers"),
        ({"prompt_tokens": [1], "cached_tokens": [1, 2]}, "differ in length"),
    ],
)
def test_what_is_no_frame_is_refused(bad: Any, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        cost(bad, PLAIN)


@pytest.mark.parametrize("counts", [(10, 20, 0, 1), (10, 8, 5, 1), (-5, 0, 0, 1), (10, -1, 0, 1), (10, 0, 0, -1)])
def test_counts_that_cannot_be_are_no_credit(counts: tuple[int, ...]) -> None:
    names = ("prompt_tokens", "cached_tokens", "cache_write_tokens", "completion_tokens")
    prices = Prices(uncached=3, cached=0.3, cache_write=3.75, output=15)
    sound = cost({name: [each] for name, each in zip(names, (10, 0, 0, 1), strict=True)}, prices)
    both = cost({name: [good, each] for name, good, each in zip(names, (10, 0, 0, 1), counts, strict=True)}, prices)
    assert (both.requests, both.priced, both.spent) == (2, 1, sound.spent)
    gained = cost({"prompt_tokens": [10], "cached_tokens": [0], "completion_tokens": [1], "lost_tokens": [-3]}, PLAIN)
    assert (gained.judged, gained.lost) == (0, None)


def test_logs_count_without_their_replays(tmp_path: Path) -> None:
    write_session(tmp_path, "a", [start("a", 0), *kept(3)])
    write(tmp_path / "replays/r.jsonl", replay(None, 3))
    logs = load(tmp_path)
    assert set(logs.sessions["source"]) == {"loopkit", "replay"}
    assert cost(logs, PLAIN).requests == 3
    assert cost(logs.usage, PLAIN).requests == 6


def test_losses_without_a_price_are_unknown_and_not_free() -> None:
    """A log that reports no cache writes, priced with a price for writes: the loss has no price."""
    columns = {"prompt_tokens": [1000, 1100], "cached_tokens": [0, 0], "completion_tokens": [5, 5], "lost_tokens": [0, 900]}
    found = cost(columns, WRITTEN)
    assert (found.priced, found.spent, found.judged, found.lost_tokens, found.lost) == (0, None, 1, None, None)
    assert "lost unknown" in repr(found)
    assert cost(columns, PLAIN).lost_tokens == 900
    assert cost({**columns, "lost_tokens": [0, 0]}, WRITTEN).lost == 0, "no loss costs nothing, whatever was written"
