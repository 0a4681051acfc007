"""Cutting a transcript into pieces that a model can read at once: whole records, in order, under a token budget.

A record is never split: one over the budget stands alone. Knows nothing of where records come from; tokens are counted by a
function that is handed in, the server's own tokenizer where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from loopkit.contract.provenance import Record
from loopkit.memory.types import need_count, said

__all__ = ["Count", "Counted", "estimate", "groups"]

Count: TypeAlias = Callable[[str], int]

BYTES_PER_TOKEN = 3  # of text that no server has counted; a low guess, so that a chunk is rather too small than too large


class Counted(NamedTuple):
    """A record, and the tokens that it takes in a chunk's text."""

    record: Record
    tokens: int


def estimate(text: str) -> int:
    """A careful guess at a text's tokens, for where no server counts them.

    Examples
    --------
    >>> estimate("abcd"), estimate("")
    (2, 0)
    """
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


def groups(records: Iterable[Record], budget: int, count: Count = estimate) -> Iterator[list[Counted]]:
    """Cut records into groups, each of which becomes a chunk.

    Parameters
    ----------
    records : iterable of Record
        In order; read one by one.
    budget : int
        Tokens that a chunk's text may take.
    count : callable
        Gives the tokens of a text.

    Yields
    ------
    list of Counted
        As many whole records as fit, or one that does not.

    Examples
    --------
    >>> from loopkit.contract.provenance import Provenance, Role
    >>> texts = ["four", "five", "a long one", "end"]
    >>> records = [Record(Role.User, text, None, Provenance("s", at)) for at, text in enumerate(texts)]
    >>> [[each.record.text for each in group] for group in groups(records, 25, len)]
    [['four', 'five'], ['a long one'], ['end']]
    """
    need_count("budget", budget)
    group: list[Counted] = []
    spent = 0
    for record in records:
        tokens = count(said(record) + "\n\n")
        if group and spent + tokens > budget:
            yield group
            group, spent = [], 0
        group.append(Counted(record, tokens))
        spent += tokens
    if group:
        yield group
