"""Input checks of the figures: functions that turn ``Logs``, a frame, a session or an iterable into a frame or requests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from loopkit.cache.prefixes.prompt_parts import Prompt, Requests, requests_of
from loopkit.contract.request import Request
from loopkit.errors import InvalidConfig, kind_of
from loopkit.logs.collection import Logs
from loopkit.logs.frames.overview import describe_usage

__all__ = ["UsageSource", "describe_usage", "frame_of", "losses_and_sessions", "numbers", "request_list"]

UsageSource: TypeAlias = Logs | pd.DataFrame
"""``Logs``, or a frame like ``logs.usage``."""


def frame_of(given: UsageSource, columns: Iterable[str], name: str = "logs", like: str = "lk.load(…).usage") -> pd.DataFrame:
    """Return the frame ``usage`` of ``Logs``, or the given frame, after a check of its columns.

    Raises
    ------
    InvalidConfig
        If `given` is neither a frame nor ``Logs``, or if columns are missing.
    """
    if not isinstance(given, Logs | pd.DataFrame):
        raise InvalidConfig(name, f"expected Logs or a frame; got {kind_of(given)}", f"Pass a frame like {like}")
    frame = given.usage if isinstance(given, Logs) else given
    missing = [column for column in columns if column not in frame]
    if missing:
        raise InvalidConfig(name, f"the frame lacks the columns {', '.join(missing)}", f"Pass a frame like {like}")
    return frame


def losses_and_sessions(
    source: UsageSource, cache_loss: pd.DataFrame | None = None
) -> tuple[pd.DataFrame | None, pd.DataFrame | None]:
    """Return the frames ``cache_loss`` and ``sessions`` of ``Logs``. If `source` is a frame, return `cache_loss` and None."""
    return (source.cache_loss, source.sessions) if isinstance(source, Logs) else (cache_loss, None)


def numbers(frame: pd.DataFrame, column: str) -> NDArray[np.float64]:
    """Return a column as floats, with NaN for missing values.

    Raises
    ------
    InvalidConfig
        If the column contains anything but numbers and missing values.
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
        If an item is not a request.
    """
    every: list[Any] = list(requests_of(source))
    for each in every:
        if not isinstance(each, Request | Prompt | bytes):
            raise InvalidConfig("requests", f"expected requests; got {kind_of(each)}", "Pass Logs or session.requests()")
    return every
