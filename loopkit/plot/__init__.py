"""Figures. Each function takes ``Logs``, a frame or requests, and an optional ``ax``, and returns the matplotlib ``Axes``.

To see a figure in a script, call ``pyplot.show`` yourself. Global styles and other figures stay as they are.
"""

from loopkit.plot.branch_diagram import prefix_tree
from loopkit.plot.prefix_matrix import reuse_matrix
from loopkit.plot.provenance_graph import provenance
from loopkit.plot.reading_times import timeline
from loopkit.plot.request_chart import prefix_reuse
from loopkit.plot.variant_bars import compare

__all__ = ["compare", "prefix_reuse", "prefix_tree", "provenance", "reuse_matrix", "timeline"]


def __dir__() -> list[str]:
    return list(__all__)
