"""The figure ``prefix_tree``: where conversations share a prefix and where they diverge, from left to right.

A branch is a part of the prompt that the same requests share. A conversation whose requests each extend the previous one is one
line. Each fork is labelled with the member of the request body in which the requests diverge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loopkit.cache.prefixes.divergence import divergence
from loopkit.cache.prefixes.prompt_parts import Prompt, Requests
from loopkit.cache.prefixes.tree import Branch, branches
from loopkit.contract.request import Request
from loopkit.errors import InvalidConfig
from loopkit.plot.inputs import request_list
from loopkit.plot.style import DARK, GREY, PLAIN, characters, new_axes, shown
from loopkit.reprs import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Layout", "prefix_tree"]

NAMED = 40
"If there are more conversations than this, their names are left out."
FORKS = 8
"Largest number of forks with a label. Forks with the most requests come first."
MARKS = 400
"If there are more requests than this, their ends are not marked."
SHARED, OWN = "#163f66", "#5b9bc8"


class Layout(NamedTuple):
    """Layout of the figure: for each branch its row, and how many requests and conversations pass through it."""

    branches: tuple[Branch, ...]
    rows: NDArray[np.float64]
    "Row of each branch. Each conversation has its own row; a branch that forks is in the middle of its children."
    leaves: list[int]
    "Indices of the branches that do not fork, from top to bottom."
    requests: NDArray[np.int64]
    "Number of requests that pass through each branch."
    conversations: NDArray[np.int64]
    "Number of conversations that pass through each branch."

    @classmethod
    def of(cls, found: tuple[Branch, ...]) -> Layout:
        """Assign rows to branches, and count the requests and conversations of each."""
        below: list[list[int]] = [[] for _ in found]
        for at, branch in enumerate(found):
            if branch.parent is not None:
                below[branch.parent].append(at)
        leaves = [at for at, children in enumerate(below) if not children]
        rows, conversations = np.zeros(len(found)), np.zeros(len(found), np.int64)
        requests = np.array([len(branch.ends) for branch in found])
        rows[leaves], conversations[leaves] = np.arange(len(leaves)), 1
        for at in reversed(range(len(found))):  # children come after their parent
            if below[at]:
                rows[at] = (rows[below[at][0]] + rows[below[at][-1]]) / 2
                requests[at] += requests[below[at]].sum()
                conversations[at] = conversations[below[at]].sum()
        return cls(found, rows, leaves, requests, conversations)

    def forks(self) -> dict[int, list[int]]:
        """Return the branches that fork, each with its children. Both are indices into `branches`."""
        found: dict[int, list[int]] = {}
        for at, branch in enumerate(self.branches):
            if branch.parent is not None:
                found.setdefault(branch.parent, []).append(at)
        return found

    def any_request(self, at: int) -> int:
        """Return the index of some request that passes through the branch with index `at`."""
        while not self.branches[at].ends:
            at += 1  # the first child comes right after its parent
        return self.branches[at].ends[0][0]


def prefix_tree(requests: Requests, ax: Axes | None = None) -> Axes:
    """Draw where requests share a prefix and where they diverge.

    Parameters
    ----------
    requests : Logs, Session, or iterable of Request, Prompt or bytes
        Requests to compare, of one or more sessions.
    ax : Axes, optional
        Axes to draw on. By default a new figure is made.

    Returns
    -------
    Axes
        The axes. The x-axis is the position in the prompt. Branches, such as the epochs of a session, are below each other.

    Raises
    ------
    InvalidConfig
        If some requests are bytes and others are token ids or block hashes.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> body = b'{"messages":[{"role":"user","content":"%b"}]}'
    >>> ax = prefix_tree([body % b"Where is Lima?", body % b"Where is Oslo?"], Figure().subplots())
    >>> ax.get_title(), ax.texts[0].get_text()
    ('2 requests in 2 branches', 'messages[0].content')
    """
    every = request_list(requests)
    unit, found = branches(every)
    layout = Layout.of(found)
    many = len(layout.leaves)
    ax = new_axes(9.5, float(np.clip(1.4 + 0.28 * many, 2.6, 8))) if ax is None else ax
    ax.set(
        xlabel=f"prompt {unit}", yticks=[], xlim=(0, max(branch.stop for branch in found) * 1.02 or 1), ylim=(many - 0.4, -0.9)
    )
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.spines[["left", "right", "top"]].set_visible(False)
    if not every:
        ax.set(title="no requests", xticks=[])
        return ax
    _draw_lines(ax, layout)
    _draw_forks(ax, layout, every, unit)
    if many <= NAMED:
        ax.yaxis.tick_right()
        ax.set_yticks(range(many), [_name(layout, leaf, every) for leaf in layout.leaves], fontsize="small", **PLAIN)
        ax.tick_params(axis="y", length=0)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, fontsize="small", borderaxespad=0.2)
    ax.set_title(f"{counted(len(every), 'request')} in {counted(many, 'branch', 'branches')}", pad=24)
    return ax


def _draw_lines(ax: Axes, layout: Layout) -> None:
    """Draw each branch as a line, thicker if more requests pass through it, and each fork as a thin vertical line."""
    from matplotlib.collections import LineCollection

    leaf = layout.conversations == 1
    room = ax.bbox.height * 72 / ax.figure.dpi / (len(layout.leaves) + 1)
    widths = np.minimum(1.2 + np.log2(layout.requests) * 0.35, np.maximum(0.7 * room * layout.conversations, 0.4))
    lines = [[(branch.start, row), (branch.stop, row)] for branch, row in zip(layout.branches, layout.rows)]
    for some, colour, label in ((~leaf, SHARED, "shared by several branches"), (leaf, OWN, "in one branch")):
        of = np.flatnonzero(some)
        if len(of):
            made = LineCollection([lines[at] for at in of], colors=colour, linewidths=widths[of], label=label, capstyle="butt")
            ax.add_collection(made)
    posts = [
        [(layout.branches[at].stop, layout.rows[children[0]]), (layout.branches[at].stop, layout.rows[children[-1]])]
        for at, children in layout.forks().items()
    ]
    ax.add_collection(LineCollection(posts, colors=GREY, linewidths=min(1.0, max(0.3, 0.5 * room)), label="_nolegend_"))
    ends = [(depth, row) for branch, row in zip(layout.branches, layout.rows) for _, depth in branch.ends]
    if len(ends) <= MARKS:
        ax.plot(*zip(*ends), "|", color="black", ms=min(7, max(2, room)), mew=0.8, label="end of a request")


def _draw_forks(ax: Axes, layout: Layout, every: Sequence[Request | Prompt | bytes], unit: str) -> None:
    """Label the forks with the body member in which the requests diverge.

    The label is left of the fork, or right of it if the line is too short. Forks with the most requests are labelled first.
    A fork in the same member as the fork before it gets no label.
    """
    forks = layout.forks()
    height = (len(layout.leaves) + 0.5) * 11 / (ax.bbox.height * 72 / ax.figure.dpi)
    width = ax.get_xlim()[1] / characters(ax)
    members: dict[int, str] = {}
    occupied: list[tuple[float, float, float]] = []
    for at in sorted(forks, key=lambda at: (-layout.requests[at], at))[:FORKS]:
        branch, y = layout.branches[at], float(layout.rows[at])
        otherwise = f"{unit[:-1]} {branch.stop:,}"
        members[at] = _diverging_member(
            every[layout.any_request(forks[at][0])], every[layout.any_request(forks[at][1])], otherwise
        )
        if branch.parent is not None and members.get(branch.parent) == members[at]:
            continue
        long = width * (len(members[at]) + 1)
        left = branch.stop - branch.start >= long
        start, stop = (branch.stop - long, branch.stop) if left else (branch.stop, branch.stop + long)
        if any(abs(y - row) < height and start < end and begin < stop for row, begin, end in occupied):
            continue
        occupied.append((y, start, stop))
        look: dict[str, Any] = {"fontsize": "small", "color": DARK, "zorder": 4, "textcoords": "offset points", **PLAIN}
        if left:
            ax.annotate(members[at], (branch.stop, y), (-3, 3), ha="right", va="bottom", **look)
        else:
            box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.4}
            ax.annotate(members[at], (branch.stop, y), (4, 0), ha="left", va="center", bbox=box, **look)


def _diverging_member(one: Request | Prompt | bytes, other: Request | Prompt | bytes, otherwise: str) -> str:
    """Return the name of the body member in which two requests diverge, or `otherwise` if the member is unknown."""
    try:
        found = divergence(one, other)
    except InvalidConfig:  # prompts of token ids or block hashes have no members
        found = None
    return otherwise if found is None else shown(found.member)


def _name(layout: Layout, leaf: int, every: Sequence[Request | Prompt | bytes]) -> str:
    """Return the label of a conversation: its session and number of requests."""
    ends = layout.branches[leaf].ends
    owners = [None if isinstance(every[at], bytes) else every[at].session for at, _ in ends]  # type: ignore[union-attr]
    names = list(dict.fromkeys(session for session in owners if session is not None))
    name = shown(names[0], 24) if names else f"request {ends[0][0] + 1:,}"
    if len(names) > 1:
        name += f" +{len(names) - 1:,}"
    return name if len(ends) == 1 else f"{name} ({len(ends):,} requests)"
