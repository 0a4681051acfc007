"""Prompt processing speed: a robust line through prompt times against processed tokens.

The slope is the median of the slopes between all pairs of requests (Theil 1950). Its interval comes from the ranks of these
slopes (Sen, "Estimates of the regression coefficient based on Kendall's tau", JASA 63, 1968). The constant holds the fixed
cost of a request. Up to 29 % of outliers, such as a first request, do not move the slope. Attention makes tokens deep in a long
prompt more expensive, so the line holds only for prompts like those it was fitted to.
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
"If there are more requests, this many are sampled evenly by processed tokens, which gives half a million slopes."
NORMAL = 1.959964
"95 % of a normal distribution lies within this many standard deviations."


class ReadingLine(NamedTuple):
    """Time to process a prompt, in seconds: ``constant + seconds_per_token * tokens``."""

    seconds_per_token: float
    low: float
    "Lower end of the 95 % interval of the slope. If it is 0 or less, the times do not show a cost per token."
    high: float
    "Upper end of that interval."
    constant: float
    "Seconds that a request takes without processing any prompt token."
    requests: int
    "Number of requests that the line was fitted to."

    def seconds(self, tokens: Any) -> Any:
        """Return the predicted time in seconds for a number (or array) of processed tokens.

        Parameters
        ----------
        tokens : float or array of float
            Processed tokens.
        """
        return self.constant + self.seconds_per_token * tokens


def reading_line(tokens: Sequence[float] | NDArray[Any], ms: Sequence[float] | NDArray[Any]) -> ReadingLine | None:
    """Fit a robust line through prompt times.

    Parameters
    ----------
    tokens : array of float
        Prompt tokens that each request processed, that is those not cached. NaN if unknown.
    ms : array of float
        Time to process them, in milliseconds. NaN if unknown.

    Returns
    -------
    ReadingLine or None
        None if the requests are too few or too similar for a 95 % interval; at least 4 are needed.

    Raises
    ------
    InvalidConfig
        If the arguments are not two sequences of numbers of equal length.

    Examples
    --------
    >>> line = reading_line([10, 20, 40, 80, 160], [15, 20, 30, 50, 5000])     # 0.5 ms a token and 10 ms a request; one outlier
    >>> round(line.seconds_per_token, 4), round(line.constant, 3), line.requests
    (0.0005, 0.01, 5)
    >>> reading_line([10, 20, 40], [15, 20, 30]) is None
    True
    """
    import numpy as np

    try:
        x, y = (np.asarray(each, float) for each in (tokens, ms))
    except (TypeError, ValueError) as error:
        raise InvalidConfig("reading_line", f"expected numbers: {error}", "Use NaN for unknown values") from error
    if x.shape != y.shape or x.ndim != 1:
        raise InvalidConfig(
            "reading_line", f"the shapes differ: tokens {x.shape}, ms {y.shape}", "Give two sequences of equal length"
        )
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
    """Return 18 times the variance of Kendall's S for `count` values; the terms of tied groups are subtracted."""
    return count * (count - 1) * (2 * count + 5)
