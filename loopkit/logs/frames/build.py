"""The frames of `Logs`, built from parts.

A total is the sum of the known values. If no value is known, the total is missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from loopkit.logs.frames.arrays import from_texts, make_frame, to_counts
from loopkit.logs.frames.columns import REQUESTS, ColumnBuilder, Columns, Part, concatenate, loss_columns, message_columns, times
from loopkit.logs.frames.schema import CONTENT
from loopkit.logs.problems import Problem

__all__ = ["cache_loss", "epochs", "messages", "problems", "sessions", "turns", "usage"]

TOTALS = ["prompt_tokens", "cached_tokens", "read_tokens", "completion_tokens", "lost_tokens"]

_NONE = np.empty(0, np.int64)
_USAGE: Columns = {**ColumnBuilder(REQUESTS).arrays(), "lost_tokens": _NONE, "turn": _NONE, "new_bytes": _NONE}
_LOSSES: Columns = loss_columns((), _NONE)
_NO_MESSAGES = message_columns(())
_TURNS: Columns = {"turn": _NONE, "time": times([]), "ended": times([]), "tool_calls": _NONE}


def sessions(parts: Sequence[Part]) -> pd.DataFrame:
    """Build the frame ``sessions``."""
    grouped: dict[str, list[Part]] = {}
    for part in parts:
        grouped.setdefault(part.session, []).append(part)
    first = [epochs[0] for epochs in grouped.values()]
    last = [epochs[-1] for epochs in grouped.values()]
    columns = {
        "session": list(grouped),
        **{name: [getattr(part, name) for part in first] for name in ("source", "parent", "variant", "path")},
        **{name: [getattr(part, name) for part in last] for name in ("model", "engine")},
        "started": [part.started for part in first],
        "ended": [part.ended for part in last],
        "epochs": list(map(len, grouped.values())),
        "turns": to_counts(_sums([part.turns for part in epochs] for epochs in grouped.values())),
        "requests": to_counts(_sums([part.usage for part in epochs] for epochs in grouped.values())),
    }
    return make_frame("sessions", columns)


def epochs(parts: Sequence[Part], requests: pd.DataFrame) -> pd.DataFrame:
    """Build the frame ``epochs``. Its totals are computed from ``requests``, which is the frame ``usage``."""
    row = np.repeat(np.arange(len(parts)), [_rows(part.usage) for part in parts])
    names = ("session", "epoch", "end_reason", "baseline_sha256", "baseline_bytes", "slot")
    columns = {
        **{name: [getattr(part, name) for part in parts] for name in names},
        "started": [part.started for part in parts],
        "ended": [part.ended for part in parts],
        "turns": to_counts(_sums([part.turns] for part in parts)),
        **_totals(requests, row, len(parts)),
    }
    return make_frame("epochs", columns)


def turns(parts: Sequence[Part], requests: pd.DataFrame) -> pd.DataFrame:
    """Build the frame ``turns``. Its totals are computed from ``requests``, which is the frame ``usage``."""
    lengths = [0 if part.turns is None else _rows(part.turns) for part in parts]
    of_turns = concatenate([part.turns for part in parts if part.turns is not None], _TURNS)
    before = np.cumsum([0, *lengths])
    total = int(before[-1])
    turn = np.concatenate([_NONE, *(part.usage["turn"] for part in parts)])
    row = np.repeat(before[:-1], [_rows(part.usage) for part in parts]) + turn - 1
    requests, row = requests[turn > 0], row[turn > 0]
    last = np.searchsorted(row, np.arange(total), side="right") - 1
    elapsed = (of_turns["ended"] - of_turns["time"]) / np.timedelta64(1, "ms")
    columns = {
        **_keys(parts, lengths),
        "turn": of_turns["turn"],
        "time": of_turns["time"],
        "tool_calls": of_turns["tool_calls"],
        "finish_reason": requests["finish_reason"].array[last],
        "elapsed_ms": np.where(elapsed < 0, math.nan, elapsed),
        **_totals(requests, row, total),
    }
    return make_frame("turns", columns)


def usage(parts: Sequence[Part]) -> pd.DataFrame:
    """Build the frame ``usage``."""
    lengths = [_rows(part.usage) for part in parts]
    found = concatenate([part.usage for part in parts], _USAGE)
    prompt, cached = pd.Series(to_counts(found["prompt_tokens"])), pd.Series(to_counts(found["cached_tokens"]))
    columns = {
        **_keys(parts, lengths),
        "model": _models(parts, lengths),
        **found,
        "new_bytes": pd.arrays.IntegerArray(found["new_bytes"], found["request_bytes"] < 0),
        "read_tokens": (prompt - cached).array,
        "reuse": share(cached, prompt),
    }
    return make_frame("usage", columns)


def cache_loss(parts: Sequence[Part], requests: pd.DataFrame) -> pd.DataFrame:
    """Build the frame ``cache_loss``. Turns and times come from ``requests``, which is the frame ``usage``."""
    found = concatenate([part.losses for part in parts], _LOSSES)
    lengths = [_rows(part.losses) for part in parts]
    before = np.cumsum([0, *(_rows(part.usage) for part in parts)])[:-1]
    request = requests[["turn", "read_tokens", "prompt_ms"]].iloc[found["row"] + np.repeat(before, lengths)]
    columns = {
        **_keys(parts, lengths),
        **found,
        "turn": request["turn"].array,
        "lost_ms": share(to_counts(found["lost_tokens"]), request["read_tokens"].array) * request["prompt_ms"].array,
    }
    return make_frame("cache_loss", columns)


def messages(parts: Sequence[Part], *, content: bool) -> pd.DataFrame:
    """Build the frame ``messages``. The logs are read a second time for it. ``content`` adds a column with the texts."""
    made = [_NO_MESSAGES if part.messages is None else part.messages(content=content) for part in parts]
    found = concatenate(made, _NO_MESSAGES)
    columns = {**_keys(parts, list(map(_rows, made))), **found}
    return make_frame("messages", columns, (CONTENT,) if content else ())


def problems(found: Sequence[Problem]) -> pd.DataFrame:
    """Build the frame ``problems``."""
    names = Problem.__struct_fields__
    return make_frame("problems", {name: [getattr(problem, name) for problem in found] for name in names})


def _totals(requests: pd.DataFrame, row: NDArray[Any], total: int) -> dict[str, Any]:
    """Return totals of the requests for each row of a frame. ``row`` has each request's row, ``total`` is the number of rows."""
    table = requests[TOTALS].copy()
    table["losses"] = (table["lost_tokens"] > 0).astype("Int64")
    table["known"] = table["prompt_tokens"].where(table["cached_tokens"].notna())
    sums = table.groupby(row).sum(min_count=1).reindex(range(total))
    return {
        "requests": np.bincount(row, minlength=total),
        **{name: sums[name].array for name in (*TOTALS, "losses")},
        "reuse": share(sums["cached_tokens"].array, sums["known"].array),
    }


