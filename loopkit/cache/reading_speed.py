"""Prompt processing speed: a robust line through prompt times against processed tokens.

The slope, in seconds per token, is the median of the slopes between all pairs of requests (Theil 1950). Its 95 % interval comes
from the ranks of these slopes (Sen, "Estimates of the regression coefficient based on Kendall's tau", JASA 63, 1968). The
constant is the fixed time of a request. The slope tolerates up to 29 % of outliers, such as a slow first request. Tokens late in
a long prompt take more time, because attention covers all earlier tokens. The line is therefore valid only for prompts about as
long as those that it was fitted to.
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
"Largest number of requests in a fit, which gives half a million slopes. More are sampled evenly by processed tokens."
NORMAL = 1.959964
"Number of standard deviations around the mean that contain 95 % of a normal distribution."


class ReadingLine(NamedTuple):
    """A straight line that predicts the seconds to process a prompt: ``constant + seconds_per_token * tokens``."""

    seconds_per_token: float
    "Slope of the line."
    low: float
    "Lower end of the 95 % interval of the slope. If it is 0 or less, the times do not show a cost per token."
    high: float
    "Upper end of the 95 % interval of the slope."
    constant: float
    "Fixed time of a request in seconds: the prediction for 0 tokens."
    requests: int
    "Number of requests with known tokens and time. The line is fitted to these, or to a sample if there are many."

    def seconds(self, tokens: Any) -> Any:
        """Return the predicted time in seconds for a number (or array) of processed tokens.

        Parameters
        ----------
        tokens : float or array of float
            Number of prompt tokens that are not cached.
        """
        return self.constant + self.seconds_per_token * tokens


def reading_line(tokens: Sequence[float] | NDArray[Any], ms: Sequence[float] | NDArray[Any]) -> ReadingLine | None:
    """Fit a line through prompt times against processed tokens. Outliers have little influence.

    Parameters
    ----------
    tokens : array of float
        For each request, the prompt tokens that the server processed because they were not cached. NaN if unknown.
    ms : array of float
        For each request, the time to process these tokens, in milliseconds. NaN if unknown.

    Returns
    -------
    ReadingLine or None
        The fitted line. None if there are too few requests (at least 4 are needed), or if their token counts are too similar for
        a 95 % interval.

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
    """Return 18 times the variance of Kendall's S for `count` values without ties.

    For values with ties, the caller subtracts the same term for each group of equal values.
    """
    return count * (count - 1) * (2 * count + 5)
