"""``reuse_matrix``: what every request has in common with every other, from its beginning.

The numbers come from one tree of prefixes: bytes are looked at once, never in pairs; what two requests share is then the least of
the shared prefixes of neighbours between them, in the order of the tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loopkit.cache.prefixes.prompt_parts import Prompt
from loopkit.cache.prefixes.tree import branches
from loopkit.contract.request import Request
from loopkit.plot.looks import GREY, PLAIN, new_axes, requests_of, shown
from loopkit.reprs import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Matrix", "reuse_matrix"]

BAD = "#d9c7b8"
"Of empty prompts."
NAMED = 24
"Up to so many sessions are named, and have a border."


class Matrix(NamedTuple):
    """Shared prefixes, requests of one session side by side."""

    unit: str
    shared: NDArray[np.int64]
    "Of each with each; on the diagonal their sizes."
    order: NDArray[np.int64]
    "The place in the sequence of each row."
    sessions: list[str | None]
    "Of each row."

    @classmethod
    def of(cls, requests: Iterable[Request | Prompt | bytes]) -> Matrix:
        """Work them out."""
        every = requests_of(requests)
        unit, tree = branches(every)
        rows, sizes, gaps, low = list[int](), list[int](), list[int](), 0
        for branch in tree:
            low = min(low, branch.start)
            for request, size in branch.ends:
                rows.append(request)
                sizes.append(size)
                gaps.append(low)
                low = size
        sorted_: NDArray[np.int64] = np.zeros((len(rows), len(rows)), np.int64)
        for at, size in enumerate(sizes):
            sorted_[at, at] = size
            sorted_[at, at + 1 :] = sorted_[at + 1 :, at] = np.minimum.accumulate(gaps[at + 1 :])
        whose = [None if isinstance(request, bytes) else request.session for request in every]
        firsts = {session: at for at, session in reversed(list(enumerate(whose)))}
        order = np.array(sorted(range(len(every)), key=lambda at: (firsts[whose[at]], at)), np.int64)
        place = np.argsort(rows)[order] if rows else order
        return cls(unit, sorted_[np.ix_(place, place)], order, [whose[at] for at in order])

    @property
    def shares(self) -> NDArray[np.float32]:
        """Of each row's prompt, the share that the column's begins with, too; NaN of an empty prompt."""
        sizes = self.shared.diagonal()[:, None]
        found: NDArray[np.float32] = np.full(self.shared.shape, np.nan, np.float32)
        return np.divide(self.shared, sizes, out=found, where=sizes > 0, casting="unsafe")


def reuse_matrix(requests: Iterable[Request | Prompt | bytes], ax: Axes | None = None) -> Axes:
    """Draw the shared prefix of every request with every other.

    Parameters
    ----------
    requests : iterable of Request, Prompt or bytes
        As ``cache.reuse`` takes them, such as ``Session.requests()``; the requests of a session are put side by side.
    ax : Axes, optional
        Where to draw; by default on a new figure.

    Returns
    -------
    Axes
        A row is a request, and dark what another one's prompt holds of its own from the beginning. Nothing is shown.

    Raises
    ------
    InvalidConfig
        Where some are known by their bytes and others by tokens or blocks.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from loopkit.cache import Prompt
    >>> ax = reuse_matrix([Prompt(tokens=[1, 2, 3, 4]), Prompt(tokens=[1, 2])], Figure().subplots())
    >>> ax.images[0].get_array().tolist()
    [[1.0, 0.5], [1.0, 1.0]]
    """
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    matrix = Matrix.of(requests)
    ax = new_axes(6.8, 5.6) if ax is None else ax
    count = len(matrix.order)
    if not count:
        ax.set(title="no request whose prompt is known: of a log without bodies there is none", xticks=[], yticks=[])
        return ax
    colours = colormaps["Blues"].with_extremes(bad=BAD)
    edges = (0.5, count + 0.5, count + 0.5, 0.5)
    image = ax.imshow(matrix.shares, cmap=colours, vmin=0, vmax=1, extent=edges, aspect="auto")
    bar = ax.figure.colorbar(
        image, ax=ax, label=f"share of the row's {matrix.unit} that the column's begin with", format="{x:.0%}"
    )
    bar.outline.set_visible(False)
    axis = "request, sessions side by side" if matrix.sessions != [matrix.sessions[0]] * count else "request"
    ax.set(xlabel=axis, ylabel=axis, title=f"shared prefixes of {counted(count, 'request')}")
    for each in (ax.xaxis, ax.yaxis):
        each.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        each.set_major_formatter("{x:,.0f}")
    _draw_sessions(ax, matrix.sessions)
    return ax


def _draw_sessions(ax: Axes, sessions: list[str | None]) -> None:
    """Borders between sessions, and their names beside the rows."""
    starts = [at for at, session in enumerate(sessions) if at == 0 or sessions[at - 1] != session]
    if not 1 < len(starts) <= NAMED:
        return
    for start in starts[1:]:
        ax.axhline(start + 0.5, color=GREY, lw=0.8, ls="--")
        ax.axvline(start + 0.5, color=GREY, lw=0.8, ls="--")
    middles = [(start + stop) / 2 + 0.5 for start, stop in zip(starts, [*starts[1:], len(sessions)])]
    names = [shown("no session" if sessions[start] is None else sessions[start], 24) for start in starts]
    ax.set_yticks(middles, names, fontsize="small", **PLAIN)
    ax.set_xticks(middles, names, fontsize="small", rotation=90, **PLAIN)
    ax.set(xlabel="session", ylabel="session")
