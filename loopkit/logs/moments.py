"""Moments as they are written, many at once, into numpy's: with numbers, for numpy's own reading of bytes is not safe.

Where its cast of bytes to ``datetime64`` met days that are in no calendar, again and again, the process died of a segmentation
fault (1.26.0, 1.26.4 and 2.4.6). Knows nothing of who wrote them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["FORM", "moments"]

FORM = b"0000-00-00T00:00:00.000000Z"
"Of our own timestamps: a digit as 0."
_AS_ZERO = bytes.maketrans(b"123456789", b"000000000")
_FRACTION = FORM.index(b".") + 1


def moments(texts: NDArray[np.bytes_], form: bytes = FORM) -> NDArray[np.datetime64]:
    """Moments of the year 1 and later, in UTC.

    Parameters
    ----------
    texts : ndarray of bytes
        Each of the form's length.
    form : bytes
        Like `FORM`, with three to six digits of a second's fraction.

    Raises
    ------
    ValueError
        For what has another form, and for a day or a time that is none.

    Examples
    --------
    >>> moments(np.array([b"2026-11-30T07:31:05.000001Z"]))
    array(['2026-11-30T07:31:05.000001'], dtype='datetime64[us]')
    >>> moments(np.array([b"2026-02-30T07:31:05.000001Z"]))
    Traceback (most recent call last):
        ...
    ValueError: not a moment
    """
    written = texts.tobytes()
    if written.translate(_AS_ZERO) != form * texts.size:
        raise ValueError("not a moment")
    digits = np.frombuffer(written, np.uint8).reshape(-1, len(form)).T

    def number(begin: int, end: int) -> NDArray[np.int64]:
        value: NDArray[np.int64] = digits[begin].astype(np.int64)
        for at in range(begin + 1, end):
            value *= 10
            value += digits[at]
        value -= ord("0") * int("1" * (end - begin))
        return value

    year, month, day = number(0, 4), number(5, 7), number(8, 10)
    hour, minute, second = number(11, 13), number(14, 16), number(17, 19)
    months = ((year - 1970) * 12 + month - 1).view("datetime64[M]")
    days = months.astype("datetime64[D]") + (day - 1)
    wrong = (year < 1) | (month < 1) | (month > 12) | (days.astype("datetime64[M]") != months)
    if (wrong | (hour > 23) | (minute > 59) | (second > 59)).any():
        raise ValueError("not a moment")
    end = len(form.rstrip(b"\0Z"))
    micros = ((hour * 60 + minute) * 60 + second) * 1_000_000 + number(_FRACTION, end) * 10 ** (6 - end + _FRACTION)
    found: NDArray[np.datetime64] = days.astype("datetime64[us]") + micros
    return found
