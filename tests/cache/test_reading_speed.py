"""The line through times: the formula by brute force, the truth inside its interval, wild times, too few."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopkit.cache import reading_line
from loopkit.errors import InvalidConfig


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 30), st.floats(0, 1000)), min_size=4, max_size=12))
def test_the_slope_is_the_median_of_all_slopes(points: list[tuple[int, float]]) -> None:
    line = reading_line([x for x, _ in points], [y for _, y in points])
    slopes = [(b - d) / (a - c) / 1000 for (a, b), (c, d) in itertools.combinations(points, 2) if a != c]
    if line is None:
        return
    assert line.seconds_per_token == pytest.approx(statistics.median(slopes))
    assert line.low <= line.seconds_per_token <= line.high
    assert line.constant == pytest.approx(statistics.median(y / 1000 - line.seconds_per_token * x for x, y in points))


def test_the_interval_is_from_the_ranks_of_the_slopes() -> None:
    tokens, ms = [1, 2, 3, 4, 10, 12, 18], [9, 15, 19, 20, 45, 55, 78]
    line = reading_line(tokens, [1000 * each for each in ms])
    assert line is not None
    slopes = sorted((d - b) / (c - a) for (a, b), (c, d) in itertools.combinations(zip(tokens, ms), 2))
    assert line.seconds_per_token == pytest.approx(4.0)
    spread = 1.959964 * math.sqrt(7 * 6 * 19 / 18)
    assert line.low == slopes[math.floor((21 - spread) / 2)]
    assert line.high == slopes[math.ceil((21 + spread) / 2)]


def test_requests_that_read_alike_make_the_interval_narrower() -> None:
    tokens, ms = [1, 1, 1, 2, 2, 2, 3, 3, 3, 3], [9.1, 12.3, 8.2, 15.7, 22.9, 17.4, 40.6, 33.8, 35.5, 28.0]
    line = reading_line(tokens, [1000 * each for each in ms])
    assert line is not None
    pairs = itertools.combinations(zip(tokens, ms), 2)
    slopes = sorted((d - b) / (c - a) for (a, b), (c, d) in pairs if a != c)
    spread = 1.959964 * math.sqrt((10 * 9 * 25 - 2 * 3 * 2 * 11 - 4 * 3 * 13) / 18)
    assert line.low == pytest.approx(slopes[math.floor((len(slopes) - spread) / 2)])
    assert line.high == pytest.approx(slopes[math.ceil((len(slopes) + spread) / 2)])


@pytest.mark.parametrize("wild", [0.0, 0.2])
def test_the_truth_lies_in_the_interval_as_often_as_it_says(wild: float) -> None:
    chance = np.random.default_rng(7)
    inside = 0
    for _ in range(300):
        tokens = np.concatenate([chance.integers(20, 60, 30), chance.integers(500, 4000, 10)])
        ms = 12 + 0.25 * tokens + chance.normal(0, 5, 40)
        ms = np.where(chance.random(40) < wild, ms + chance.exponential(400, 40), ms)
        line = reading_line(tokens, ms)
        assert line is not None
        inside += line.low <= 0.00025 <= line.high
        assert wild or line.constant == pytest.approx(0.012, abs=0.006)
    assert inside >= 0.92 * 300


def test_too_few_or_all_alike_is_no_line() -> None:
    assert reading_line([], []) is None
    assert reading_line([1, 2, 3], [1, 2, 3]) is None
    assert reading_line([5] * 100, list(range(100))) is None
    assert reading_line([5] * 9 + [6], list(range(10))) is None, "one pair of values is no interval"
    assert reading_line([1, 2, 3, 4], [1, 2, 3, 4]) is not None


def test_what_is_not_known_is_left_out() -> None:
    line = reading_line([10, 20, math.nan, 30, 40, 50], [10, 20, 7, math.nan, 40, 50])
    assert line is not None
    assert line.requests == 4
    assert line.seconds_per_token == pytest.approx(0.001)
    assert line.seconds(100) == pytest.approx(0.1)


def test_many_are_thinned_evenly() -> None:
    tokens = np.random.default_rng(1).permutation(np.arange(1, 100_001))
    line = reading_line(tokens, 7 + 0.5 * tokens)
    assert line is not None
    assert line.requests == 100_000
    assert line.seconds_per_token == pytest.approx(0.0005)


@pytest.mark.parametrize(
    ("tokens", "ms"), [([1, 2, 3], [1, 2]), (["a"] * 5, [1] * 5), (np.ones((3, 3)), np.ones((3, 3))), (None, None), ([[]], [1])]
)
def test_what_are_no_two_rows_of_numbers_is_refused(tokens: Any, ms: Any) -> None:
    with pytest.raises(InvalidConfig, match="reading_line: "):
        reading_line(tokens, ms)