def share(part: Any, whole: Any) -> Any:
    """Return ``part / whole`` for each row. The result is missing if one of them is missing, or if ``whole`` is 0."""
    return pd.Series(part, copy=False).div(pd.Series(whole, copy=False).where(lambda value: value > 0)).array


def _keys(parts: Sequence[Part], lengths: Sequence[int]) -> dict[str, Any]:
    return {
        "session": _repeated([part.session for part in parts], lengths),
        "epoch": np.repeat(np.array([part.epoch for part in parts], np.int64), lengths),
    }


def _repeated(values: Sequence[str | None], lengths: Sequence[int]) -> Any:
    return from_texts(np.array(values, object)).repeat(lengths)


def _models(parts: Sequence[Part], lengths: Sequence[int]) -> Any:
    """Return the model of each request. In another tool's log the model may change within an epoch."""
    if not any("model" in part.usage for part in parts):
        return _repeated([part.model for part in parts], lengths)
    own = [part.usage.get("model", np.repeat(np.array([part.model], object), length)) for part, length in zip(parts, lengths)]
    return np.concatenate([np.empty(0, object), *own])


def _rows(columns: Mapping[str, NDArray[Any]]) -> int:
    return len(next(iter(columns.values())))


def _sums(grouped: Iterable[Sequence[Columns | None]]) -> NDArray[np.int64]:
    """Return how many rows the columns of each group have together; -1 if the first member of a group is None."""
    return np.array([-1 if group[0] is None else sum(_rows(one) for one in group if one) for group in grouped], np.int64)
