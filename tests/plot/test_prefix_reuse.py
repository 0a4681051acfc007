"""The figure says what the frame says; its artists' data are looked at, not its pixels."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.path import Path as MplPath
from numpy.typing import NDArray

from loopkit.contract.records import LogRecord
from loopkit.errors import InvalidConfig
from loopkit.logs.collection import Logs
from loopkit.logs.loading import load
from loopkit.plot import prefix_reuse
from loopkit.plot.request_bars import Stack
from loopkit.plot.style import STYLES
from tests.logs.make import assistant, end, kept, replay, start, usage, user, write, write_session
from tests.plot.artists import HOSTILE, drawn, legend, texts


def one(home: Path, requests: int, loses: frozenset[int] = frozenset()) -> Logs:
    write_session(home, "a", [start("a"), *kept(requests, loses=loses)])
    return load(home)


def kept_and_broken(home: Path, requests: int) -> Logs:
    write_session(home, "a", [start("a"), *kept(requests)])
    write(home / "replays/r.jsonl", replay("live_system", requests, broken=True))
    return load(home)


def heights(ax: Axes) -> dict[str, list[float]]:
    """Heights of the bars of each part, all groups in one list."""
    made: dict[str, list[float]] = {}
    part = ""
    for bars in ax.containers:
        assert isinstance(bars, BarContainer)
        label = str(bars.get_label())
        part = part if label == "_nolegend_" else label
        made.setdefault(part, []).extend(float(bar.get_height()) for bar in bars)
    return made


def marks(ax: Axes) -> list[tuple[float, float]]:
    lines = [line for line in ax.lines if line.get_marker() == "v"]
    return [(float(x), float(y)) for line in lines for x, y in np.asarray(line.get_xydata())]


def vertices(path: MplPath) -> NDArray[np.float64]:
    return np.asarray(path.vertices, np.float64)


def test_bars_are_the_frame(tmp_path: Path) -> None:
    ax = prefix_reuse(one(tmp_path, 4, loses=frozenset({3})))
    assert heights(ax) == {
        "reused from the cache": [0, 1000, 0, 1200],
        "lost (processed again)": [0, 0, 1100, 0],
        "new": [1000, 100, 100, 100],
    }
    tops = [bar.get_y() + bar.get_height() for bar in ax.containers[2]]
    assert tops == [1000, 1100, 1200, 1300], "the parts together are the prompt"
    assert ax.get_title() == "processed 2,400 of 4,600 prompt tokens; lost 1,100"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("request", "prompt tokens")
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "3", "4"]
    assert drawn(ax)


def test_a_loss_is_marked_with_its_cause(tmp_path: Path) -> None:
    ax = prefix_reuse(one(tmp_path, 9, loses=frozenset({3, 4, 8})))
    assert [x for x, _ in marks(ax)] == [2, 3, 7]
    assert texts(ax) == ["slot_taken × 2", "slot_taken"]
    assert legend(ax) == ["reused from the cache", "lost (processed again)", "new", "loss, with its cause"]


def test_nothing_lost_nothing_marked(tmp_path: Path) -> None:
    ax = prefix_reuse(one(tmp_path, 3))
    assert marks(ax) == []
    assert texts(ax) == []
    assert legend(ax) == ["reused from the cache", "new"]


def test_unknown_is_hatched_and_not_zero(tmp_path: Path) -> None:
    unknown: list[LogRecord] = [
        *(user(1), assistant(1), usage(1, 1, 900, 0, shortfall="first_request")),
        *(user(2), assistant(2), usage(2, 2, 1000, None)),
        *(user(3), assistant(3), usage(3, 3, 1100, 300)),
        *(user(4), assistant(4), usage(4, 4, None, None)),
    ]
    write_session(tmp_path, "a", [start("a"), *unknown])
    ax = prefix_reuse(load(tmp_path))
    assert heights(ax) == {"reused from the cache": [0, 0, 300, 0], "new": [900, 0, 0, 0], "unknown": [0, 1000, 800, 0]}
    [hatched] = [bars for bars in ax.containers if bars.get_label() == "unknown"]
    assert all(bar.get_hatch() for bar in hatched)
    assert legend(ax)[-1] == "prompt not reported"
    [unsaid] = [line for line in ax.lines if line.get_label() == "prompt not reported"]
    assert np.asarray(unsaid.get_xdata()).tolist() == [3]
    assert "2 requests unknown" in ax.get_title()


def test_epoch_borders(tmp_path: Path) -> None:
    write_session(tmp_path, "a", [start("a"), *kept(3), end(9)], [start("a", 1), *kept(2)])
    ax = prefix_reuse(load(tmp_path))
    assert [text.strip() for text in texts(ax)] == ["epoch 1"]
    [border] = ax.collections
    assert vertices(border.get_paths()[0])[0, 0] == 2.5


def test_groups_stand_side_by_side_under_their_names(tmp_path: Path) -> None:
    ax = prefix_reuse(kept_and_broken(tmp_path, 4))
    assert heights(ax)["reused from the cache"] == [0, 1000, 1100, 1200, 0, 0, 0, 0]
    assert heights(ax)["lost (processed again)"] == [0, 0, 0, 0, 0, 1000, 1100, 1200]
    assert texts(ax) == [
        "system_changed × 3",
        "contract kept\nprocessed 1,300 of 4,600, lost 0",
        "live_system\nprocessed 4,600 of 4,600\nlost 3,300",
    ]
    assert ax.get_title() == "live_system processed 3.5 times as many prompt tokens as contract kept"
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "3", "4", "1", "2", "3", "4"]
    lefts = [float(bar.get_x()) for bars in ax.containers[:2] for bar in bars]
    assert lefts == sorted(lefts)
    assert lefts[4] - lefts[3] > 2


def test_sessions_of_different_work_are_not_compared(tmp_path: Path) -> None:
    write_session(tmp_path, "a", [start("a"), *kept(2)])
    write_session(tmp_path, "b", [start("b"), *kept(3)])
    ax = prefix_reuse(load(tmp_path), labels={"b": "the other"})
    assert ax.get_title() == "processed 2,300 of 5,400 prompt tokens; lost 0"
    assert [text.split("\n")[0] for text in texts(ax)] == ["a", "the other"]


def test_a_frame_will_do_and_may_be_filtered(tmp_path: Path) -> None:
    logs = kept_and_broken(tmp_path, 5)
    late = logs.usage[logs.usage["request"] > 3]
    ax = prefix_reuse(late)
    assert heights(ax)["new"] == [100, 100, 100, 100]
    assert texts(ax)[0] == "loss × 2", "without the frame of losses their cause is not known"
    named = prefix_reuse(late, cache_loss=logs.cache_loss)
    assert texts(named)[0] == "system_changed × 2"


def test_no_requests() -> None:
    ax = prefix_reuse(load([]))
    assert ax.get_title() == "no requests"
    assert drawn(ax)


@pytest.mark.parametrize("requests", [3, 30, 201, 3000])
def test_few_and_many(requests: int, tmp_path: Path) -> None:
    ax = prefix_reuse(one(tmp_path, requests, loses=frozenset({3, *range(100, 120), 2222})))
    artists = len(ax.patches) + len(ax.collections) + len(ax.lines) + len(ax.texts)
    if requests > 200:
        assert artists < 30
        assert len(marks(ax)) == len([at for at in (3, 100, 2222) if at <= requests]), "one mark a run"
        reused, lost, new = ax.collections[:3]
        assert [part.get_label() for part in (reused, lost, new)] == ["reused from the cache", "lost (processed again)", "new"]
        top = max(vertices(path)[:, 1].max() for path in new.get_paths())
        assert top == 1000 + (requests - 1) * 100
        assert len(vertices(reused.get_paths()[0])) > 2 * requests, "steps, one a request"
    else:
        assert len(ax.patches) == 3 * requests
    assert len(ax.get_xticks()) <= 18
    assert drawn(ax)


def test_the_axes_given_are_used_and_no_other(tmp_path: Path) -> None:
    logs = one(tmp_path, 3)
    figure = Figure()
    mine = figure.subplots()
    assert prefix_reuse(logs, ax=mine) is mine
    assert pyplot.get_fignums() == []
    current = pyplot.subplots()[1]
    new = prefix_reuse(logs)
    assert new is not current
    assert not current.has_data()
    assert len(pyplot.get_fignums()) == 2, "one new figure, which a notebook shows once and pyplot can close"


def test_no_style_is_set_and_nothing_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyplot, "show", lambda: pytest.fail("shown"))
    before = dict(mpl.rcParams)
    prefix_reuse(one(tmp_path, 3))
    assert dict(mpl.rcParams) == before


def test_parts_are_apart_in_greyscale() -> None:
    grey = {part: np.dot(to_rgb(style["facecolor"]), (0.299, 0.587, 0.114)) for part, style in STYLES.items()}
    steps = np.diff(sorted(grey.values()))
    assert steps.min() > 0.15
    assert STYLES["lost"]["hatch"] != STYLES["unknown"]["hatch"]


def test_the_parts_of_a_bar_are_its_prompt() -> None:
    """Also where a loss is larger than what was read, as an inexact expectation can make it."""
    frame = pd.DataFrame(
        {
            "prompt_tokens": [100, 100, 100, 100, None],
            "cached_tokens": [0, 60, None, 60, None],
            "lost_tokens": [0, 50, None, None, None],
        },
        dtype="Int64",
    )
    stack = Stack.of(frame)
    assert np.sum(stack, axis=0).tolist() == [100, 100, 100, 100, 0]
    assert stack.lost.tolist() == [0, 40, 0, 0, 0]
    assert stack.unknown.tolist() == [0, 0, 100, 40, 0]


def test_many_losses_are_counted_by_cause_in_the_legend(tmp_path: Path) -> None:
    ax = prefix_reuse(one(tmp_path, 300, loses=frozenset(range(3, 300, 3))))
    assert texts(ax) == []
    assert legend(ax)[-1] == "loss: slot_taken × 99"
    assert drawn(ax)


def test_however_long_the_legend_it_covers_no_name() -> None:
    ax = prefix_reuse(load("data/foreign/claude_code", errors="report"))
    assert drawn(ax)
    found = ax.get_legend()
    assert found is not None
    assert len(legend(ax)) == 6
    inside = [text for text in ax.texts if text.get_transform() == ax.transData]
    boxes = [text.get_window_extent() for text in inside]
    assert {"expired", "unexplained", " epoch 1"} <= {text.get_text() for text in inside}
    assert max(box.y1 for box in boxes) <= found.get_window_extent().y0 + 2
    epochs = [box for text, box in zip(inside, boxes, strict=True) if text.get_text().startswith(" epoch")]
    assert not [one for one in epochs for other in epochs if one is not other and one.overlaps(other)]


def test_many_sessions_are_named_upright_and_cut(tmp_path: Path) -> None:
    for number in range(30):
        write_session(tmp_path, f"session-{number:02}-of-very-many", [start(f"session-{number:02}-of-very-many"), *kept(3)])
    ax = prefix_reuse(load(tmp_path))
    assert texts(ax)[:2] == ["session-00-of-very-…", "session-01-of-very-…"]
    assert {text.get_rotation() for text in ax.texts} == {90}
    assert ax.get_xlabel() == "requests of 30 sessions, side by side"
    assert drawn(ax)


@pytest.mark.parametrize("sessions", [6, 24, 200])
def test_names_of_many_sessions_stay_apart_and_what_is_not_named_is_counted(tmp_path: Path, sessions: int) -> None:
    for number in range(sessions):
        name = f"20261130T144913-{number * 7919:012x}"
        write_session(tmp_path, name, [start(name), *kept(5, loses=frozenset({3, 5})), end(9)], [start(name, 1), *kept(3)])
    ax = prefix_reuse(load(tmp_path))
    assert drawn(ax)
    heads = [text for text in ax.texts if text.get_position()[1] == 1.01 and text.get_text()]
    boxes = [text.get_window_extent() for text in heads]
    assert all(left.x1 <= right.x0 for left, right in pairwise(boxes))
    assert len({text.get_text() for text in heads}) == len(heads) == (sessions if sessions < 200 else 0)
    [frame] = [found.get_window_extent() for found in [ax.get_legend()] if found is not None]
    others = [text.get_window_extent() for text in ax.texts if text not in heads and text.get_text()]
    assert not any(frame.overlaps(box) for box in others)
    if sessions > 6:
        assert legend(ax)[-1] == f"loss: slot_taken × {2 * sessions}"
        assert "slot_taken" not in texts(ax)


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    ax = prefix_reuse(kept_and_broken(tmp_path, 4), labels={"a": HOSTILE})
    assert any(text.startswith("$\\frac{$ <b>··x\n") for text in texts(ax))
    assert ax.get_title().endswith("$\\frac{$ <b>··x")
    assert drawn(ax)


@pytest.mark.parametrize("requests", [3, 300])
def test_causes_are_shown_as_they_are(tmp_path: Path, requests: int) -> None:
    """Over the bars, and of many losses in the legend."""
    logs = one(tmp_path, requests, loses=frozenset(range(2, requests, 2)))
    ax = prefix_reuse(logs.usage, cache_loss=logs.cache_loss.assign(cause=HOSTILE))
    assert any("$\\frac{$ <b>··x" in text for text in (*texts(ax), *legend(ax)))
    assert drawn(ax)


def test_a_frame_without_its_columns_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="lacks the columns session, epoch"):
        prefix_reuse(pd.DataFrame({"prompt_tokens": [1]}))
