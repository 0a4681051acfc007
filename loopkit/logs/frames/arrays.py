"""Conversion between numpy arrays and pandas columns, and the description of a frame's columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from loopkit.errors import InvalidConfig
from loopkit.logs.frames.schema import CONTENT, FRAMES, SOURCES, Column, Kind

__all__ = ["columns", "dtypes", "empty", "from_texts", "make_frame", "to_array", "to_counts", "to_numpy"]

TIME = pd.DatetimeTZDtype("us", "UTC")
STRING = pd.StringDtype()
_DTYPES: Mapping[Kind, Any] = {
    "count": pd.Int64Dtype(),
    "real": pd.Float64Dtype(),
    "flag": pd.BooleanDtype(),
    "time": TIME,
    "source": pd.CategoricalDtype([*SOURCES]),
}


def dtype_of(column: Column) -> Any:
    """Return the pandas dtype of a column."""
    return _DTYPES.get(column.kind, STRING)


def dtypes(frame: str) -> dict[str, Any]:
    """Return the pandas dtype of each column of a frame, by name and in order.

    Examples
    --------
    >>> list(dtypes("epochs"))[:3]
    ['session', 'epoch', 'started']
    """
    return {column.name: dtype_of(column) for column in FRAMES[frame]}


def columns(frame: str) -> pd.DataFrame:
    """Return a description of a frame's columns.

    Parameters
    ----------
    frame : str
        Name of a frame of `Logs`, such as ``"usage"``.

    Returns
    -------
    DataFrame
        One row per column of the frame, in order: ``name``, ``dtype``, ``unit`` (missing if it has none) and ``meaning``.

    Raises
    ------
    InvalidConfig
        If there is no such frame.

    Examples
    --------
    >>> columns("usage").set_index("name").loc["ttft_ms", ["dtype", "unit"]].tolist()
    ['Float64', 'ms']
    """
    if frame not in FRAMES:
        raise InvalidConfig("frame", f"there is no frame {frame!r}", f"Use one of {', '.join(FRAMES)}")
    every = FRAMES[frame] + ((CONTENT,) if frame == "messages" else ())
    described = {
        "name": [column.name for column in every],
        "dtype": [column.dtype for column in every],
        "unit": [column.unit for column in every],
        "meaning": [column.doc for column in every],
    }
    return pd.DataFrame(described, dtype=STRING)


def empty(frame: str) -> pd.DataFrame:
    """Return a frame without rows.

    Examples
    --------
    >>> empty("usage")["cached_tokens"].dtype
    Int64Dtype()
    >>> empty("usage").attrs["units"]["ttft_ms"]
    'ms'
    """
    return make_frame(frame, {column.name: [] for column in FRAMES[frame]})


def make_frame(frame: str, values: Mapping[str, Any], more: tuple[Column, ...] = ()) -> pd.DataFrame:
    """Build a frame from its columns.

    Parameters
    ----------
    frame : str
        Name of the frame, as in ``FRAMES``.
    values : mapping
        An array or list for each column, by name, all of the same length. Times are ``datetime64[us]`` without a zone, in UTC.
    more : tuple of Column
        Columns to add after those of the schema.

    Returns
    -------
    DataFrame
        A frame with the schema's columns, order and dtypes. ``attrs["units"]`` has the unit of each column that has one.
    """
    wanted = FRAMES[frame] + more
    made = pd.DataFrame({column.name: to_array(values[column.name], dtype_of(column)) for column in wanted}, copy=False)
    made.attrs["units"] = {column.name: column.unit for column in wanted if column.unit is not None}
    return made


def to_array(values: Any, dtype: Any) -> Any:
    r"""Convert values to a pandas array of a dtype. In an array of numbers, -1 and NaN mean missing.

    Examples
    --------
    >>> to_array(np.array([3, -1]), pd.Int64Dtype()).tolist()
    [3, <NA>]
    >>> to_array(["a\udcff.jsonl", None], STRING).tolist()
    ['a\\udcff.jsonl', <NA>]
    """
    if isinstance(values, np.ndarray):
        if values.dtype.kind == "S":
            return _texts_of_one_length(values)
        if values.dtype == np.int64:
            return to_counts(values)
        if values.dtype == np.float64:
            return pd.arrays.FloatingArray(values, np.isnan(values))
        if values.dtype == np.int8:
            return pd.arrays.BooleanArray(values > 0, values < 0)
    if dtype == TIME:
        return pd.DatetimeIndex(np.asarray(values, dtype="datetime64[us]")).tz_localize("UTC").array
    return from_texts(values) if isinstance(dtype, pd.StringDtype) else pd.array(values, dtype=dtype, copy=False)


def to_counts(values: NDArray[np.int64]) -> pd.arrays.IntegerArray:
    """Convert counts to a pandas array, in which negative counts are missing."""
    return pd.arrays.IntegerArray(values, values < 0)


def from_texts(texts: Any) -> Any:
    """Convert texts to a pandas array. Bytes of a file name that are not UTF-8 are escaped."""
    try:
        return pd.array(texts, dtype=STRING, copy=False)
    except UnicodeEncodeError:
        escaped = [text.encode("utf-8", "backslashreplace").decode() if isinstance(text, str) else text for text in texts]
        return pd.array(escaped, dtype=STRING)


def _texts_of_one_length(values: NDArray[np.bytes_]) -> Any:
    """Convert ASCII texts of one length. With pyarrow, no Python object is created per text."""
    if STRING.storage != "pyarrow":
        return pd.array(values.astype(str).astype(object), dtype=STRING)
    import pyarrow as pa  # type: ignore[import-untyped]

    ends = np.arange(values.size + 1) * values.itemsize
    texts = pa.LargeStringArray.from_buffers(values.size, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(values)))
    return pd.array(texts, dtype=STRING)


def to_numpy(values: Any, kind: Kind) -> NDArray[Any]:
    """Convert a column of a frame to a numpy array for a `Part`. A missing value becomes -1, NaN or None, depending on the kind.

    Examples
    --------
    >>> to_numpy(pd.Series([3, None], dtype="Int64"), "count").tolist()
    [3, -1]
    """
    found: NDArray[Any]
    if kind == "count":
        found = values.to_numpy(np.int64, na_value=-1)
    elif kind == "real":
        found = values.to_numpy(np.float64, na_value=np.nan)
    elif kind == "flag":
        found = values.astype("Int8").to_numpy(np.int8, na_value=-1)
    elif kind == "time":
        found = values.dt.tz_localize(None).to_numpy("datetime64[us]")
    else:
        found = values.astype(object).where(values.notna(), None).to_numpy(object)
    return found
