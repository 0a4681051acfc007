"""The figure ``compare``: tokens, time to first token and causes of losses of replay variants, side by side.

Each bar is one variant. Token numbers are summed over the requests of a run, and the bar shows the median of the repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from loopkit.plot.inputs import frame_of, numbers
from loopkit.plot.style import GREY, PLAIN, STYLES, new_axes, shown
from loopkit.replay.summaries import UNCHANGED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Bar", "compare"]

COLUMNS = ("variant", "repeat", "prompt_tokens", "cached_tokens", "lost_tokens", "ttft_ms", "cause", "certainty", "cold")
PARTS = ("new", "lost", "unknown", "reused")
"The parts of a bar from left to right. Processed tokens start at the axis, so that their lengths can be compared."


class Bar(NamedTuple):
    """Values of one variant over its repeats: tokens, time to first token, and causes of losses."""

    name: str
    parts: dict[str, float]
    "Median number of tokens of each part."
    read: tuple[float, float, float]
    "Processed tokens of a run: median, lowest and highest of the repeats. NaN if no request reports cached tokens."
    ttft_ms: tuple[float, float, float]
    "Median time to first token of the requests of a run: median, lowest and highest of the repeats."
    repeats: int
    causes: list[str]

    def notes(self, lines: int) -> list[str]:
        """Return the text next to the bar, at most `lines` lines."""
        notes = ["processed tokens not reported" if np.isnan(self.read[0]) else f"processed {_span(self.read, _tokens)} tokens"]
        if not np.isnan(self.ttft_ms[0]) and lines > min(len(self.causes), 1) + 1:
            notes.append(f"time to first token {_span(self.ttft_ms, '{:,.0f}'.format)} ms")
        return (notes + self.causes)[: max(lines, 1)]


def _span(of: tuple[float, float, float], form: Callable[[float], str]) -> str:
    middle, low, high = map(form, of)
    return middle if low == high else f"{middle} ({low} to {high})"


def _tokens(count: float) -> str:
    return f"{count:,.0f}" if count < 1e6 else f"{count / 1e6:,.4g} million"


def bars_of(frame: pd.DataFrame) -> Iterator[Bar]:
    """Yield a `Bar` for each variant, in the order of the frame."""
    counts = {name: numbers(frame, name) for name in COLUMNS[2:6]}
    prompt, cached = counts["prompt_tokens"], counts["cached_tokens"]
    read = prompt - cached
    lost = np.fmin(np.nan_to_num(counts["lost_tokens"]), read)  # a bound on the loss may exceed the processed tokens
    parts = pd.DataFrame({"new": read - lost, "lost": lost, "unknown": np.where(np.isnan(cached), prompt, 0), "reused": cached})
    runs = parts.assign(
        read=read,
        ttft=counts["ttft_ms"],
        variant=frame["variant"].astype("object").fillna(UNCHANGED).to_numpy(),
        repeat=frame["repeat"].to_numpy(),
        warm=(~frame["cold"].astype("boolean")).fillna(value=False).to_numpy(bool),
    ).groupby(["variant", "repeat"], sort=False, dropna=False)
    sums = runs[[*PARTS, "read"]].sum(min_count=1).assign(ttft=runs["ttft"].median(), warm=runs["warm"].any())
    lost_of = frame.assign(variant=frame["variant"].astype("object").fillna(UNCHANGED), lost_tokens=np.nan_to_num(lost))
    for variant, of in sums.groupby(level="variant", sort=False):
        name = shown(variant, 28) + (" (not cold)" if of["warm"].any() else "")
        middle = {part: float(of[part].median()) for part in PARTS}
        causes = _causes(lost_of[lost_of["variant"] == variant], len(of))
        sizes = {part: 0.0 if np.isnan(size) else size for part, size in middle.items()}
        yield Bar(name, sizes, _spread(of["read"]), _spread(of["ttft"]), len(of), causes)


def _spread(of: pd.Series[float]) -> tuple[float, float, float]:
    return float(of.median()), float(of.min()), float(of.max())


def _causes(losses: pd.DataFrame, runs: int) -> list[str]:
    """Return a text for each cause of losses: its number per run and its certainty. The largest loss comes first."""
    losses = losses[losses["lost_tokens"] > 0]
    found: dict[tuple[str, str], list[float]] = {}
    for cause, sure, lost in losses[["cause", "certainty", "lost_tokens"]].astype("object").itertuples(index=False):
        found.setdefault(("loss" if pd.isna(cause) else cause, "" if pd.isna(sure) else f" ({sure})"), []).append(lost)
    by_tokens = sorted(found.items(), key=lambda item: -sum(item[1]))
    each = " per run" if runs > 1 else ""
    return [f"{shown(cause)} × {round(len(lost) / runs, 1):,g}{each}{shown(sure)}" for (cause, sure), lost in by_tokens]


def compare(frame: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the new, lost and reused tokens of each variant of a comparison, one bar per variant.

    Parameters
    ----------
    frame : DataFrame
        Result of :func:`loopkit.replay.compare`, one row per request. It may be filtered.
    ax : Axes, optional
        Axes to draw on. By default a new figure is made.

    Returns
    -------
    Axes
        The axes. A bar shows the median of a variant's repeats. If the repeats differ, a line spans the lowest to the highest
        number of processed tokens.

    Raises
    ------
    InvalidConfig
        If columns are missing.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> rows = pd.DataFrame({"variant": ["kept", "shuffled"], "repeat": 1, "prompt_tokens": 1000, "cached_tokens": [900, 0]})
    >>> rows = rows.assign(lost_tokens=[0, 900], ttft_ms=[20.0, 180.0], cause=[None, "tools_changed"], certainty=None, cold=True)
    >>> ax = compare(rows, Figure().subplots())
    >>> ax.get_title()
    'shuffled processed 10 times as many prompt tokens as kept'
    """
    from matplotlib.ticker import EngFormatter

    frame = frame_of(frame, COLUMNS, "frame", "replay.compare(…)")
    bars = list(bars_of(frame))
    ax = new_axes(9.5, float(np.clip(1.5 + 0.62 * len(bars), 2.4, 12))) if ax is None else ax
    ax.set(xlabel="prompt tokens of all requests", ylim=(max(len(bars), 1) - 0.5, -0.5), title=_finding(bars))
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.set_yticks(range(len(bars)), [bar.name for bar in bars], **PLAIN)
    if not bars:
        return ax
    left: NDArray[np.float64] = np.zeros(len(bars))
    for part in PARTS:
        sizes = np.array([bar.parts[part] for bar in bars])
        if sizes.any():
            ax.barh(range(len(bars)), sizes, 0.62, left, linewidth=0, **STYLES[part])
        left += sizes
    _draw_repeats(ax, bars)
    lines = min(4, int(ax.bbox.height * 72 / ax.figure.dpi / len(bars) / 11.5))
    for row, bar in enumerate(bars):
        text = "\n".join(bar.notes(lines))
        place = ax.get_yaxis_transform()
        ax.text(1.01, row, text, transform=place, ha="left", va="center", fontsize="small", color=GREY, **PLAIN)
    ax.set_xlim(0, max(float(left.max()), 1) * 1.01)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=5, frameon=False, fontsize="small", borderaxespad=0.2)
    ax.set_title(_finding(bars), pad=24, **PLAIN)
    return ax


