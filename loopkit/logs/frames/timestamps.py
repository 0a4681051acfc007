"""Parsing of many RFC 3339 timestamps at once.

The digits are parsed arithmetically. numpy's own cast of bytes to ``datetime64`` crashed the process after repeated invalid dates
(segmentation fault in 1.26.0, 1.26.4 and 2.4.6).
"""

from __future__ import annotations

from datetime import datetime

import numpy as np
from numpy.typing import NDArray

__all__ = ["FORM", "parse_timestamps"]

FORM = b"0000-00-00T00:00:00.000000Z"
"Form of loopkit's own timestamps; 0 stands for a digit."
_FRACTION = FORM.index(b".") + 1
_DIGITS_AS_ZERO = bytes.maketrans(b"123456789", b"000000000")
FEW = 150
"Up to this many timestamps are parsed one by one. Parsing them together takes fifty numpy calls, which is slower for so few."


def parse_timestamps(texts: NDArray[np.bytes_], form: bytes = FORM) -> NDArray[np.datetime64]:
    """Parse timestamps of one form in UTC, from the year 1 on.

    Parameters
    ----------
    texts : ndarray of bytes
        The timestamps, all of the length of ``form``.
    form : bytes
        Form of all timestamps: like `FORM`, with 3 to 6 digits for the fraction of a second.

    Raises
    ------
    ValueError
        If a text has another form, or is not a valid date and time.

    Examples
    --------
    >>> parse_timestamps(np.array([b"2026-11-30T07:31:05.000001Z"]))
    array(['2026-11-30T07:31:05.000001'], dtype='datetime64[us]')
    >>> parse_timestamps(np.array([b"2026-02-30T07:31:05.000001Z"]))
    Traceback (most recent call last):
        ...
    ValueError: invalid timestamp
    """
    if texts.size <= FEW:
        return _parse_one_by_one(texts, form)
    like = np.frombuffer(form, np.uint8)[:, None]
    digits = np.ascontiguousarray(np.frombuffer(texts.tobytes(), np.uint8).reshape(-1, len(form)).T) ^ like
    if (digits > np.where(like == ord("0"), np.uint8(9), np.uint8(0))).any():
        raise ValueError("invalid timestamp")

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
        raise ValueError("invalid timestamp")
    micros = (hour.astype(np.int64) * 60 + minute) * 60 + second
    for at in range(_FRACTION, _FRACTION + 6):
        micros *= 10
        if at < len(form):  # the "Z" counts as 0
            micros += digits[at]
    found: NDArray[np.datetime64] = days.astype("datetime64[us]") + micros
    return found


def _parse_one_by_one(texts: NDArray[np.bytes_], form: bytes) -> NDArray[np.datetime64]:
    data, end = texts.tobytes(), form.index(b"Z")
    if data.translate(_DIGITS_AS_ZERO) != form * texts.size:
        raise ValueError("invalid timestamp")
    try:
        text = data.decode()
        for at in range(0, len(data), len(form)):
            datetime.fromisoformat(text[at : at + end])
    except ValueError:
        raise ValueError("invalid timestamp") from None
    return texts.astype(f"S{end}").astype("datetime64[us]")  # only valid dates reach numpy
