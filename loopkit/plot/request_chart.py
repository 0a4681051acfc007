"""The figure ``prefix_reuse``: reused, lost and new tokens of each request.

Up to 200 requests are drawn as bars, more as an area with steps. Unknown values have a separate colour.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from loopkit.plot.inputs import UsageSource, describe_usage, frame_of, losses_and_sessions, numbers
from loopkit.plot.request_bars import Group, Run, Stack, groups_of, labels_of, runs_of, same_work
from loopkit.plot.style import DARK, GREY, PLAIN, STYLES, characters, new_axes, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["prefix_reuse"]

BARS = 200
"If there are more requests than this, they are drawn as an area with steps instead of bars."
COLUMNS = ("session", "epoch", "request", "prompt_tokens", "cached_tokens", "read_tokens", "lost_tokens")
USUAL = 42
"Height in points above the axes that a figure of the default size has for headings."
MANY = 20
"If there are more sessions than this, requests are not numbered and causes are not labelled."
NAMED, BORDERS = 12, 60
"Up to the first number, borders of epochs are drawn and labelled; up to the second, only drawn; above it, left out."
ROWS = 3
"Largest number of rows of causes above the bars."
LEAST = 5
"Number of text rows for which there is always space: three of causes, one of epochs, one of the legend."
ROW = 15
"Height of a row of text, in points."

_ORDER = {style["label"]: index for index, style in enumerate(STYLES.values())}
_STEPS = [digit * 10**power for power in range(12) for digit in (1, 2, 5)]


def prefix_reuse(
    logs: UsageSource,
    ax: Axes | None = None,
    *,
    cache_loss: pd.DataFrame | None = None,
    labels: Mapping[str, str] | None = None,
) -> Axes:
    """Draw how many prompt tokens of each request were reused from the cache, lost (processed again) or new.

    Sessions and replays are side by side. Losses are marked and labelled with their cause. A line marks the start of an epoch.

    Parameters
    ----------
    logs : Logs or DataFrame
        Logs, or a frame like ``logs.usage``, which may be filtered.
    ax : Axes, optional
        Axes to draw on. By default a new figure is made.
    cache_loss : DataFrame, optional
        A frame like ``logs.cache_loss``, with the causes of the losses. It is used only if `logs` is a frame.
    labels : mapping of str to str, optional
        Labels by session id. By default, a replay is labelled with its variant and a session with its id.

    Returns
    -------
    Axes
        The axes.

    Raises
    ------
    InvalidConfig
        If `logs` is neither Logs nor a frame, or if columns are missing.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> usage = pd.DataFrame({"prompt_tokens": [900, 1000], "cached_tokens": [0, 900], "read_tokens": [900, 100]}, dtype="Int64")
    >>> usage = usage.assign(session="a", epoch=0, request=[1, 2], lost_tokens=0)
    >>> prefix_reuse(usage, Figure().subplots()).get_title()
    'processed 1,000 of 1,900 prompt tokens; lost 0'
    """
    usage = frame_of(logs, COLUMNS)
    cache_loss, sessions = losses_and_sessions(logs, cache_loss)
    own = ax is None
    ax = new_axes() if ax is None else ax
    names = {session: shown(name) for session, name in {**labels_of(usage, sessions), **(labels or {})}.items()}
    groups = list(groups_of(usage, names))
    top = float(np.nanmax(numbers(usage, "prompt_tokens"), initial=1))
    as_bars = len(usage) <= BARS
    headings = _headings(ax, groups)
    above = max((heading.height for heading in headings), default=0)
    height = ax.bbox.height * 72 / ax.figure.dpi
    if own:
        figure: Any = ax.figure  # made above, so it may be resized
        figure.set_figheight(figure.get_figheight() + max(0, above - USUAL) / 72)
    else:
        height -= above
    _draw_stacks(ax, groups, as_bars=as_bars)
    runs = [run for group in groups for run in runs_of(group, cache_loss)]
    rows = ROWS + 1 + _legend_rows(ax, [*ax.get_legend_handles_labels()[1], *([_causes(runs)] if runs else [])])
    row = 1.06 * top * float(np.clip(ROW / max(height - max(rows, LEAST) * ROW, 1), 0.085, 0.3))
    y = top * 1.06
    y += row * _draw_losses(ax, groups, runs, y, row, each=as_bars)
    y += row * _draw_borders(ax, groups, y, row)
    y += row * _draw_legend(ax)
    ax.set(xlim=(-1, _right(groups)), ylim=(0, y), xlabel="request", ylabel="prompt tokens")
    ax.yaxis.set_major_formatter("{x:,.0f}")
    _draw_ticks(ax, groups)
    _draw_titles(ax, groups, headings, sessions)
    return ax


def _draw_stacks(ax: Axes, groups: list[Group], *, as_bars: bool) -> None:
    """Draw one bar per request, or one area with steps per part and session if there are many requests."""
    stacks = [Stack.of(group.usage) for group in groups]
    for index, (part, style) in enumerate(STYLES.items()):
        if not any(getattr(stack, part).any() for stack in stacks):
            continue
        label = style["label"]
        for group, stack in zip(groups, stacks, strict=True):
            bottom = np.sum(stack[:index], axis=0) if index else np.zeros(len(group.usage))
            look = {**style, "linewidth": 0, "label": label}
            label = "_nolegend_"
            if not as_bars and part == "lost":
                look["hatch"] = None  # hatch lines would hide areas that are one request wide
            if as_bars:
                ax.bar(group.x, stack[index], 0.85, bottom, **look)
            else:
                edges = np.append(group.x, group.right) - 0.5
                low, high = (np.append(values, values[-1:]) for values in (bottom, bottom + stack[index]))
                ax.fill_between(edges, low, high, step="post", **look)
    unreported = [group.x[group.usage["prompt_tokens"].isna()] for group in groups]
    if any(map(len, unreported)):
        at = np.concatenate(unreported)
        look = {"marker": "$?$", "linestyle": "none", "color": GREY, "clip_on": False, "zorder": 3}
        ax.plot(at, np.zeros(len(at)), label="prompt not reported", **look)


def _draw_losses(ax: Axes, groups: list[Group], runs: list[Run], bottom: float, row_height: float, *, each: bool) -> int:
    """Mark each loss, and label the largest runs of losses with their cause. Without `each`, mark only the middle of a run.

    Returns
    -------
    int
        Number of rows of labels above the bars.
    """
    if not runs:
        return 0
    some = [slice(None) if each else slice(len(run.x) // 2, len(run.x) // 2 + 1) for run in runs]
    x = np.concatenate([run.x[which] for run, which in zip(runs, some, strict=True)])
    y = np.concatenate([run.height[which] for run, which in zip(runs, some, strict=True)])
    [marks] = ax.plot(x, y + bottom * 0.02, "v", color=DARK, markersize=4, zorder=3, label="loss, with its cause")
    width = characters(ax) / (_right(groups) + 1)
    free = [-np.inf] * ROWS
    largest = sorted(runs, key=lambda run: -run.lost)[: 4 * ROWS]
    if len(largest) < len(runs) or len(groups) > MANY:
        largest = []  # too many to label: the legend counts them
    named = 0
    for run in sorted(largest, key=lambda run: run.x[0]):
        half = len(run.text) / width / 2
        middle = min(max((run.x[0] + run.x[-1]) / 2, half - 1), _right(groups) - half)
        row = next((row for row in range(ROWS) if free[row] < min(middle - half, run.x[0])), None)
        if row is not None:
            named += 1
            level = bottom + row_height * row
            free[row] = max(middle + half, run.x[-1])
            ax.plot([run.x[0] - 0.4, run.x[-1] + 0.4], [level, level], color=DARK, linewidth=1, label="_nolegend_")
            look: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": "small", "color": DARK, **PLAIN}
            ax.text(middle, level + bottom * 0.012, run.text, **look)
    if named < len(runs):
        marks.set_label(_causes(runs))
    return sum(end > -np.inf for end in free)


def _causes(runs: list[Run]) -> str:
    """Return the number of losses of each cause as text for the legend. The cause with the largest loss comes first."""
    counts: dict[str, int] = {}
    for run in sorted(runs, key=lambda run: -run.lost):
        counts[run.cause] = counts.get(run.cause, 0) + len(run.x)
    counted = [f"{cause} × {count:,}" for cause, count in counts.items()]
    return f"loss: {', '.join(counted[:3])}" + (f" and {len(counted) - 3:,} other causes" if len(counted) > 3 else "")


def _draw_borders(ax: Axes, groups: list[Group], y: float, row_height: float) -> int:
    """Draw a line where an epoch starts, with its number if there is room. Return the number of rows of labels."""
    borders = [
        (group.x[at] - 0.5, f"epoch {group.usage['epoch'].iloc[at]}")
        for group in groups
        for at in np.flatnonzero(group.usage["epoch"].diff().fillna(0).to_numpy(float))
    ]
    if borders and len(borders) <= BORDERS:
        look: dict[str, Any] = {"color": GREY, "linewidth": 1, "linestyle": "--", "label": "_nolegend_"}
        ax.vlines([x for x, _ in borders], 0, y + row_height / 1.5, **look)
    end, unit = -np.inf, (_right(groups) + 1) / characters(ax)
    named = borders if len(borders) <= NAMED else []
    for x, text in named:
        if x >= end:
            ax.text(x, y, f" {text}", va="bottom", fontsize="small", color=GREY)
            end = x + (len(text) + 2) * unit
    return int(bool(named))


def _draw_legend(ax: Axes) -> int:
    """Draw the legend in the free rows at the top. Return how many rows the legend has."""
    entries = zip(*ax.get_legend_handles_labels(), strict=True)
    handles, texts = [], []
    for handle, text in sorted(entries, key=lambda entry: _ORDER.get(entry[1], len(_ORDER))):
        handles.append(handle)
        texts.append(text)
    if not handles:
        return 0
    rows = _legend_rows(ax, texts)
    look: dict[str, Any] = {"frameon": False, "fontsize": "small", "borderaxespad": 0.2}
    for each in ax.legend(handles, texts, loc="upper left", ncols=-(-len(texts) // rows), **look).get_texts():
        each.set(**PLAIN)  # a cause is text from outside
    return rows


def _legend_rows(ax: Axes, texts: list[str]) -> int:
    """Return the number of rows of a legend with these entries."""
    room = characters(ax)
    fit = len(texts) if sum(len(text) + 8 for text in texts) <= room else max(1, int(room // (max(map(len, texts)) + 8)))
    return -(-len(texts) // fit) if texts else 0


def _draw_ticks(ax: Axes, groups: list[Group]) -> None:
    """Number the requests of each group from 1."""
    total = sum(len(group.usage) for group in groups)
    step = next(step for step in _STEPS if total <= 16 * step)
    ticks = [(group.x[at - 1], at) for group in groups for at in range(1, len(group.usage) + 1) if at % step == 0 or at == 1]
    if len(groups) > MANY:
        ticks = []
        ax.set_xlabel(f"requests of {len(groups):,} sessions, side by side")
    ax.set_xticks([x for x, _ in ticks], [f"{at:,}" for _, at in ticks])


class _Heading(NamedTuple):
    """Heading of a session or replay: its text, and whether it is turned by 90 degrees."""

    text: str
    turned: bool

    @property
    def height(self) -> float:
        """Height of the heading in points."""
        return 5.6 * len(self.text) if self.turned else 14 * (self.text.count("\n") + 1)


def _headings(ax: Axes, groups: list[Group]) -> list[_Heading]:
    """Return a heading for each group, or an empty list if there is only one group."""
    room = characters(ax) / (_right(groups) + 1)
    beginnings = {group.label[:12] for group in groups}
    ends = len(beginnings) < len({group.label for group in groups})  # ids of one day begin with the same characters
    return [_heading(group, len(group.usage) * room, ends=ends) for group in groups] if len(groups) > 1 else []


def _heading(group: Group, width: float, *, ends: bool) -> _Heading:
    """Return a heading of at most `width` characters. A label that is too long keeps its end if `ends`, otherwise its start."""
    found = dict(describe_usage(group.usage))
    fits = int(width * 0.8)  # the font of headings is larger, and neighbours need a distance
    lines = [group.label, f"processed {found['processed'].removesuffix(' prompt tokens')}", f"lost {found['lost']}"]
    lines = [lines[0], ", ".join(lines[1:])] if len(", ".join(lines[1:])) <= fits else lines
    if all(len(line) <= fits for line in lines):
        return _Heading("\n".join(lines), turned=False)
    if len(group.label) <= fits or fits >= 8:
        return _Heading(_short(group.label, fits, end=ends), turned=False)
    return _Heading(_short(group.label, 20, end=ends), turned=True) if width >= 2.4 else _Heading("", turned=False)


def _short(label: str, most: int, *, end: bool) -> str:
    return shown(label, most) if len(label) <= most or not end else "…" + label[1 - most :]


def _draw_titles(ax: Axes, groups: list[Group], headings: list[_Heading], sessions: pd.DataFrame | None) -> None:
    """Draw the title above the axes, and the headings above their groups."""
    for group, heading in zip(groups, headings):
        look: dict[str, Any] = {"rotation": 90, "fontsize": "small"} if heading.turned else {"fontsize": "medium"}
        look |= {"ha": "center", "va": "bottom", "transform": ax.get_xaxis_transform(), **PLAIN}
        ax.text((group.x[0] + group.x[-1]) / 2, 1.01, heading.text, **look)
    pad = 8 + max((heading.height for heading in headings), default=0)
    ax.set_title(_comparison(groups, sessions) if groups else "no requests", pad=pad if headings else None, **PLAIN)


def _comparison(groups: list[Group], sessions: pd.DataFrame | None) -> str:
    """Return the title: a comparison if the groups are replays of one session, otherwise the totals."""
    read = {group.label: group.usage["read_tokens"].sum(min_count=1) for group in groups}
    known = {label: float(tokens) for label, tokens in read.items() if not pd.isna(tokens)}
    if sessions is not None and 1 < len(known) == len(groups) and min(known.values()) > 0 and same_work(groups, sessions):
        least, most = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
        times = known[most] / known[least]
        return f"{most} processed {times:,.{1 if times < 100 else 0}f} times as many prompt tokens as {least}"
    return "; ".join(map(" ".join, describe_usage(pd.concat([group.usage for group in groups]))))


def _right(groups: list[Group]) -> float:
    """Return the right end of the x-axis. It is at least 3, so that one bar does not fill the figure."""
    return max(groups[-1].right, 3) if groups else 3