def _draw_repeats(ax: Axes, bars: list[Bar]) -> None:
    """Draw a line from the lowest to the highest number of processed tokens, for variants whose repeats differ."""
    spread = [(row, bar) for row, bar in enumerate(bars) if bar.read[1] < bar.read[2]]
    if not spread:
        return
    middle, low, high = np.array([bar.read for _, bar in spread]).T
    repeats = max(bar.repeats for bar in bars)
    ax.errorbar(
        middle,
        [row for row, _ in spread],
        xerr=(middle - low, high - middle),
        fmt="none",
        ecolor="black",
        elinewidth=1.6,
        capthick=1.6,
        capsize=5,
        label=f"processed, fewest to most of {repeats} repeats",
    )


def _finding(bars: list[Bar]) -> str:
    """Return the title: the most expensive variant compared with the unchanged one, or with the cheapest."""
    known = [bar for bar in bars if bar.read[0] > 0]
    if len(known) < 2:
        return bars[0].name if bars else "no requests"
    least, most = min(known, key=lambda bar: bar.read[0]), max(known, key=lambda bar: bar.read[0])
    reference = next((bar for bar in known if bar.name.startswith(UNCHANGED) and bar is not most), least)
    times = most.read[0] / reference.read[0]
    if times == 1:
        return "all variants processed the same number of prompt tokens"
    return f"{most.name} processed {times:,.{1 if times < 10 else 0}f} times as many prompt tokens as {reference.name}"
