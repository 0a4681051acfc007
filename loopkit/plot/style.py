"""Colours and text settings of figures, and checks of the data that a figure is given.

The colours differ in greyscale and for colour-blind readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from loopkit.cache.prefixes.prompt_parts import Prompt, Requests, requests_of
from loopkit.contract.request import Request
from loopkit.errors import InvalidConfig, kind_of
from loopkit.logs.collection import Logs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["DARK", "GREY", "PLAIN", "STYLES", "characters", "frame_of", "new_axes", "numbers", "request_list", "shown"]

DARK, GREY = "#8f3500", "#4d4d4d"
"Colour of loss markers and causes; colour of borders and of values that were not reported."

# Light, middle and dark, so that they differ in greyscale. Lost tokens have a hatch, too.
STYLES: Mapping[str, Mapping[str, Any]] = {
    "reused": {"label": "reused from the cache", "facecolor": "#b3d1e8", "edgecolor": "#b3d1e8"},
    "lost": {"label": "lost (processed again)", "facecolor": "#e0590b", "edgecolor": "#ffffff", "hatch": "////"},
    "new": {"label": "new", "facecolor": "#163f66", "edgecolor": "#163f66"},
    "unknown": {"label": "unknown", "facecolor": "#ffffff", "edgecolor": "#767676", "hatch": "...."},
}

PLAIN: Final[Mapping[str, Any]] = {"parse_math": False, "usetex": False}
"Settings for text from outside: it is never parsed as mathematics."


def new_axes(width: float = 9.5, height: float = 4.2) -> Axes:
    """Return axes on a new figure of `width` × `height` inches."""
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(width, height), layout="constrained")[1]


def characters(ax: Axes) -> float:
    """Return about how many characters of a small font fit into the width of the axes."""
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


def frame_of(
    given: Logs | pd.DataFrame, columns: Iterable[str], name: str = "logs", like: str = "lk.load(…).usage"
) -> pd.DataFrame:
    """Return the frame of `given`, which is a frame or ``Logs``.

    Raises
    ------
    InvalidConfig
        If it is neither, or if columns are missing.
    """
    if not isinstance(given, Logs | pd.DataFrame):
        raise InvalidConfig(name, f"expected Logs or a frame; got {kind_of(given)}", f"Pass a frame like {like}")
    frame = given.usage if isinstance(given, Logs) else given
    missing = [column for column in columns if column not in frame]
    if missing:
        raise InvalidConfig(name, f"the frame lacks the columns {', '.join(missing)}", f"Pass a frame like {like}")
    return frame


def numbers(frame: pd.DataFrame, column: str) -> NDArray[np.float64]:
    """Return a column as floats, with NaN for missing values.

    Raises
    ------
    InvalidConfig
        If the column contains something else than numbers.
    """
    try:
        return np.asarray(frame[column].to_numpy(float, na_value=np.nan), np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidConfig(column, f"the column must contain numbers: {error}", "Pass a frame like lk.load(…).usage") from error


def request_list(source: Requests) -> list[Request | Prompt | bytes]:
    """Return the requests of ``Logs``, a session or an iterable as a list.

    Raises
    ------
    InvalidConfig
        If something in it is not a request.
    """
    every: list[Any] = list(requests_of(source))
    for each in every:
        if not isinstance(each, Request | Prompt | bytes):
            raise InvalidConfig("requests", f"expected requests; got {kind_of(each)}", "Pass Logs or session.requests()")
    return every
