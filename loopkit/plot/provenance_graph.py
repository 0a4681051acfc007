"""The figure ``provenance``: a memory and the evidence it was made from, down to file and byte offset.

Each level of the memory (synthesis, memory for a question, evidence) is a column. Each question has its own lane in its column.
The row of a node is the row of the newest evidence that it was made from.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from loopkit.errors import InvalidConfig, kind_of
from loopkit.memory.frames import Lineage
from loopkit.plot.inputs import frame_of
from loopkit.plot.style import GREY, PLAIN, new_axes, shown
from loopkit.reprs import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Places", "provenance"]

NAMED = 40
"If there are more pieces of evidence than this, only their sources are named."
COLUMNS = {
    "nodes": ("sha256", "level", "query_id", "text"),
    "edges": ("child", "parent"),
    "evidence": ("node", "source", "path", "offset", "text"),
}
WORDED = 12
"If there are more memories than this, they are not labelled with their first words."
UNKNOWN = "not in the evidence frame"
LEVELS = {
    "L2": {"label": "synthesis of a project (L2)", "color": "#163f66", "marker": "D"},
    "L1": {"label": "memory for a query (L1)", "color": "#d9680b", "marker": "s"},
    "L0": {"label": "evidence (L0)", "color": "#5b9bc8", "marker": "o"},
}
"The levels from left to right, with their label, colour and marker."
APART = 0.5
"Smallest distance between two nodes of a lane, in rows."
LANES = 0.6
"Part of the width of a column (0 to 1) that is divided into lanes."


class Places(NamedTuple):
    """Level and position of each node, and the edges between the nodes."""

    level: list[str]
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    edges: NDArray[np.int64]
    "One row per edge with two node indices: a node, and a node that it was made from."

    @classmethod
    def of(cls, nodes: pd.DataFrame, edges: pd.DataFrame) -> Places:
        """Compute the position of each node of a lineage. Edges to nodes that are not in the frame are left out."""
        place = {name: at for at, name in enumerate(nodes["sha256"])}
        pairs = zip(edges["child"], edges["parent"])
        known = [(place[child], place[parent]) for child, parent in pairs if child in place and parent in place]
        level = [str(each) for each in nodes["level"]]
        columns = [each for each in LEVELS if each in level]
        query = [None if pd.isna(each) else str(each) for each in nodes["query_id"]]
        x, y = np.zeros(len(nodes)), np.zeros(len(nodes))
        for column, each in enumerate(columns):
            mine = [at for at in range(len(nodes)) if level[at] == each]
            lanes = list(dict.fromkeys(query[at] for at in mine))
            x[mine] = [column + LANES * lanes.index(query[at]) / len(lanes) for at in mine]
        made_from: dict[int, list[int]] = {}
        for child, parent in known:
            made_from.setdefault(child, []).append(parent)
        evidence = [at for at in range(len(nodes)) if level[at] == "L0"]
        y[evidence] = np.arange(len(evidence))
        lowest: dict[float, float] = {}
        for each in ("L1", "L2"):
            for at in (at for at in range(len(nodes)) if level[at] == each):  # in order of creation
                row = max((y[parent] for parent in made_from.get(at, [])), default=0)
                y[at] = lowest[x[at]] = max(row, lowest.get(x[at], -APART) + APART)
        return cls(level, x, y, np.array(known, np.int64).reshape(-1, 2))


def provenance(lineage: Lineage, ax: Axes | None = None) -> Axes:
    """Draw the evidence that a memory was made from.

    Parameters
    ----------
    lineage : Lineage
        Result of ``memory.lineage(node)``. You may filter its frames first.
    ax : Axes, optional
        Axes to draw on. By default a new figure is made.

    Returns
    -------
    Axes
        The axes. The memory is on the left and its evidence on the right, the oldest on top. Each piece of evidence is labelled
        with its source and byte offset.

    Raises
    ------
    InvalidConfig
        If `lineage` is not a `Lineage`, or if columns are missing.

    Examples
    --------
    >>> import tempfile
    >>> from matplotlib.figure import Figure
    >>> from loopkit.memory import ProjectId, Provenance, QueryId, Record, Role, open
    >>> memory = open(tempfile.mkdtemp())
    >>> records = [Record(Role.User, "It is light in Lima until six.", None, Provenance("notes", 0))]
    >>> _ = memory.ingest(records, project=ProjectId("peru"))
    >>> built = memory.build(ProjectId("peru"), QueryId("light"), "When is it light?", model=lambda prompt: "Until six.")
    >>> ax = provenance(memory.lineage(built.node), Figure().subplots())
    >>> ax.get_title(), [label.get_text() for label in ax.get_yticklabels()]
    ('“Until six.” comes from 1 record of 1 source', ['notes@0: It is light in Lima until six.'])
    """
    if not isinstance(lineage, Lineage):
        raise InvalidConfig("lineage", f"expected a Lineage; got {kind_of(lineage)}", "Pass memory.lineage(…)")
    nodes, edges, evidence = (
        frame_of(getattr(lineage, name), columns, f"lineage.{name}", f"memory.lineage(…).{name}")
        for name, columns in COLUMNS.items()
    )
    places = Places.of(nodes, edges)
    alone = places.level == ["L0"] and len(evidence) <= NAMED  # one piece of evidence: draw its records
    rows = len(evidence) if alone else places.level.count("L0")
    ax = new_axes(9.5, float(np.clip(1.5 + 0.24 * rows, 2.6, 9))) if ax is None else ax
    if not len(nodes):
        ax.set(title="no memory", xticks=[], yticks=[])
        return ax
    _draw_nodes(ax, places)
    ax.set(xlim=(-0.2, places.x.max() + 0.1), ylim=(max(rows - 1, places.y.max()) + 0.6, -0.6), xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    ax.yaxis.tick_right()
    at, names = _evidence(nodes, evidence) if not alone else ([float(row) for row in range(rows)], _records(evidence))
    ax.set_yticks(at, names, fontsize="small", **PLAIN)
    ax.tick_params(axis="y", length=0)
    legend = ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize="small", borderaxespad=0.2)
    for handle in legend.get_lines():
        handle.set(markersize=6)
    ax.set_title(_finding(nodes, edges, evidence), pad=24, x=0, ha="left", **PLAIN)  # left-aligned, because the title is long
    made = [row for row, level in enumerate(places.level) if level != "L0"]
    for row in made if len(made) <= WORDED else []:
        look: dict[str, Any] = {"textcoords": "offset points", "xytext": (5, 3), "fontsize": "small", "color": GREY, **PLAIN}
        ax.annotate(shown(nodes["text"].iloc[row], 28), (places.x[row], places.y[row]), **look)
    return ax


def _draw_nodes(ax: Axes, places: Places) -> None:
    from matplotlib.collections import LineCollection

    at = np.stack([places.x, places.y], axis=1)
    few = float(np.clip(60 / max(len(places.edges), 1), 0.05, 1))
    look: dict[str, Any] = {"linewidths": max(few, 0.4), "alpha": max(few, 0.08), "zorder": 1, "label": "_nolegend_"}
    ax.add_collection(LineCollection(list(at[places.edges]), colors=GREY, **look))
    size = float(np.clip(300 / len(places.level), 2.5, 7))
    for level, mark in LEVELS.items():
        mine = [each == level for each in places.level]
        if any(mine):
            ax.plot(places.x[mine], places.y[mine], linestyle="none", ms=size, mew=0, zorder=2, clip_on=False, **mark)  # type: ignore[arg-type]


def _evidence(nodes: pd.DataFrame, evidence: pd.DataFrame) -> tuple[list[float], list[str]]:
    """Return the y positions and labels of the evidence.

    A label is a place and a text. If there are many pieces of evidence, there is one label per source, with its count.
    """
    first = evidence.drop_duplicates("node").set_index("node").reindex(nodes["sha256"][nodes["level"] == "L0"])
    places = [UNKNOWN if pd.isna(source) else _place(source, path) for source, path in zip(first["source"], first["path"])]
    if len(places) > NAMED:
        starts = [at for at, place in enumerate(places) if at == 0 or places[at - 1] != place]
        ends = [*starts[1:], len(places)]
        names = [f"{places[start]} ({end - start:,})" for start, end in zip(starts, ends)]
        return ([(start + end - 1) / 2 for start, end in zip(starts, ends)], names) if len(starts) <= NAMED else ([], [])
    more = evidence["node"].value_counts().reindex(first.index, fill_value=0) - 1
    names = [
        place if place == UNKNOWN else f"{place}@{offset:,}{f' (+{others:,})' if others else ''}: {shown(text)}"
        for place, offset, others, text in zip(places, first["offset"], more, first["text"])
    ]
    return [float(at) for at in range(len(names))], names


def _records(evidence: pd.DataFrame) -> list[str]:
    rows = zip(evidence["source"], evidence["path"], evidence["offset"], evidence["text"])
    return [f"{_place(source, path)}@{offset:,}: {shown(text)}" for source, path, offset, text in rows]


def _place(source: str, path: object) -> str:
    """Return the last two parts of the path, or the source if there is no path. A long name is cut at its start."""
    place = shown("/".join(Path(path).parts[-2:]) if isinstance(path, str) else source, 1000)
    return place if len(place) <= 24 else "…" + place[-23:]


def _finding(nodes: pd.DataFrame, edges: pd.DataFrame, evidence: pd.DataFrame) -> str:
    """Return the title: the text of the final memory, and how many records and sources it comes from."""
    last = nodes[~nodes["sha256"].isin(edges["parent"])]
    whole = "“" + shown((last if len(last) else nodes).iloc[-1]["text"], 50) + "”"
    counts = ((len(evidence), "record"), (evidence["source"].nunique(), "source"))
    return f"{whole} comes from " + " of ".join(counted(count, name) for count, name in counts)
