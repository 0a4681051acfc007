"""The figure ``timeline``: prompt time and time to first token against the prompt tokens that were processed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from loopkit.cache.reading_speed import ReadingLine, reading_line
from loopkit.plot.inputs import UsageSource, frame_of, numbers
from loopkit.plot.style import new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["timeline"]

WIDE = 20
"If the largest number of processed tokens is more than this many times the median, both axes are logarithmic."
SERIES = {
    "ttft_ms": {"label": "time to first token, measured by the client", "color": "#163f66", "marker": "o", "linestyle": "-"},
    "prompt_ms": {
        "label": "time to process the prompt, reported by the server",
        "color": "#d9680b",
        "marker": "^",
        "linestyle": "--",
    },
}


class Times(NamedTuple):
    """Processed tokens and times of the requests for which both are known, and the line fitted to them."""

    read: NDArray[np.float64]
    seconds: NDArray[np.float64]
    line: ReadingLine | None

    @classmethod
    def of(cls, usage: pd.DataFrame, column: str) -> Times:
        """Return the tokens, and the times of one column, from a frame like ``logs.usage``."""
        read, ms = (numbers(usage, name) for name in ("read_tokens", column))
        known = np.isfinite(read) & np.isfinite(ms)
        return cls(read[known], ms[known] / 1000, reading_line(read[known], ms[known]))


def timeline(logs: UsageSource, ax: Axes | None = None) -> Axes:
    """Draw time to first token and prompt time against the prompt tokens that the server processed.

    Parameters
    ----------
    logs : Logs or DataFrame
        Logs, or a frame like ``logs.usage``, which may be filtered. Use the requests of one server, because servers differ in
        speed.
    ax : Axes, optional
        Axes to draw on. By default a new figure is made.

    Returns
    -------
    Axes
        The axes, with one point per request. If there are enough requests, they also have the line of
        :func:`loopkit.cache.reading_line` and its 95 % interval.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> usage = pd.DataFrame({"read_tokens": [900, 100, 200, 300], "ttft_ms": [460, 60, 110, 160], "prompt_ms": None})
    >>> timeline(usage, Figure().subplots()).get_title()
    '0.5 ms per processed token (0.5 to 0.5)'
    """
    usage = frame_of(logs, ("read_tokens", *SERIES))
    ax = new_axes(7.5, 4.6) if ax is None else ax
    drawn = {column: Times.of(usage, column) for column in SERIES}
    reads = np.concatenate([times.read for times in drawn.values()])
    wide = bool(len(reads)) and reads.max() > WIDE * np.median(reads)
    for column, times in drawn.items():
        if len(times.read):
            _draw(ax, times, SERIES[column])
    if not len(reads):
        ax.set(xticks=[], yticks=[])
    elif wide:
        ax.set(xscale="log", yscale="log")
        ax.xaxis.set_major_formatter("{x:,g}")
        ax.yaxis.set_major_formatter("{x:,g}")
    else:
        ax.set(xlim=(0, None), ylim=(0, None))
        ax.xaxis.set_major_formatter("{x:,.0f}")
    scale = ", logarithmic" if wide else ""
    ax.set(xlabel=f"prompt tokens processed (not cached){scale}", ylabel=f"seconds{scale}", title=_finding(drawn))
    if ax.get_legend_handles_labels()[0]:
        for handle in ax.legend(loc="upper left", frameon=False, fontsize="small").get_lines():
            handle.set(alpha=1, markersize=6)
    return ax


def _draw(ax: Axes, times: Times, look: dict[str, str]) -> None:
    size = float(np.clip(60 / np.sqrt(len(times.read)), 2.5, 6))
    alpha = float(np.clip(30 / len(times.read), 0.3, 0.9))
    ax.plot(times.read, times.seconds, look["marker"], color=look["color"], ms=size, alpha=alpha, mew=0, label=look["label"])
    if times.line is None:
        return
    x = np.geomspace(max(times.read.min(), 1), times.read.max(), 100)
    ax.plot(x, times.line.seconds(x), look["linestyle"], color=look["color"], lw=1.6, label="_nolegend_")
    middle = float(np.median(times.read))
    low, high = (times.line.seconds(middle) + slope * (x - middle) for slope in (times.line.low, times.line.high))
    ax.fill_between(x, np.minimum(low, high), np.maximum(low, high), color=look["color"], alpha=0.18, lw=0, label="_nolegend_")


def _finding(drawn: dict[str, Times]) -> str:
    """Return the title: the time per processed token, from the prompt times of the server if there are enough."""
    for column in ("prompt_ms", "ttft_ms"):
        line = drawn[column].line
        if line is not None:
            low, high = 1000 * line.low, 1000 * line.high
            if low <= 0:
                return f"the times do not grow with the processed tokens ({low:.3g} to {high:.3g} ms per token)"
            return f"{1000 * line.seconds_per_token:.3g} ms per processed token ({low:.3g} to {high:.3g})"
    return "too few requests for a line" if any(len(times.read) for times in drawn.values()) else "no times reported"
