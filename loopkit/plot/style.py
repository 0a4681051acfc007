"""Colours and text settings of figures.

The colours can be distinguished in greyscale and by colour-blind readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["DARK", "GREY", "PLAIN", "STYLES", "characters", "new_axes", "shown"]

DARK, GREY = "#8f3500", "#4d4d4d"
"``DARK``: colour of loss markers and causes. ``GREY``: colour of borders, and of values that were not reported."

# A light, a middle and a dark colour, so that they differ in greyscale. Lost tokens also have a hatch.
STYLES: Mapping[str, Mapping[str, Any]] = {
    "reused": {"label": "reused from the cache", "facecolor": "#b3d1e8", "edgecolor": "#b3d1e8"},
    "lost": {"label": "lost (processed again)", "facecolor": "#e0590b", "edgecolor": "#ffffff", "hatch": "////"},
    "new": {"label": "new", "facecolor": "#163f66", "edgecolor": "#163f66"},
    "unknown": {"label": "unknown", "facecolor": "#ffffff", "edgecolor": "#767676", "hatch": "...."},
}

PLAIN: Final[Mapping[str, Any]] = {"parse_math": False, "usetex": False}
"Settings of matplotlib for text from outside, so that it is never parsed as mathematics."


def new_axes(width: float = 9.5, height: float = 4.2) -> Axes:
    """Return axes on a new figure of `width` × `height` inches."""
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(width, height), layout="constrained")[1]


def characters(ax: Axes) -> float:
    """Estimate how many characters of a small font fit into the width of the axes."""
    return ax.bbox.width * 72 / ax.figure.dpi / 4.7


def shown(text: object, most: int = 40) -> str:
    """Return text from outside as one line of at most `most` characters. Unprintable characters become dots.

    Examples
    --------
    >>> shown("a" * 50, 5), shown(chr(0x202E) + "b" + chr(10))
    ('aaaa…', '·b·')
    """
    line = "".join(char if char.isprintable() else "·" for char in str(text)[: most + 1])
    return line if len(line) <= most else line[: most - 1] + "…"
