"""The prefix tree of many requests: branches, and the requests that end on each.

The requests of a conversation that only appends messages are on one branch. The time is linear in the input.
"""

from __future__ import annotations

from typing import NamedTuple

from loopkit.cache.prefixes.prompt_parts import Requests, requests_of
from loopkit.cache.prefixes.reuse import WIDTH, Node, grown, roots
from loopkit.errors import InvalidConfig

__all__ = ["Branch", "Tree", "branches"]


class Branch(NamedTuple):
    """A part of the prefix tree between two forks, or between a fork and an end."""

    parent: int | None
    "Index in `Tree.branches` of the branch that this one continues; None for the first branch (the trunk)."
    start: int
    "Where the branch begins: the number of units (bytes, tokens or blocks) from the start of the prompt."
    stop: int
    "Where the branch forks, or where its longest request ends, in the same units."
    ends: tuple[tuple[int, int], ...]
    "Requests that end on this branch, shortest first, as pairs: index in the sequence of requests, and size of the prompt."


class Tree(NamedTuple):
    """Result of `branches`: a prefix tree as a list of branches."""

    unit: str
    "The unit of all positions: ``bytes``, ``tokens`` or ``blocks``."
    branches: tuple[Branch, ...]
    "A parent comes before its children. Children of one parent are in the order of their first requests."


def branches(requests: Requests) -> Tree:
    """Return the prefix tree of requests: the prefixes that they share, and where they diverge.

    Parameters
    ----------
    requests : Logs, Session, or iterable of Request, Prompt or bytes
        The requests, in the order in which they were sent. All must have bodies or messages, or all token ids, or all block
        hashes.

    Returns
    -------
    Tree
        The branches. Without requests, there is one empty branch.

    Raises
    ------
    InvalidConfig
        If some requests have bodies and others have only token ids or block hashes.

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
