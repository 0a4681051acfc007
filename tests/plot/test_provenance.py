"""Points are the nodes, lines what they were made from, and each piece of evidence says where it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from loopkit.errors import InvalidConfig
from loopkit.ids import QueryId, RunId
from loopkit.memory.frames import EVIDENCE, Lineage
from loopkit.memory.memory import Memory
from loopkit.plot import provenance
from loopkit.plot.provenance_graph import Places
from tests.memory.make import LIGHT, PERU, QUESTION, Model, build, filled, records
from tests.plot.artists import HOSTILE, drawn, legend

L2, L1, L0 = "synthesis of a project (L2)", "memory for a query (L1)", "evidence (L0)"


def points(ax: Axes, label: str) -> list[list[float]]:
    [line] = [line for line in ax.lines if line.get_label() == label]
    return np.asarray(line.get_xydata()).tolist()  # type: ignore[no-any-return]


def named(ax: Axes) -> list[str]:
    return [label.get_text() for label in ax.get_yticklabels()]


def whole(home: Path, count: int) -> Lineage:
    """Of a synthesis of two questions."""
    memory = filled(home, count)
    build(memory, Model())
    memory.build(PERU, QueryId("dark"), "When is it dark?", model=lambda prompt: "At six.")
    made = memory.synthesise(PERU, model=lambda prompt: f"Lima is in Peru.{' Yes.' * prompt.count('At six')}").node
    assert made is not None
    return memory.lineage(made)


def large(count: int) -> Lineage:
    """A fold of so many steps, each with its piece of evidence."""
    level = pd.Categorical(["L0"] * count + ["L1"] * count)
    nodes = pd.DataFrame({"sha256": [f"{at}" for at in range(2 * count)], "level": level, "query_id": "q", "text": "so"})
    steps = pd.DataFrame({"child": range(count, 2 * count), "parent": range(count)})
    chain = pd.DataFrame({"child": range(count + 1, 2 * count), "parent": range(count, 2 * count - 1)})
    evidence = pd.DataFrame(
        {"node": nodes["sha256"][:count], "source": "notes", "path": None, "offset": range(count), "text": "a"}
    )
    return Lineage(nodes, pd.concat([steps, chain]).astype(str), evidence)


def test_a_fold_is_a_line_down_its_column_beside_its_evidence(tmp_path: Path) -> None:
    memory = filled(tmp_path, 3)
    build(memory, Model())
    last = memory.nodes()["sha256"].iloc[-1]
    ax = provenance(memory.lineage(last))
    assert points(ax, L1) == [[0, 0], [0, 1], [0, 2]]
    assert points(ax, L0) == [[1, 0], [1, 1], [1, 2]]
    [edges] = [each for each in ax.collections if isinstance(each, LineCollection)]
    found = sorted(np.asarray(path.vertices).tolist() for path in edges.get_paths())
    steps = [[[0.0, 1.0], [0.0, 0.0]], [[0.0, 2.0], [0.0, 1.0]]]
    assert found == sorted([*steps, *([[0.0, row], [1.0, row]] for row in (0.0, 1.0, 2.0))])
    assert named(ax) == [f"notes/0@{100 * at}: Fact {at} of Lima." for at in range(3)]
    assert legend(ax) == [L1, L0]
    assert ax.get_title() == "“Fact 0 of Lima. Fact 1 of Lima. Fact 2 of Lima.” comes from 3 records of 1 source"
    assert drawn(ax)


def test_questions_stand_beside_each_other_and_the_synthesis_before_them(tmp_path: Path) -> None:
    ax = provenance(whole(tmp_path, 2))
    assert points(ax, L2) == [[0, 1], [0, 1.5]], "two steps at one row are drawn apart"
    assert {x for x, _ in points(ax, L1)} == {1, 1.3}
    assert {x for x, _ in points(ax, L0)} == {2}
    assert ax.get_title() == "“Lima is in Peru. Yes.” comes from 2 records of 1 source"
    assert drawn(ax)


def test_evidence_of_several_records_says_how_many(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.ingest(records([HOSTILE, "Two.", "Three."]), project=PERU, run=RunId("r"))
    build(memory, lambda prompt: HOSTILE)
    ax = provenance(memory.lineage(memory.nodes()["sha256"].iloc[-1]))
    assert named(ax) == ["notes/0@0 (+2): $\\frac{$ <b>··x"]
    assert ax.get_title().startswith("“$\\frac{$ <b>·")
    assert drawn(ax)


def test_of_a_file_its_name_is_said(tmp_path: Path) -> None:
    found = large(1)
    ax = provenance(found._replace(evidence=found.evidence.assign(path=str(tmp_path / "sessions" / "a-session" / "0.jsonl"))))
    assert named(ax) == ["a-session/0.jsonl@0: a"]


def test_a_filtered_frame_is_drawn_as_far_as_it_goes(tmp_path: Path) -> None:
    found = whole(tmp_path, 4)
    some = found.nodes[found.nodes["level"] != "L1"]
    places = Places.of(some, found.edges)
    assert len(places.edges) == len(
        found.edges[found.edges["child"].isin(some["sha256"]) & found.edges["parent"].isin(some["sha256"])]
    )
    ax = provenance(Lineage(some, found.edges, found.evidence.iloc[:1]))
    assert named(ax)[1:] == ["not in the evidence frame"] * 3
    assert drawn(ax)


@pytest.mark.parametrize("count", [3, 30, 3000])
def test_few_and_many(count: int) -> None:
    ax = provenance(large(count))
    assert len(points(ax, L0)) == len(points(ax, L1)) == count
    assert len(ax.lines) + len(ax.collections) == 3
    assert len(ax.get_yticks()) == (count if count <= 40 else 1)
    assert count <= 40 or named(ax) == ["notes (3,000)"]
    assert drawn(ax)


def test_nothing_to_draw(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    ax = provenance(Lineage(memory.nodes(), memory.edges(), pd.DataFrame(columns=list(EVIDENCE))))
    assert ax.get_title() == "no memory"
    assert drawn(ax)


def test_the_axes_given_are_used_and_what_is_no_lineage_is_refused() -> None:
    mine = Figure().subplots()
    assert provenance(large(1), mine) is mine
    bad: list[tuple[Any, str]] = [
        ("node", "expected a Lineage; got a str"),
        (Lineage(*[pd.DataFrame()] * 3), "lacks the columns sha256"),
    ]
    for given, said in bad:
        with pytest.raises(InvalidConfig, match=said):
            provenance(given)


def test_the_title_is_whole_and_each_step_has_its_first_words(tmp_path: Path) -> None:
    memory = filled(tmp_path, 3)
    built = memory.build(PERU, LIGHT, QUESTION, model=lambda prompt: f"A memory that goes on for a while about {len(prompt)}")
    assert built.node is not None
    ax = provenance(memory.lineage(built.node))
    assert drawn(ax)
    assert [text.get_text() for text in ax.texts] == ["A memory that goes on for a…"] * 2  # what is written again is no new one
    assert ax.title.get_window_extent().x0 >= 0


def test_a_piece_of_evidence_alone_shows_its_records(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.ingest(records(["One.", "Two.", "Three."]), project=PERU)
    ax = provenance(memory.lineage(memory.recall("Two")[0].node))
    assert [label.get_text().split(": ")[1] for label in ax.get_yticklabels()] == ["One.", "Two.", "Three."]
    assert drawn(ax)
