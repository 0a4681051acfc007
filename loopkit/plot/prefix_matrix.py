"""The figure ``reuse_matrix``: the shared prefix of every request with every other.

The lengths come from one prefix tree, so each byte is compared once. With the requests in the order of the tree, the shared
prefix of two requests is the shortest prefix that any two neighbours between them share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loopkit.cache.prefixes.prompt_parts import Requests
from loopkit.cache.prefixes.tree import branches
from loopkit.plot.inputs import request_list
from loopkit.plot.style import GREY, PLAIN, new_axes, shown
from loopkit.reprs import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Matrix", "reuse_matrix"]

BAD = "#d9c7b8"
"Colour of the rows of empty prompts, which have no share."
NAMED = 24
"If there are more sessions than this, their names and borders are left out."


class Matrix(NamedTuple):
    """Length of the shared prefix of each pair of requests. The requests of a session are next to each other."""

    unit: str
    shared: NDArray[np.int64]
    "Length of the prefix that each pair shares, in `unit`. The diagonal has the lengths of the prompts."
    order: NDArray[np.int64]
    "Position of each row's request in the input."
    sessions: list[str | None]
    "Session of each row's request."

    @classmethod
    def of(cls, requests: Requests) -> Matrix:
        """Compute the shared prefix of every pair of requests."""
        every = request_list(requests)
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
        owners = [None if isinstance(request, bytes) else request.session for request in every]
        firsts = {session: at for at, session in reversed(list(enumerate(owners)))}
        order = np.array(sorted(range(len(every)), key=lambda at: (firsts[owners[at]], at)), np.int64)
        place = np.argsort(rows)[order] if rows else order
        return cls(unit, sorted_[np.ix_(place, place)], order, [owners[at] for at in order])

    @property
    def shares(self) -> NDArray[np.float32]:
        """Length of each shared prefix divided by the length of the prompt of the row (0 to 1); NaN for an empty prompt."""
        sizes = self.shared.diagonal()[:, None]
        found: NDArray[np.float32] = np.full(self.shared.shape, np.nan, np.float32)
        return np.divide(self.shared, sizes, out=found, where=sizes > 0, casting="unsafe")


def reuse_matrix(requests: Requests, ax: Axes | None = None) -> Axes:
    """Draw the shared prefix of every request with every other.

    Parameters
    ----------
    requests : Logs, Session, or iterable of Request, Prompt or bytes
        Requests to compare. The requests of a session are put next to each other.
    ax : Axes, optional
        Axes to draw on. By default a new figure is made.

    Returns
    -------
    Axes
        The axes. Rows and columns are requests. A dark cell means that the request of the column starts with a large part of the
        prompt of the row.

    Raises
    ------
    InvalidConfig
        If some requests are bytes and others are token ids or block hashes.

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
        ax.set(title="no requests with a known prompt (the logs contain no bodies)", xticks=[], yticks=[])
        return ax
    colours = colormaps["Blues"].with_extremes(bad=BAD)
    edges = (0.5, count + 0.5, count + 0.5, 0.5)
    image = ax.imshow(matrix.shares, cmap=colours, vmin=0, vmax=1, extent=edges, aspect="auto")
    bar = ax.figure.colorbar(
        image, ax=ax, label=f"share of the row's {matrix.unit} that the column starts with", format="{x:.0%}"
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
    """Draw borders between the sessions, and write their names next to the rows and columns."""
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
