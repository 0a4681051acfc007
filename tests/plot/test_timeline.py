"""Points are the requests, the line is the fitted one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loopkit.cache import reading_line
from loopkit.errors import InvalidConfig
from loopkit.logs.frames.arrays import dtypes, empty
from loopkit.logs.loading import load
from loopkit.plot import timeline
from tests.logs.make import kept, start, write_session
from tests.plot.artists import drawn, legend

FIRST, SERVER = "time to first token, measured by the client", "time to process the prompt, reported by the server"


def usage(requests: int, *, largest: int = 200, **columns: Any) -> pd.DataFrame:
    chance = np.random.default_rng(5)
    read = np.append(chance.integers(20, 80, requests - 1), largest)
    prompt_ms = 12 + 0.3 * read + chance.gamma(2, 2, requests)
    made = {"read_tokens": read, "prompt_ms": prompt_ms, "ttft_ms": prompt_ms + 20, **columns}
    return pd.DataFrame(made).astype({name: kind for name, kind in dtypes("usage").items() if name in made})


def points(ax: Axes, label: str) -> list[tuple[float, float]]:
    [line] = [line for line in ax.lines if line.get_label() == label]
    return [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())]


def test_points_are_the_requests_whose_numbers_are_known() -> None:
    frame = usage(3, ttft_ms=[50.0, None, 70.0], read_tokens=[10, 20, None], prompt_ms=[None, 25.0, 35.0])
    ax = timeline(frame)
    assert points(ax, FIRST) == [(10, 0.05)]
    assert points(ax, SERVER) == [(20, 0.025)]
    assert legend(ax) == [FIRST, SERVER]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("prompt tokens processed (not cached)", "seconds")
    assert ax.get_title() == "too few requests for a line"
    assert drawn(ax)


@pytest.mark.parametrize("requests", [30, 3000])
def test_the_line_is_the_fitted_one(requests: int) -> None:
    frame = usage(requests)
    ax = timeline(frame)
    fitted = reading_line(frame["read_tokens"].to_numpy(float), frame["prompt_ms"].to_numpy(float))
    assert fitted is not None
    [line] = [line for line in ax.lines if line.get_linestyle() == "--"]
    x, y = np.asarray(line.get_xydata()).T
    assert y == pytest.approx(fitted.seconds(x))
    assert (x.min(), x.max()) == pytest.approx((frame["read_tokens"].min(), frame["read_tokens"].max()))
    assert ax.get_title().startswith(f"{1000 * fitted.seconds_per_token:.3g} ms per processed token (")
    assert len(points(ax, SERVER)) == requests
    assert len(ax.lines) + len(ax.collections) == 6
    assert (ax.get_xscale(), ax.get_xlim()[0], ax.get_ylim()[0]) == ("linear", 0, 0)
    assert drawn(ax)


def test_times_that_do_not_grow_with_the_tokens_are_said_to_show_nothing() -> None:
    ax = timeline(usage(6, read_tokens=[10, 20, 30, 40, 50, 60], prompt_ms=[60.0, 50.0, 10.0, 20.0, 40.0, 30.0]))
    assert ax.get_title().startswith("the times do not grow with the processed tokens (-")
    assert drawn(ax)


def test_one_long_prompt_among_short_ones_makes_the_scales_logarithmic() -> None:
    ax = timeline(usage(30, largest=40_000))
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert ax.get_xlabel().endswith("logarithmic")
    assert drawn(ax)


def test_logs_will_do_and_nothing_at_all(tmp_path: Path) -> None:
    write_session(tmp_path, "a", [start("a"), *kept(9)])
    ax = timeline(load(tmp_path))
    assert legend(ax) == [SERVER]
    assert drawn(ax)
    nothing = timeline(empty("usage"))
    assert (nothing.get_title(), nothing.get_legend()) == ("no times reported", None)
    assert (list(nothing.get_xticks()), list(nothing.get_yticks())) == ([], [])
    assert drawn(nothing)


def test_the_axes_given_are_used() -> None:
    mine = Figure().subplots()
    assert timeline(usage(3), mine) is mine


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (7, "expected Logs or a frame; got an int"),
        (pd.DataFrame(), "lacks the columns read_tokens, ttft_ms"),
        (
            pd.DataFrame({"read_tokens": ["many"], "ttft_ms": 1.0, "prompt_ms": 1.0}),
            "read_tokens: the column must contain numbers",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(bad: Any, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        timeline(bad)
