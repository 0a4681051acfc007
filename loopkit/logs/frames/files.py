"""Frames as files of other programs: Parquet, which `load` reads back, and CSV, which it does not.

Parquet holds the frames as they are, and beside them ``parts.parquet``: a row is a `Part`, with what no frame says of it. It is
written last, so a directory without it was never finished. Knows nothing of logs. pyarrow is loaded when it is used.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from loopkit.errors import InvalidConfig, LogError, describe
from loopkit.logs.find import PARTS
from loopkit.logs.frames.columns import LOSSES, MESSAGES, REQUESTS, Columns, Part
from loopkit.logs.frames.schema import array
from loopkit.logs.problems import Problem

__all__ = ["read_parquet", "write_csv", "write_parquet"]

ROWS = 1 << 20
"Rows of a file at most."
SAID = ("source", "path", "session", "epoch", "parent", "variant", "model", "engine", "slot", "baseline_sha256", "baseline_bytes")
TIMES = ("started", "ended")
LENGTHS = ("usage", "losses", "turns", "messages")
NAT = np.timedelta64("NaT").astype(np.int64)
TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"What a spreadsheet takes a cell for a formula by."


def write_parquet(parts: Sequence[Part], frames: Mapping[str, pd.DataFrame], directory: Path) -> None:
    """Write frames, and the parts that they are made of."""
    _pyarrow()
    _made(directory)
    lengths = {
        "usage": [len(part.usage["request"]) for part in parts],
        "losses": [len(part.losses["row"]) for part in parts],
        "turns": [None if part.turns is None else len(part.turns["turn"]) for part in parts],
        "messages": _runs(parts, frames["messages"]),
    }
    said: dict[str, Any] = {name: [getattr(part, name) for part in parts] for name in (*SAID, "end_reason")}
    table = pd.DataFrame({name: array(values, _dtype(name)) for name, values in said.items()})
    for name in TIMES:
        table[name] = np.array([getattr(part, name) for part in parts], "datetime64[us]")
    for name, values in lengths.items():
        table[f"{name}_rows"] = pd.Series(values, dtype="Int64")
    rows = [part.losses["row"] for part in parts]
    extra = {"cache_loss": frames["cache_loss"].assign(row=np.concatenate([np.empty(0, np.int64), *rows]))}
    try:
        for name, frame in {**frames, **extra}.items():
            (directory / f"{name}.parquet").mkdir()
            for number, at in enumerate(range(0, max(len(frame), 1), ROWS)):
                frame.iloc[at : at + ROWS].to_parquet(directory / f"{name}.parquet" / f"{number:04}.parquet", index=False)
        table.to_parquet(directory / PARTS, index=False)
    except OSError as error:
        raise LogError(str(directory), f"cannot be written: {describe(error)}") from error


def _runs(parts: Sequence[Part], messages: pd.DataFrame) -> list[int]:
    """How many of the messages each part has; they stand in the order of the parts."""
    counts = messages.groupby(["session", "epoch"], sort=False).size()
    return [int(counts.get((part.session, part.epoch), 0)) for part in parts]


def read_parquet(directory: Path) -> tuple[list[Part], list[Problem]]:
    """Read parts and problems back.

    Raises
    ------
    LogError
        When a file is missing or not what was written.
    InvalidConfig
        When pyarrow is not installed.
    """
    _pyarrow()
    with _as_written(directory):
        table = pd.read_parquet(directory / PARTS)
        usage, losses, turns = (_read(directory, name) for name in ("usage", "cache_loss", "turns"))
        problems = [
            Problem(*row) for row in _read(directory, "problems").astype(object).replace({pd.NA: None}).to_numpy().tolist()
        ]
        parts = []
        rows = {"usage": len(usage), "losses": len(losses), "turns": len(turns)}
        spans_of = [_spans(table[f"{name}_rows"], name, rows.get(name)) for name in LENGTHS]
        for row, *spans in zip(table.to_dict("records"), *spans_of, strict=True):
            of_usage, of_losses, of_turns, of_messages = spans
            parts.append(
                Part(
                    **{name: _plain(row[name]) for name in (*SAID, "end_reason")},
                    **{name: row[name].to_datetime64().astype("datetime64[us]") for name in TIMES},
                    usage=_usage(usage.iloc[of_usage]),
                    losses={**_columns(losses.iloc[of_losses], LOSSES), "row": losses["row"].iloc[of_losses].to_numpy(np.intp)},
                    turns=None if pd.isna(row["turns_rows"]) else _turns(turns.iloc[of_turns]),
                    messages=partial(_messages, directory, of_messages),
                )
            )
    return parts, problems


@contextmanager
def _as_written(directory: Path) -> Iterator[None]:
    """Whatever a table holds that was not written here, or lacks, is named."""
    try:
        yield
    except (OSError, KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise LogError(str(directory), f"not what to_parquet wrote: {describe(error)}") from error


def write_csv(frames: Mapping[str, pd.DataFrame], directory: Path) -> None:
    """Write a file a frame."""
    _made(directory)
    try:
        for name, frame in frames.items():
            texts = [text for text in frame if frame[text].dtype == "string"]
            safe = frame.copy()
            for text in texts:
                safe[text] = _inert(frame[text])
            safe.to_csv(
                directory / f"{name}.csv", index=False, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n", date_format=TIME
            )
    except OSError as error:
        raise LogError(str(directory), f"cannot be written: {describe(error)}") from error


def _inert(texts: Any) -> Any:
    return texts.mask(texts.str.startswith(FORMULA) & texts.notna(), "'" + texts)


def _pyarrow() -> None:
    try:
        import pyarrow  # type: ignore[import-untyped]  # noqa: F401  # pandas says less clearly what is missing
    except ImportError:
        raise InvalidConfig("pyarrow", "it is not installed, and Parquet needs it", "pip install 'loopkit-lab[scale]'") from None


def _made(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise LogError(str(directory), "it holds something, and nothing is ever overwritten", "Name an empty directory")
    except OSError as error:
        raise LogError(str(directory), f"cannot be written: {describe(error)}") from error


def _dtype(name: str) -> Any:
    return "Int64" if name in ("epoch", "slot", "baseline_bytes") else "string"


def _read(directory: Path, name: str) -> pd.DataFrame:
    return pd.concat([pd.read_parquet(file) for file in sorted((directory / f"{name}.parquet").iterdir())], ignore_index=True)


def _spans(lengths: pd.Series[int], name: str, rows: int | None) -> list[slice]:
    """The rows of each part; the tables that were read now must have just these."""
    known = lengths.fillna(0).tolist()
    if min(known, default=0) < 0 or rows not in (None, sum(known)):
        raise ValueError(f"{rows} rows of {name}, and {sum(known)} are said")
    return [slice(*pair) for pair in pairwise(accumulate(known, initial=0))]


def _plain(value: Any) -> Any:
    return None if pd.isna(value) else value


def _usage(frame: pd.DataFrame) -> Columns:
    return {
        **_columns(frame, REQUESTS),
        **_columns(frame, dict.fromkeys(("lost_tokens", "turn", "new_bytes"), "q")),
        **_columns(frame, {"model": "s"}),
    }


def _turns(frame: pd.DataFrame) -> Columns:
    took = (frame["elapsed_ms"] * 1000).round().to_numpy(np.int64, na_value=NAT).astype("timedelta64[us]")
    found = dict(_columns(frame, {"turn": "q", "time": "t", "tool_calls": "q"}))
    return {**found, "ended": found["time"] + took}


def _messages(directory: Path, rows: slice, *, content: bool) -> Columns:
    with _as_written(directory):
        frame = _read(directory, "messages").iloc[rows]
        if not content or "content" not in frame:
            frame = frame.assign(content=None)
        return _columns(frame, MESSAGES)


def _columns(frame: pd.DataFrame, kinds: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    return {name: _array(frame[name], kind) for name, kind in kinds.items()}


def _array(values: Any, kind: str) -> Any:
    """A frame's column as a part has it: missing is -1, NaN or None."""
    if kind == "q":
        return values.to_numpy(np.int64, na_value=-1)
    if kind == "b":
        return values.astype("Int8").to_numpy(np.int8, na_value=-1)
    if kind == "d":
        return values.to_numpy(np.float64, na_value=np.nan)
    if kind == "t":
        return values.dt.tz_localize(None).to_numpy("datetime64[us]")
    return values.astype(object).where(values.notna(), None).to_numpy(object)
