"""The prefix tree of many requests: branches, and the requests that end on each.

A conversation that only grows is one branch. The time is linear in the input.
"""

from __future__ import annotations

from typing import NamedTuple

from loopkit.cache.prefixes.prompt_parts import Requests, requests_of
from loopkit.cache.prefixes.reuse import WIDTH, Node, grown, roots
from loopkit.errors import InvalidConfig

__all__ = ["Branch", "Tree", "branches"]


class Branch(NamedTuple):
    """A stretch of prompt without a fork."""

    parent: int | None
    "Position of the branch that this one leaves; None for the trunk."
    start: int
    "Where it begins, in units from the start of the prompt."
    stop: int
    "Where it forks, or where its last request ends."
    ends: tuple[tuple[int, int], ...]
    "Requests that end on this branch, as (position in the sequence, end), shortest first."


class Tree(NamedTuple):
    """Branches of a prefix tree. A parent comes before its children; children are in order of their first request."""

    unit: str
    "``bytes``, ``tokens`` or ``blocks``."
    branches: tuple[Branch, ...]


def branches(requests: Requests) -> Tree:
    """Build the prefix tree of requests.

    Parameters
    ----------
    requests : Logs, Session, or iterable of Request, Prompt or bytes
        As for `loopkit.cache.reuse`, all of one unit.

    Returns
    -------
    Tree
        Only the trunk if there are no requests.

    Raises
    ------
    InvalidConfig
        If some requests are known by bytes and others by tokens or blocks.

    Examples
    --------
    >>> from loopkit.cache import Prompt
    >>> for branch in branches([Prompt(tokens=[1, 2, 3]), Prompt(tokens=[1, 2, 3, 4]), Prompt(tokens=[1, 2, 5])]).branches:
    ...     print(branch)
    Branch(parent=None, start=0, stop=2, ends=())
    Branch(parent=0, start=2, stop=4, ends=((0, 3), (1, 4)))
    Branch(parent=0, start=2, stop=3, ends=((2, 3),))
    """
    trees, ends, units = roots(), dict[int, list[int]](), dict[str, None]()
    for index, (_, unit, node) in enumerate(grown(requests_of(requests), trees)):
        units[unit] = None
        ends.setdefault(id(node), []).append(index)
    if len(units) > 1:
        raise InvalidConfig(
            "requests", f"some are known by {' and some by '.join(units)}", "Give requests that all have bodies, tokens or blocks"
        )
    unit = next(iter(units), "bytes")
    found: list[Branch] = []
    open_: list[tuple[Node, int | None, int]] = [(trees[unit], None, 0)]
    while open_:
        node, parent, start = open_.pop()
        here: list[tuple[int, int]] = []
        while True:
            depth = node.depth // WIDTH[unit]
            here += [(index, depth) for index in ends.get(id(node), ())]
            if len(node.below) != 1:
                break
            [node] = node.below.values()
        found.append(Branch(parent, start, depth, tuple(here)))
        below = sorted(node.below.values(), key=lambda child: child.first, reverse=True)
        open_ += [(child, len(found) - 1, depth) for child in below]
    return Tree(unit, tuple(found))
