"""Columns of frames as numpy arrays, made from the values of log entries. Columns without values take no memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loopkit.logs.foreign.entries import LogTime, to_microseconds
from loopkit.logs.frames.timestamps import parse_timestamps

__all__ = ["counts_column", "ids_column", "names_column", "numbers_column", "texts_column", "times_column"]

NAT = np.datetime64("NaT", "us")
MISSING_COUNTS, MISSING_NUMBERS, MISSING_TEXTS = (np.broadcast_to(np.array(value), 1 << 40) for value in (-1, np.nan, None))
"Arrays of missing values, which take the memory of one value. A column without values is a slice of one of them."
TIME_FORM = b"0000-00-00T00:00:00.000Z\0"


def counts_column(values: Sequence[int | None]) -> NDArray[np.int64]:
    """Return an array of counts, in which -1 means missing."""
    if None in values:
        if _is_missing(values):
            return MISSING_COUNTS[: len(values)]
        values = [-1 if value is None else value for value in values]
    return np.array(values, np.int64)


def numbers_column(values: Sequence[float | None]) -> NDArray[np.float64]:
    """Return an array of numbers, in which NaN means missing."""
    return MISSING_NUMBERS[: len(values)] if _is_missing(values) else np.array(values, np.float64)  # None is NaN


def _is_missing(values: Sequence[object]) -> bool:
    """Return True if all values are missing. Such columns take no memory."""
    return values.count(None) == len(values)


def ids_column(values: Sequence[str | None]) -> NDArray[np.bytes_]:
    """Return unique texts as an array of fixed-size bytes, which takes less memory than objects. Here b"" means missing."""
    return np.array([b"" if value is None else value.encode("utf-8", "surrogatepass") for value in values], np.bytes_)


def texts_column(values: Sequence[str | None]) -> NDArray[np.object_]:
    """Return texts as an array of objects, in which None means missing."""
    if _is_missing(values):
        return MISSING_TEXTS[: len(values)]
    column = np.empty(len(values), np.object_)
    column[:] = values
    return column


def names_column(values: Sequence[str | None]) -> NDArray[np.object_]:
    """Return a column of texts.

    Equal texts share one object, which saves memory when there are few distinct values.
    """
    known: dict[str | None, str | None] = {}
    return texts_column([known.setdefault(value, value) for value in values])


def times_column(values: Sequence[LogTime]) -> NDArray[np.datetime64]:
    """Return timestamps as an array of ``datetime64[us]``, in which NaT means missing or invalid."""
    try:
        return parse_timestamps(np.array(values, f"S{len(TIME_FORM)}"), TIME_FORM)  # the usual form, parsed at once
    except ValueError:  # another form, or an invalid date
        pass
    missing = NAT.astype(int)
    microseconds = [missing if (time := to_microseconds(value)) is None else time for value in values]
    return np.array(microseconds, np.int64).view("datetime64[us]")
