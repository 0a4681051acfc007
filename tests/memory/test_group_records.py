"""Chunks hold whole records, in order, under the budget; one that is over it stands alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopkit.contract.provenance import Provenance, Record, Role
from loopkit.errors import InvalidConfig
from loopkit.memory.ingest import estimate_tokens, group_records
from loopkit.memory.nodes import Chunk, as_line


def record(text: str, at: int = 0) -> Record:
    return Record(Role.User, text, None, Provenance("s", at))


@given(st.lists(st.text(max_size=40), max_size=20), st.integers(1, 120))
def test_no_record_is_split_lost_or_moved(texts: list[str], budget: int) -> None:
    records = [record(text, at) for at, text in enumerate(texts)]
    made = list(group_records(records, budget, len))
    assert [each.record for group in made for each in group] == records
    for group in made:
        spent = sum(each.tokens for each in group)
        assert spent <= budget or len(group) == 1
        text = Chunk.of(1, [each.record for each in group], spent).text
        assert len(text) == spent - 2, "the blank line behind the last is counted and not written"
    for before, after in pairwise(made):
        assert sum(each.tokens for each in (*before, after[0])) > budget, "cut no earlier than needed"


def test_a_record_over_the_budget_stands_alone_and_says_so() -> None:
    made = list(group_records([record("a"), record("b" * 100), record("c")], 30, len))
    assert [[each.record.text[:1] for each in group] for group in made] == [["a"], ["b"], ["c"]]
    assert sum(each.tokens for each in made[1]) == len(as_line(record("b" * 100))) + 2 > 30


def test_records_are_read_one_by_one() -> None:
    read = 0

    def source() -> Iterator[Record]:
        nonlocal read
        for at in range(1_000):
            read += 1
            yield record("x" * 20, at)

    next(group_records(source(), 100, len))
    assert read == 4


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="budget"):
        next(group_records([record("a")], 0))


def test_the_estimate_tokens_is_on_the_safe_side_for_text_beyond_ascii() -> None:
    assert estimate_tokens("日本語") == 3
    assert estimate_tokens("a" * 300) == 100
