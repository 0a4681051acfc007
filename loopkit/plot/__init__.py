"""Figures of frames: each function takes frames or ``Logs`` and an optional ``ax``, and returns the ``Axes``.

None shows anything, sets a style or touches a figure that it was not given.
"""

from loopkit.plot.reuse import prefix_reuse

__all__ = ["prefix_reuse"]
