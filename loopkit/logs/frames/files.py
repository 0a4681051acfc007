"""Parquet files, which `load` reads back, and CSV files for other programs.

The directory has a subdirectory of Parquet files for each frame, and the file ``parts.parquet`` with one row per `Part`. This
file is written last, so a directory without it is incomplete.
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
from loopkit.logs.file_search import PARTS
from loopkit.logs.frames.arrays import STRING, to_array, to_numpy
from loopkit.logs.frames.columns import LOSSES, MESSAGES, REQUESTS, Columns, Part
from loopkit.logs.frames.schema import Kind
from loopkit.logs.problems import Problem

__all__ = ["read_parquet", "write_csv", "write_parquet"]

ROWS = 1 << 20
"Maximum number of rows in a file."
FACTS = (
    *("source", "path", "session", "epoch", "parent", "variant", "model", "engine", "slot"),
    *("baseline_sha256", "baseline_bytes", "end_reason"),
)
"Members of a `Part` that are columns of ``parts.parquet``, unchanged."
TIMES = ("started", "ended")
LENGTHS = ("usage", "losses", "turns", "messages")
NAT = np.timedelta64("NaT").astype(np.int64)
TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
OLD_NAMES = {
    "cache_loss": {"mendable_by": "fixable_by", "where": "location"},
    "messages": {"index": "position"},
    "problems": {"count": "affected"},
}
"Old and new names of columns, by frame, for exports that older versions of loopkit wrote."
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"A spreadsheet treats a cell that begins with one of these as a formula."


def write_parquet(parts: Sequence[Part], frames: Mapping[str, pd.DataFrame], directory: Path) -> None:
    """Write frames, and the facts of the parts from which they were built."""
    _require_pyarrow()
    _make_empty(directory)
    lengths = {
        "usage": [len(part.usage["request"]) for part in parts],
        "losses": [len(part.losses["row"]) for part in parts],
        "turns": [None if part.turns is None else len(part.turns["turn"]) for part in parts],
        "messages": _runs(parts, frames["messages"]),
    }
    facts: dict[str, Any] = {name: [getattr(part, name) for part in parts] for name in FACTS}
    table = pd.DataFrame({name: to_array(values, _dtype(name)) for name, values in facts.items()})
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
        raise LogError(str(directory), f"it cannot be written: {describe(error)}") from error


def _runs(parts: Sequence[Part], messages: pd.DataFrame) -> list[int]:
    """Return the number of messages of each part. The rows of ``messages`` are in the order of the parts."""
    counts = messages.groupby(["session", "epoch"], sort=False).size()
    return [int(counts.get((part.session, part.epoch), 0)) for part in parts]


def read_parquet(directory: Path) -> tuple[list[Part], list[Problem]]:
    """Read parts and problems from a directory that `write_parquet` wrote.

    Raises
    ------
    LogError
        If a file is missing or has been changed.
    InvalidConfig
        If pyarrow is not installed.
    """
    _require_pyarrow()
    with _report_changed(directory):
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
                    **{name: _plain(row[name]) for name in FACTS},
                    **{name: row[name].to_datetime64().astype("datetime64[us]") for name in TIMES},
                    usage=_usage(usage.iloc[of_usage]),
                    losses={**_columns(losses.iloc[of_losses], LOSSES), "row": losses["row"].iloc[of_losses].to_numpy(np.intp)},
                    turns=None if pd.isna(row["turns_rows"]) else _turns(turns.iloc[of_turns]),
                    messages=partial(_messages, directory, of_messages),
                )
            )
    return parts, problems


@contextmanager
def _report_changed(directory: Path) -> Iterator[None]:
    """Raise `LogError` instead of the errors that reading a missing or changed table raises."""
    try:
        yield
    except (OSError, KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise LogError(str(directory), f"the files are not as `to_parquet` wrote them: {describe(error)}") from error


def write_csv(frames: Mapping[str, pd.DataFrame], directory: Path) -> None:
    """Write one CSV file per frame."""
    _make_empty(directory)
    try:
        for name, frame in frames.items():
            texts = [text for text in frame if frame[text].dtype == "string"]
            safe = frame.copy()
            for text in texts:
                safe[text] = _without_formulas(frame[text])
            safe.to_csv(
                directory / f"{name}.csv", index=False, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n", date_format=TIME
            )
    except OSError as error:
        raise LogError(str(directory), f"it cannot be written: {describe(error)}") from error


def _without_formulas(texts: Any) -> Any:
    return texts.mask(texts.str.startswith(FORMULA) & texts.notna(), "'" + texts)


def _require_pyarrow() -> None:
    try:
        import pyarrow  # type: ignore[import-untyped]  # noqa: F401  # the message of pandas is less clear
    except ImportError:
        raise InvalidConfig(
            "pyarrow", "Parquet files need pyarrow, which is not installed", "Run `pip install 'loopkit-lab[scale]'`"
        ) from None


def _make_empty(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise LogError(str(directory), "the directory is not empty, and nothing is overwritten", "Choose an empty directory")
    except OSError as error:
        raise LogError(str(directory), f"it cannot be written: {describe(error)}") from error


def _dtype(name: str) -> Any:
    return "Int64" if name in ("epoch", "slot", "baseline_bytes") else STRING


def _read(directory: Path, name: str) -> pd.DataFrame:
    files = sorted((directory / f"{name}.parquet").iterdir())
    frame = pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)
    return frame.rename(columns=OLD_NAMES.get(name, {}))


def _spans(lengths: pd.Series[int], name: str, rows: int | None) -> list[slice]:
    """Return the rows of each part as a slice. Raise `ValueError` unless the table has as many rows as the parts together."""
    known = lengths.fillna(0).tolist()
    if min(known, default=0) < 0 or rows not in (None, sum(known)):
        raise ValueError(f"expected {sum(known)} rows of {name}, found {rows}")
    return [slice(*pair) for pair in pairwise(accumulate(known, initial=0))]


def _plain(value: Any) -> Any:
    return None if pd.isna(value) else value


def _usage(frame: pd.DataFrame) -> Columns:
    return {
        **_columns(frame, REQUESTS),
        **_columns(frame, {"lost_tokens": "count", "turn": "count", "new_bytes": "count"}),
        **_columns(frame, {"model": "text"}),
    }


def _turns(frame: pd.DataFrame) -> Columns:
    took = (frame["elapsed_ms"] * 1000).round().to_numpy(np.int64, na_value=NAT).astype("timedelta64[us]")
    found = dict(_columns(frame, {"turn": "count", "time": "time", "tool_calls": "count"}))
    return {**found, "ended": found["time"] + took}


def _messages(directory: Path, rows: slice, *, content: bool) -> Columns:
    with _report_changed(directory):
        frame = _read(directory, "messages").iloc[rows]
        if not content or "content" not in frame:
            frame = frame.assign(content=None)
        return _columns(frame, MESSAGES)


def _columns(frame: pd.DataFrame, kinds: Mapping[str, Kind]) -> dict[str, NDArray[Any]]:
    return {name: to_numpy(frame[name], kind) for name, kind in kinds.items()}
