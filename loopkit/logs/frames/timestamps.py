"""Moments as they are written, many at once, into numpy's: with numbers, for numpy's own reading of bytes is not safe.

Where its cast of bytes to ``datetime64`` met days that are in no calendar, again and again, the process died of a segmentation
fault (1.26.0, 1.26.4 and 2.4.6). Knows nothing of who wrote them.
"""

from __future__ import annotations

from datetime import datetime

import numpy as np
from numpy.typing import NDArray

__all__ = ["FORM", "moments"]

FORM = b"0000-00-00T00:00:00.000000Z"
"Of our own timestamps: a digit as 0."
_FRACTION = FORM.index(b".") + 1
_DIGITS_AS_ZERO = bytes.maketrans(b"123456789", b"000000000")
FEW = 150
"So many are read one by one: to read them together takes fifty calls, however few they are."


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
    if texts.size <= FEW:
        return _one_by_one(texts, form)
    like = np.frombuffer(form, np.uint8)[:, None]
    digits = np.ascontiguousarray(np.frombuffer(texts.tobytes(), np.uint8).reshape(-1, len(form)).T) ^ like
    if (digits > np.where(like == ord("0"), np.uint8(9), np.uint8(0))).any():
        raise ValueError("not a moment")

    def two(at: int) -> NDArray[np.uint8]:
        value: NDArray[np.uint8] = digits[at] * np.uint8(10) + digits[at + 1]
        return value

    month, day, hour, minute, second = map(two, (5, 8, 11, 14, 17))
    year = two(0).astype(np.int64) * 100 + two(2)
    months = ((year - 1970) * 12 + month - 1).view("datetime64[M]")
    days = months.astype("datetime64[D]") + (day.astype(np.int64) - 1)
    wrong = (year < 1) | (month < 1) | (month > 12) | (day < 1) | (hour > 23) | (minute > 59) | (second > 59)
    late = day > 28
    if wrong.any() or (days[late].astype("datetime64[M]") != months[late]).any():
        raise ValueError("not a moment")
    micros = (hour.astype(np.int64) * 60 + minute) * 60 + second
    for at in range(_FRACTION, _FRACTION + 6):
        micros *= 10
        if at < len(form):
            micros += digits[at]  # 0 where the form has no digit
    found: NDArray[np.datetime64] = days.astype("datetime64[us]") + micros
    return found


def _one_by_one(texts: NDArray[np.bytes_], form: bytes) -> NDArray[np.datetime64]:
    data, end = texts.tobytes(), form.index(b"Z")
    if data.translate(_DIGITS_AS_ZERO) != form * texts.size:
        raise ValueError("not a moment")
    try:
        text = data.decode()
        for at in range(0, len(data), len(form)):
            datetime.fromisoformat(text[at : at + end])
    except ValueError:
        raise ValueError("not a moment") from None
    return texts.astype(f"S{end}").astype("datetime64[us]")  # all are moments: nothing is left to go wrong
