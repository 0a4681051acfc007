"""How figures look: colours that stay apart in grey and for colour-blind eyes, new axes, and text from outside as plain text.

Knows nothing of what is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from loopkit.cache.prefixes.prompt_parts import Prompt
from loopkit.contract.request import Request
from loopkit.errors import InvalidConfig, kind_of
from loopkit.logs.collection import Logs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["DARK", "GREY", "PLAIN", "STYLES", "characters", "frame_of", "new_axes", "numbers", "requests_of", "shown"]

DARK, GREY = "#8f3500", "#4d4d4d"
"Of losses' marks and names; of borders and what was not reported."

# Light, middle, dark: apart in greyscale and for colour-blind eyes; what was lost has a hatch as well.
STYLES: Mapping[str, Mapping[str, Any]] = {
    "reused": {"label": "reused from the cache", "facecolor": "#b3d1e8", "edgecolor": "#b3d1e8"},
    "lost": {"label": "read again (lost)", "facecolor": "#e0590b", "edgecolor": "#ffffff", "hatch": "////"},
    "new": {"label": "new", "facecolor": "#163f66", "edgecolor": "#163f66"},
    "unknown": {"label": "not known", "facecolor": "#ffffff", "edgecolor": "#767676", "hatch": "...."},
}

PLAIN: Final[Mapping[str, Any]] = {"parse_math": False, "usetex": False}
"For every text that comes from outside: a dollar sign is a dollar sign."


def new_axes(width: float = 9.5, height: float = 4.2) -> Axes:
    """Axes on a new figure, so many inches large."""
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(width, height), layout="constrained")[1]


def characters(ax: Axes) -> float:
    """How many characters of a small font fit into the width of the axes, about."""
    return ax.bbox.width * 72 / ax.figure.dpi / 4.7


def shown(text: object, most: int = 40) -> str:
    """A text from outside on one line, cut with an ellipsis; what cannot be printed is a dot.

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
    """The frame of requests that was given.

    Raises
    ------
    InvalidConfig
        When it is none, or columns are not there.
    """
    if not isinstance(given, Logs | pd.DataFrame):
        raise InvalidConfig(name, f"{kind_of(given)} cannot be drawn", f"Give a frame like {like}")
    frame = given.usage if isinstance(given, Logs) else given
    missing = [column for column in columns if column not in frame]
    if missing:
        raise InvalidConfig(name, f"there is no column {', '.join(missing)}", f"Give a frame like {like}")
    return frame


def numbers(frame: pd.DataFrame, column: str) -> NDArray[np.float64]:
    """A column as floats; what is missing is NaN.

    Raises
    ------
    InvalidConfig
        When it holds no numbers.
    """
    try:
        return np.asarray(frame[column].to_numpy(float, na_value=np.nan), np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidConfig(column, f"the column holds no numbers: {error}", "Give a frame like lk.load(…).usage") from error


def requests_of(given: Iterable[Request | Prompt | bytes]) -> list[Request | Prompt | bytes]:
    """The requests that were given.

    Raises
    ------
    InvalidConfig
        When these are none.
    """
    every: list[Any] = list(given) if isinstance(given, Iterable) else [given]
    for each in every:
        if not isinstance(each, Request | Prompt | bytes):
            raise InvalidConfig("requests", f"{kind_of(each)} is no request", "Give such as session.requests()")
    return every
