"""Branches: every request is the way to where it ends, and two share what a comparison of the two finds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopkit.cache import Prompt
from loopkit.cache.prefixes.tree import Branch, branches
from loopkit.errors import InvalidConfig


def way(found: tuple[Branch, ...], at: int | None) -> list[int]:
    return [] if at is None else [*way(found, found[at].parent), at]


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from([0, 256, 257]), max_size=8), max_size=10))
def test_two_requests_share_what_their_ways_share(asked: list[list[int]]) -> None:
    unit, found = branches(Prompt(tokens=tokens) for tokens in asked)
    where = {request: (at, depth) for at, branch in enumerate(found) for request, depth in branch.ends}
    assert sorted(where) == list(range(len(asked)))
    for request, tokens in enumerate(asked):
        at, depth = where[request]
        assert depth == len(tokens)
        assert found[at].start <= depth <= found[at].stop
        for other, theirs in enumerate(asked[:request]):
            both = [one for one, two in zip(way(found, at), way(found, where[other][0])) if one == two]
            shared = next((i for i, (a, b) in enumerate(zip(tokens, theirs)) if a != b), min(len(tokens), len(theirs)))
            assert min(found[both[-1]].stop, depth, where[other][1]) == shared
    for at, branch in enumerate(found):
        children = [child for child in found if child.parent == at]
        assert len(children) != 1, "a branch ends where it forks"
        assert all(child.start == branch.stop for child in children)
        assert branch.parent is None or branch.parent < at
    assert unit == ("tokens" if asked else "bytes")


def test_a_conversation_that_grows_is_one_branch() -> None:
    rows = [b'{"messages":[' + b",".join([b'{"role":"user","content":"Hi"}'] * size) + b"]}" for size in range(1, 40)]
    [only] = branches(rows).branches
    assert [request for request, _ in only.ends] == list(range(39))
    assert [depth for _, depth in only.ends] == [len(row) - 2 for row in rows]


def test_bytes_and_tokens_are_not_compared() -> None:
    with pytest.raises(InvalidConfig, match="known by bytes and some by tokens"):
        branches([b"{}", Prompt(tokens=[1])])
