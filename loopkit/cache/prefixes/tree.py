"""The tree of prefixes as a whole: the stretches along which requests go together, and where each of them ends.

A conversation that only grows is one branch, on which its requests end one after the other. Linear in what comes in, as
:mod:`loopkit.cache.prefixes.reuse`, whose tree it is. Says nothing of why requests part: that is for ``divergence``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from loopkit.cache.prefixes.prompt_parts import Prompt
from loopkit.cache.prefixes.reuse import WIDTH, Node, grown, roots
from loopkit.contract.request import Request
from loopkit.errors import InvalidConfig

__all__ = ["Branch", "Tree", "branches"]


class Branch(NamedTuple):
    """A stretch of prompt that does not fork."""

    parent: int | None
    "The branch that it leaves, by its place; None of the trunk."
    start: int
    "Where it leaves that, in units from the beginning of the prompt."
    stop: int
    "Where it forks, or the last of its requests ends."
    ends: tuple[tuple[int, int], ...]
    "The requests that end on it, by their place in the sequence, and where; shorter ones first."


class Tree(NamedTuple):
    """Branches, each before those that leave it; of these, the one that came first is first."""

    unit: str
    "``bytes``, ``tokens`` or ``blocks``."
    branches: tuple[Branch, ...]


def branches(requests: Iterable[Request | Prompt | bytes]) -> Tree:
    """Find where requests go together and where they part.

    Parameters
    ----------
    requests : iterable of Request, Prompt or bytes
        As `reuse` takes them, all known in one unit.

    Returns
    -------
    Tree
        With the trunk alone where there is no request.

    Raises
    ------
    InvalidConfig
        Where some are known by their bytes and others by tokens or blocks.

    Examples
    --------
    >>> for branch in branches([Prompt(tokens=[1, 2, 3]), Prompt(tokens=[1, 2, 3, 4]), Prompt(tokens=[1, 2, 5])]).branches:
    ...     print(branch)
    Branch(parent=None, start=0, stop=2, ends=())
    Branch(parent=0, start=2, stop=4, ends=((0, 3), (1, 4)))
    Branch(parent=0, start=2, stop=3, ends=((2, 3),))
    """
    trees, ends, units = roots(), dict[int, list[int]](), dict[str, None]()
    for index, (_, unit, node) in enumerate(grown(requests, trees)):
        units[unit] = None
        ends.setdefault(id(node), []).append(index)
    if len(units) > 1:
        raise InvalidConfig("requests", f"they are known in {' and '.join(units)}", "Give those of one kind")
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
