"""Lines are the branches, each fork is named by what parts there."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from loopkit.cache import Prompt
from loopkit.cache.prefixes.tree import branches
from loopkit.errors import InvalidConfig
from loopkit.plot import prefix_tree
from loopkit.plot.branch_diagram import Layout
from tests.plot.artists import HOSTILE, conversations, drawn, legend, texts

SHARED, OWN = "shared by several branches", "in one branch"


def lines(ax: Axes, label: str) -> list[list[list[float]]]:
    found = [each for each in ax.collections if each.get_label() == label]
    assert all(isinstance(each, LineCollection) for each in found)
    return [np.asarray(path.vertices).tolist() for each in found for path in each.get_paths()]


def test_lines_are_the_branches() -> None:
    ax = prefix_tree([Prompt(tokens=tokens) for tokens in ([1, 2, 3], [1, 2, 3, 4], [1, 2, 5], [1, 2, 6, 7])])
    assert lines(ax, SHARED) == [[[0, 1], [2, 1]]], "in the middle of its three"
    assert lines(ax, OWN) == [[[2, 0], [4, 0]], [[2, 1], [3, 1]], [[2, 2], [4, 2]]]
    assert lines(ax, "_nolegend_") == [[[2, 0], [2, 2]]]
    [ends] = [line for line in ax.lines if line.get_label() == "end of a request"]
    assert np.asarray(ends.get_xydata()).tolist() == [[3, 0], [4, 0], [3, 1], [4, 2]]
    assert legend(ax) == [SHARED, OWN, "end of a request"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["request 1 (2 requests)", "request 3", "request 4"]
    assert texts(ax) == ["token 2"], "no bodies, no member"
    assert (ax.get_title(), ax.get_xlabel()) == ("4 requests in 3 branches", "prompt tokens")
    assert drawn(ax)


def test_a_fork_is_named_by_the_member_in_which_requests_part() -> None:
    body = b'{"tools":[{"description":"%b"}],"messages":[{"role":"user","content":"%b"}]}'
    asked = [
        body % pair for pair in ((b"a " * 99 + b"tool", b"one"), (b"a " * 99 + b"tool", b"two"), (b"a " * 99 + b"pipe", b"a"))
    ]
    ax = prefix_tree(asked)
    assert texts(ax) == ["tools[0].description", "messages[0].content"]


def test_a_fork_in_the_same_member_is_named_once() -> None:
    said = [f'{{"messages":[{{"role":"user","content":"{"so " * 20}{word}"}}]}}'.encode() for word in ("ab", "ac", "d")]
    assert texts(prefix_tree(said)) == ["messages[0].content"]


def test_a_conversation_that_grows_is_one_line() -> None:
    ax = prefix_tree(conversations(30, 1, edits=False))
    assert ax.get_title() == "30 requests in 1 branch"
    assert len(lines(ax, OWN)) == 1
    assert legend(ax) == [OWN, "end of a request"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["s0 (30 requests)"]


def test_layout_counts_what_goes_through() -> None:
    layout = Layout.of(branches(conversations(200, 12)).branches)
    assert layout.requests[0] == 200
    assert layout.conversations[0] == len(layout.leaves) >= 12
    for at, children in layout.forks().items():
        assert layout.requests[at] == len(layout.branches[at].ends) + layout.requests[children].sum()
        assert layout.rows[children[0]] <= layout.rows[at] <= layout.rows[children[-1]]
    assert sorted(layout.rows[layout.leaves]) == list(range(len(layout.leaves)))


def test_names_are_shown_as_they_are() -> None:
    ax = prefix_tree(conversations(4, 2, name=HOSTILE))
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == [f"$\\frac{{$ <b>··x{number} (2 requests)" for number in range(2)]
    assert drawn(ax)


@pytest.mark.parametrize("requests", [3, 30, 3000])
def test_few_and_many(requests: int) -> None:
    ax = prefix_tree(conversations(requests, max(3, requests // 10)))
    assert len(ax.collections) == 3
    assert len(ax.lines) <= 1
    assert len(ax.texts) <= 8
    assert len(ax.get_yticks()) <= 40
    assert drawn(ax)


def test_nothing_to_draw_and_nothing_in_it() -> None:
    assert prefix_tree([]).get_title() == "no requests"
    assert drawn(prefix_tree([Prompt(tokens=[]), Prompt(tokens=[])]))


def test_the_axes_given_are_used_and_what_cannot_be_compared_is_refused() -> None:
    mine = Figure().subplots()
    assert prefix_tree([b"{}"], mine) is mine
    with pytest.raises(InvalidConfig, match="known by bytes and some by tokens"):
        prefix_tree([b"{}", Prompt(tokens=[1])])
    for bad in ("text", 7, [{"role": "user"}]):
        with pytest.raises(InvalidConfig, match=r"expected (requests|Logs)"):
            prefix_tree(bad)  # type: ignore[arg-type]
