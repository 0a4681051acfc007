"""Records into flat arrays, and the part of all frames that comes from one file.

Until a frame is made of them, a missing count is -1, a missing flag -1, a missing number NaN and a missing text None: no log can
hold these, so one array says both. Knows nothing of files and frames.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from loopkit.encoding import encode
from loopkit.records import CacheLoss, ReplayRecord, UsageRecord

__all__ = ["Columns", "Part", "counts", "flags", "joined", "loss_columns", "reals", "request_columns", "texts", "times"]

Columns: TypeAlias = Mapping[str, NDArray[Any]]

RECORD_COUNTS = ("request", "request_bytes", "expected_tokens", "reusable_tokens")
USAGE_COUNTS = ("prompt_tokens", "cached_tokens", "cache_write_tokens", "completion_tokens", "reasoning_tokens")
USAGE_REALS = ("ttft_ms", "prompt_ms", "predicted_ms")
RECORD_TEXTS = ("request_sha256", "finish_reason", "shortfall")
LOSS_COUNTS = ("request", "expected_tokens", "reusable_tokens", "lost_tokens")
LOSS_TEXTS = ("cause", "certainty", "mendable_by", "where")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What the frames need of one epoch of a session, or of one replay."""

    source: str
    path: str
    "The session's directory, or the replay's file."
    session: str
    epoch: int = 0
    parent: str | None = None
    variant: str | None = None
    model: str | None
    engine: str | None
    slot: int | None = None
    baseline_sha256: str | None = None
    baseline_bytes: int | None = None
    started: np.datetime64
    ended: np.datetime64
    end_reason: str | None = None
    usage: Columns
    "A row is a completed request."
    losses: Columns
    "A row is a loss; ``row`` is its request's in ``usage``."
    turns: Columns | None = None
    "A row is a turn; None in a replay."


def counts(records: Sequence[Any], name: str) -> NDArray[np.int64]:
    """Whole numbers from 0 on.

    Examples
    --------
    >>> from loopkit.records import Usage
    >>> counts([Usage(prompt_tokens=3), Usage()], "prompt_tokens").tolist()
    [3, -1]
    """
    get = attrgetter(name)
    try:
        return np.fromiter(map(get, records), np.int64, len(records))
    except TypeError:
        return np.array([value if type(value) is int else -1 for value in map(get, records)], np.int64)


def flags(records: Sequence[Any], name: str) -> NDArray[np.int8]:
    """Booleans, as 1 and 0."""
    values = map(attrgetter(name), records)
    return np.array([1 if value is True else 0 if value is False else -1 for value in values], np.int8)


def reals(records: Sequence[Any], name: str) -> NDArray[np.float64]:
    """Finite numbers."""
    return np.array(list(map(attrgetter(name), records)), np.float64)


def texts(records: Sequence[Any], name: str) -> NDArray[np.object_]:
    """Strings."""
    return np.array([None if value is UNSET else value for value in map(attrgetter(name), records)], np.object_)


def times(values: Sequence[bytes | str]) -> NDArray[np.datetime64]:
    """Timestamps, or the 26 characters before their ``Z``; UTC.

    Raises
    ------
    ValueError
        For a day that is in no calendar.

    Examples
    --------
    >>> times(["2026-11-30T07:31:05.000001Z"])
    array(['2026-11-30T07:31:05.000001'], dtype='datetime64[us]')
    """
    return np.array(values, "S26").astype("datetime64[us]")


def joined(parts: Sequence[Columns], like: Columns) -> dict[str, NDArray[Any]]:
    """Put arrays of one name end to end; ``like`` has the names and, where there are no parts, the dtypes."""
    return {name: np.concatenate([part[name] for part in parts]) if parts else sample[:0] for name, sample in like.items()}


def request_columns(records: Sequence[UsageRecord | ReplayRecord]) -> dict[str, NDArray[Any]]:
    """What the frame of requests takes from their records as it stands there."""
    usages = [record.usage for record in records]
    return {
        **{name: counts(records, name) for name in RECORD_COUNTS},
        **{name: counts(usages, name) for name in USAGE_COUNTS},
        **{name: reals(usages, name) for name in USAGE_REALS},
        **{name: texts(records, name) for name in RECORD_TEXTS},
        "expected_exact": flags(records, "expected_exact"),
        "time": times([record.time for record in records]),
    }


def loss_columns(
    losses: Sequence[CacheLoss | ReplayRecord], rows: NDArray[np.intp], cached: str = "cached_tokens"
) -> dict[str, NDArray[Any]]:
    """What the frame of losses takes from their records, whose requests stand in these rows."""
    evidence = [None if loss.evidence is UNSET else encode(loss.evidence).decode() for loss in losses]
    return {
        **{name: counts(losses, name) for name in LOSS_COUNTS},
        **{name: texts(losses, name) for name in LOSS_TEXTS},
        "cached_tokens": counts(losses, cached),
        "expected_exact": flags(losses, "expected_exact"),
        "evidence": np.array(evidence, np.object_),
        "time": times([loss.time for loss in losses]),
        "row": rows,
    }
