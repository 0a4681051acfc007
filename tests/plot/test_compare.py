"""Bars are the middle of the repeats; what stands beside them says why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure

from loopkit.errors import InvalidConfig
from loopkit.logs.frames.arrays import dtypes
from loopkit.plot import compare
from tests.plot.artists import HOSTILE, drawn, legend, texts

NEW, LOST, REUSED = "new", "lost (processed again)", "reused from the cache"


def run(variant: str, requests: int, *, repeat: int = 1, lost: int = 0, **more: Any) -> pd.DataFrame:
    """A run whose last requests lost all of their cache."""
    number = np.arange(1, requests + 1)
    prompt = 800 + 100 * number
    expected = np.where(number == 1, 0, prompt - 100)
    loses = number > requests - lost
    cached = np.where(loses, 0, expected)
    columns = {
        "session": "a",
        "request": number,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "read_tokens": prompt - cached,
        "lost_tokens": expected - cached,
        "ttft_ms": 20.0,
    }
    made = pd.DataFrame(columns).astype({name: kind for name, kind in dtypes("usage").items() if name in columns})
    cause, certainty = (pd.Series([said if each else None for each in loses]) for said in ("system_changed", "confirmed"))
    return made.assign(variant=variant, repeat=repeat, cause=cause, certainty=certainty, **{"cold": True, **more})


def frame(*runs: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([run.astype({"variant": "string", "cause": "string", "certainty": "string"}) for run in runs])


def widths(ax: Axes) -> dict[str, list[float]]:
    return {
        str(bars.get_label()): [float(bar.get_width()) for bar in bars]
        for bars in ax.containers
        if isinstance(bars, BarContainer)
    }


def test_bars_are_the_sums_of_each_variant() -> None:
    ax = compare(frame(run("unchanged", 4), run("live_system", 4, lost=3)))
    assert widths(ax) == {NEW: [1200, 1200], LOST: [0, 3000], REUSED: [3000, 0]}
    assert [float(bar.get_x()) for bars in ax.containers for bar in bars] == [0, 0, 1200, 1200, 1200, 4200], (
        "what was read comes first"
    )
    assert [label.get_text() for label in ax.get_yticklabels()] == ["unchanged", "live_system"]
    beside = ["processed 1,200 tokens\ntime to first token 20 ms"]
    beside += ["processed 4,200 tokens\ntime to first token 20 ms\nsystem_changed × 3 (confirmed)"]
    assert texts(ax) == beside
    assert legend(ax) == [NEW, LOST, REUSED]
    assert ax.get_title() == "live_system processed 3.5 times as many prompt tokens as unchanged"
    assert ax.get_xlabel() == "prompt tokens of all requests"
    assert drawn(ax)


def test_repeats_have_a_middle_and_a_whisker() -> None:
    runs = [run("shuffled", 4, repeat=at, lost=lost, ttft_ms=float(lost)) for at, lost in enumerate((1, 2, 3), 1)]
    ax = compare(frame(run("unchanged", 4), *runs))
    assert widths(ax)[LOST] == [0, 2100]
    [whisker] = [each for each in ax.containers if isinstance(each, ErrorbarContainer)]
    [bars] = whisker.lines[2]
    assert np.asarray(bars.get_segments()).tolist() == [[[2300, 1], [4200, 1]]]
    assert legend(ax)[-1] == "processed, fewest to most of 3 repeats"
    assert texts(ax)[1].split("\n")[:2] == ["processed 3,300 (2,300 to 4,200) tokens", "time to first token 2 (1 to 3) ms"]
    assert texts(ax)[1].split("\n")[2] == "system_changed × 2 per run (confirmed)"


def test_what_is_not_known_is_not_zero() -> None:
    ax = compare(frame(run("silent", 3, cached_tokens=pd.array([None] * 3, "Int64"), ttft_ms=pd.array([None] * 3, "Float64"))))
    assert widths(ax) == {"unknown": [3000]}
    assert texts(ax) == ["processed tokens not reported"]
    assert drawn(ax)


def test_nothing_is_drawn_of_runs_of_which_nothing_is_known() -> None:
    missing = pd.array([None] * 2, "Int64")
    counts: dict[str, Any] = dict.fromkeys(("prompt_tokens", "cached_tokens", "lost_tokens"), missing)
    for known in (counts, dict.fromkeys(counts, pd.array([0, 0], "Int64"))):
        ax = compare(frame(run("a", 2).assign(**known)))
        assert widths(ax) == {}
        assert ax.get_legend() is None
        assert drawn(ax)


def test_no_more_is_lost_than_was_read_and_the_cause_of_most_tokens_comes_first() -> None:
    made = run("a", 4, lost=3).assign(
        cause=["", "slot_taken", "slot_taken", "evicted"], lost_tokens=pd.array([0, 5, 5, 5000], "Int64")
    )
    ax = compare(frame(made))
    assert widths(ax) == {NEW: [900 + 995 + 1095], LOST: [5 + 5 + 1200]}
    assert texts(ax)[0].split("\n")[2:] == ["evicted × 1 (confirmed)", "slot_taken × 2 (confirmed)"]


def test_a_run_that_did_not_begin_cold_is_marked() -> None:
    ax = compare(frame(run("a", 2), run("b", 2, cold=False)))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b (not cold)"]
    assert ax.get_title() == "all variants processed the same number of prompt tokens"


def test_where_there_is_little_room_the_cause_stays() -> None:
    ax = Figure(figsize=(6, 2.2)).subplots()
    compare(frame(*[run(f"v{at}", 4, lost=2) for at in range(5)]), ax)
    assert {len(text.split("\n")) for text in texts(ax)} == {2}
    assert all("system_changed × 2" in text for text in texts(ax))


def test_names_are_shown_as_they_are() -> None:
    ax = compare(frame(run(HOSTILE, 2, lost=1).assign(cause="$a$")))
    assert ax.get_yticklabels()[0].get_text() == "$\\frac{$ <b>··x"
    assert "$a$ × 1 (confirmed)" in texts(ax)[0]
    assert drawn(ax)


@pytest.mark.parametrize("requests", [3, 30, 3000])
def test_few_and_many(requests: int) -> None:
    ax = compare(frame(*[run(f"v{at}", requests, lost=requests // 3 * at) for at in range(3)]))
    assert len(ax.patches) == 9
    assert drawn(ax)


def test_no_rows() -> None:
    ax = compare(frame(run("a", 3)).iloc[:0])
    assert ax.get_title() == "no requests"
    assert drawn(ax)


def test_the_axes_given_are_used_and_what_is_no_frame_is_refused() -> None:
    mine = Figure().subplots()
    assert compare(frame(run("a", 2)), mine) is mine
    with pytest.raises(InvalidConfig, match="lacks the columns variant, repeat, prompt_tokens"):
        compare(pd.DataFrame({"x": [1]}))
    with pytest.raises(InvalidConfig, match="expected Logs or a frame; got a str"):
        compare("runs")  # type: ignore[arg-type]
