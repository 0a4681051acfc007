"""Figures of frames: each function takes frames, ``Logs`` or requests, and an optional ``ax``, and returns the ``Axes``.

None shows anything, sets a style or touches a figure that it was not given.
"""

from loopkit.plot.lineage import provenance
from loopkit.plot.matrix import reuse_matrix
from loopkit.plot.reuse import prefix_reuse
from loopkit.plot.times import timeline
from loopkit.plot.tree import prefix_tree
from loopkit.plot.variants import compare

__all__ = ["compare", "prefix_reuse", "prefix_tree", "provenance", "reuse_matrix", "timeline"]


def __dir__() -> list[str]:
    return list(__all__)
