"""What reading a token costs in time: a line through the times of requests, against the tokens that each read.

The slope is the median of the slopes between every two requests (Theil 1950), its interval Sen's, from the ranks of those slopes
(Sen, "Estimates of the regression coefficient based on Kendall's tau", JASA 63, 1968). What every request costs, whatever it
reads, goes into the constant; up to 29 % of wild times (another process, a first request) do not carry the slope away. It says
nothing of what a token costs deeper in a prompt, where attention takes longer: it holds for prompts like those it was fitted to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from loopkit.errors import InvalidConfig

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ReadingLine", "reading_line"]

POINTS = 1000
"Of more requests, so many are taken, evenly by tokens read: half a million slopes."
NORMAL = 1.959964
"Of a normal distribution, 95 % lies within so many standard deviations."


class ReadingLine(NamedTuple):
    """Time to read a prompt: ``constant + seconds_per_token * tokens``."""

    seconds_per_token: float
    low: float
    "Lower end of the 95 % interval; where it is not above 0, the times do not show that reading takes any."
    high: float
    constant: float
    "Seconds that a request takes that reads nothing."
    requests: int
    "How many it was fitted to."

    def seconds(self, tokens: Any) -> Any:
        """Predict the time that a request takes which reads so many tokens, a number or an array."""
        return self.constant + self.seconds_per_token * tokens


def reading_line(tokens: Sequence[float] | NDArray[Any], ms: Sequence[float] | NDArray[Any]) -> ReadingLine | None:
    """Fit a line through times, robustly.

    Parameters
    ----------
    tokens : array of float
        Prompt tokens that each request read: those that were not cached.
    ms : array of float
        How long it took, in milliseconds; NaN, as in ``tokens``, where not known.

    Returns
    -------
    ReadingLine or None
        None where there are too few requests, or too many read alike, for an interval of 95 %: fewer than 4 never do.

    Raises
    ------
    InvalidConfig
        When these are no two rows of numbers of one length.

    Examples
    --------
    >>> line = reading_line([10, 20, 40, 80, 160], [15, 20, 30, 50, 5000])     # 0.5 ms a token, 10 ms each; one was disturbed
    >>> round(line.seconds_per_token, 4), round(line.constant, 3), line.requests
    (0.0005, 0.01, 5)
    >>> reading_line([10, 20, 40], [15, 20, 30]) is None
    True
    """
    import numpy as np

    try:
        x, y = (np.asarray(each, float) for each in (tokens, ms))
    except (TypeError, ValueError) as error:
        raise InvalidConfig("reading_line", f"these are no numbers: {error}", "Give NaN where one is not known") from error
    if x.shape != y.shape or x.ndim != 1:
        raise InvalidConfig("reading_line", f"tokens and ms are {x.shape} and {y.shape}", "Give two rows of one length")
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known] / 1000
    order = np.argsort(x, kind="stable")
    taken = order[np.linspace(0, len(order) - 1, min(len(order), POINTS)).astype(int)]
    x, y = x[taken], y[taken]
    first, second = np.triu_indices(len(x), 1)
    apart = x[second] > x[first]
    slopes = np.sort((y[second] - y[first])[apart] / (x[second] - x[first])[apart])
    ties = np.unique(x, return_counts=True)[1]
    ranks = NORMAL * math.sqrt(max(0.0, float(_spread(len(x)) - _spread(ties).sum()) / 18))
    if not len(slopes) or ranks >= len(slopes):
        return None
    slope = float(np.median(slopes))
    low, high = slopes[math.floor((len(slopes) - ranks) / 2)], slopes[min(len(slopes) - 1, math.ceil((len(slopes) + ranks) / 2))]
    return ReadingLine(slope, float(low), float(high), float(np.median(y - slope * x)), int(known.sum()))


def _spread(count: Any) -> Any:
    """18 times the variance of Kendall's S of so many; of each group of ties it is taken off."""
    return count * (count - 1) * (2 * count + 5)
