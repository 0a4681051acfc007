"""The matrix is what a comparison of every pair finds; its picture is the matrix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from loopkit.cache import Prompt
from loopkit.errors import InvalidConfig
from loopkit.logs.loading import load
from loopkit.plot import prefix_tree, reuse_matrix
from loopkit.plot.prefix_matrix import Matrix
from loopkit.reprs import counted
from tests.logs.make import kept, start, write_session
from tests.plot.artists import HOSTILE, conversations, drawn


@settings(deadline=None)
@given(st.lists(st.tuples(st.lists(st.sampled_from([0, 256, 257]), max_size=6), st.sampled_from([None, "a", "b"])), max_size=12))
def test_every_pair_as_the_brute_force_says(asked: list[tuple[list[int], str | None]]) -> None:
    found = Matrix.of(Prompt(tokens=tokens, session=session) for tokens, session in asked)
    assert sorted(found.order) == list(range(len(asked)))
    assert [asked[at][1] for at in found.order] == found.sessions
    assert sum(one != two for one, two in zip(found.sessions, found.sessions[1:])) == max(len(set(found.sessions)) - 1, 0)
    for row, one in enumerate(found.order):
        for column, two in enumerate(found.order):
            pairs = zip(asked[one][0], asked[two][0])
            least = min(len(asked[one][0]), len(asked[two][0]))
            assert found.shared[row, column] == next((at for at, (x, y) in enumerate(pairs) if x != y), least)


def test_the_picture_is_the_share_of_each_rows_prompt() -> None:
    ax = reuse_matrix([Prompt(tokens=tokens) for tokens in ([1, 2, 3, 4], [1, 2], [], [9])])
    shares = np.asarray(ax.images[0].get_array(), float)
    assert np.nan_to_num(shares, nan=-1).tolist() == [[1, 0.5, 0, 0], [1, 1, 0, 0], [-1, -1, -1, -1], [0, 0, 0, 1]]
    assert ax.get_title() == "shared prefixes of 4 requests"
    [bar] = [each for each in ax.figure.axes if each is not ax]
    assert bar.get_ylabel() == "share of the row's tokens that the column starts with"
    assert drawn(ax)


def test_sessions_stand_side_by_side_and_are_named_as_they_are() -> None:
    ax = reuse_matrix(conversations(9, 3, name=HOSTILE))
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == [f"$\\frac{{$ <b>··x{number}" for number in range(3)]
    assert [float(line.get_ydata()[0]) for line in ax.lines[::2]] == [3.5, 6.5]  # type: ignore[index, arg-type]
    assert drawn(ax)


@pytest.mark.parametrize("requests", [3, 30, 3000])
def test_few_and_many(requests: int) -> None:
    ax = reuse_matrix(conversations(requests, max(2, requests // 50)))
    assert np.asarray(ax.images[0].get_array()).shape == (requests, requests)
    assert len(ax.lines) <= 46
    assert drawn(ax)


def test_no_requests_and_one() -> None:
    assert "the logs contain no bodies" in reuse_matrix([]).get_title()
    one = reuse_matrix([b"{}"])
    assert one.get_title() == "shared prefixes of 1 request"
    assert drawn(one)


def test_the_axes_given_are_used_and_what_cannot_be_compared_is_refused() -> None:
    mine = Figure().subplots()
    assert reuse_matrix([b"{}"], mine) is mine
    with pytest.raises(InvalidConfig, match="known by bytes and some by blocks"):
        reuse_matrix([b"{}", Prompt(blocks=["a"])])


def test_logs_are_drawn_like_their_requests(tmp_path: Path) -> None:
    write_session(tmp_path, "a", [start("a"), *kept(4)])
    logs = load(tmp_path)
    assert reuse_matrix(logs).get_title() == f"shared prefixes of {counted(len(list(logs.requests())), 'request')}"
    assert prefix_tree(logs).get_title().startswith("4 requests in ")
