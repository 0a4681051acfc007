"""Every frame has its columns, dtypes and units, whatever the log."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pytest

from loopkit.logs.collection import Logs
from loopkit.logs.frames import arrays, schema
from loopkit.logs.loading import load
from tests.logs.make import kept, replay, start, write, write_session

EMPTY = Logs(())


def one_request(home: Path) -> Logs:
    write_session(home, "a", [start("a"), *kept(1)])
    return load(home)


def without_counts(home: Path) -> Logs:
    write_session(home, "a", [start("a", model=None)])
    return load(home)


def large(home: Path) -> Logs:
    write_session(home, "a", [start("a"), *kept(3000, loses=frozenset(range(2, 3000, 7)))])
    write(home / "replays" / "r.jsonl", replay("live_system", 50, broken=True))
    return load(home)


@pytest.mark.parametrize("frame", schema.FRAMES)
@pytest.mark.parametrize("make", [None, without_counts, one_request, large])
def test_frames_have_the_schema(frame: str, make: object, tmp_path: Path) -> None:
    logs = make(tmp_path) if callable(make) else EMPTY
    made = getattr(logs, frame)
    assert list(made.columns) == [column.name for column in schema.FRAMES[frame]]
    assert made.dtypes.to_dict() == arrays.dtypes(frame)
    assert made.attrs == arrays.empty(frame).attrs
    assert isinstance(made.index, pd.RangeIndex)
    if make is large and frame != "problems":
        assert len(made) > 1


def test_every_column_is_documented_and_units_are_few() -> None:
    columns = [column for frame in schema.FRAMES.values() for column in frame]
    assert all(column.doc and not column.doc.endswith(".") and "\n" not in column.doc for column in columns)
    units = {None, "UTC", "tokens", "bytes", "ms", "share", "epochs", "turns", "requests", "losses", "calls", "tags", "lines"}
    assert {column.unit for column in columns} == units


def test_counts_are_nullable_and_times_of_one_unit_and_zone() -> None:
    for frame in schema.FRAMES:
        kinds = {str(dtype) for dtype in arrays.dtypes(frame).values()}
        assert kinds <= {"string", "Int64", "Float64", "boolean", "category", "datetime64[us, UTC]"}


def test_tables_of_one_name_agree() -> None:
    """A column means one thing, in every frame; keys join them."""
    seen: dict[str, object] = {}
    for frame in schema.FRAMES.values():
        for column in frame:
            assert seen.setdefault(column.name, column.dtype) == column.dtype


@pytest.mark.parametrize("make", [None, one_request, large])
def test_text_is_one_more_column(make: object, tmp_path: Path) -> None:
    made = (dataclasses.replace(make(tmp_path), content=True) if callable(make) else Logs((), content=True)).messages
    assert made.dtypes.to_dict() == {**arrays.dtypes("messages"), "content": arrays.STRING}


@pytest.mark.parametrize("storage", ["python", "pyarrow"])
@pytest.mark.parametrize("texts", [[], ["a" * 64], ["0123456789abcdef" * 4, "f" * 64, "0" * 64]])
def test_texts_of_one_length_are_texts(
    storage: Literal["python", "pyarrow"], texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without the library that keeps them in one piece."""
    monkeypatch.setattr(arrays, "STRING", pd.StringDtype(storage))
    for values in (np.array(texts, "S64"), np.array([each for text in texts for each in (text, text)], "S64")[::2]):
        made = arrays.to_array(values, arrays.STRING)
        assert made.dtype == arrays.STRING
        assert made.tolist() == texts
        frame = pd.DataFrame({"text": made}).drop_duplicates().sort_values("text")
        assert frame["text"].str.upper().tolist() == sorted(text.upper() for text in texts)
