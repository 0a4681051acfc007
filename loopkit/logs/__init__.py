"""Logs into dataframes: one row means one thing, in every frame; keys join them.

``loopkit.logs.scan`` gives them as dask dataframes, of more logs than fit into memory.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loopkit.logs.frames.dask import scan

__all__ = ["scan"]


def __dir__() -> list[str]:
    return list(__all__)


def __getattr__(name: str) -> Any:
    if name != "scan":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from loopkit.logs.frames.dask import scan  # pandas is loaded when it is needed

    return scan
