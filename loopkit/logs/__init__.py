"""Logs as dataframes: loading, adapters for other tools' formats, summaries and the CI gate."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loopkit.logs.collection import Logs
    from loopkit.logs.dask_frames import Scan, scan
    from loopkit.logs.file_search import Loadable
    from loopkit.logs.frames.arrays import columns
    from loopkit.logs.frames.columns import Part
    from loopkit.logs.loading import load
    from loopkit.logs.problems import Errors, Problem

__all__ = ["Errors", "Loadable", "Logs", "Part", "Problem", "Scan", "columns", "load", "scan"]

# pandas is imported on first use.
_MODULES = {
    "Errors": "problems",
    "Loadable": "file_search",
    "Logs": "collection",
    "Part": "frames.columns",
    "Problem": "problems",
    "Scan": "dask_frames",
    "columns": "frames.arrays",
    "load": "loading",
    "scan": "dask_frames",
}


def __dir__() -> list[str]:
    return list(__all__)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
