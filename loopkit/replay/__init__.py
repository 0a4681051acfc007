"""Replays: recorded requests sent again, unchanged or with one deliberate change, and what the cache did.

`run` sends the requests once. `compare` sends them unchanged and with each change, to measure the difference. `summary` reduces
the result of `compare` to one row per variant, and `describe` returns that summary as text.
"""

from typing import Any

from loopkit.contract.records import ReplayRecord
from loopkit.deprecation import renamed_names
from loopkit.replay.comparison import compare
from loopkit.replay.runs import run
from loopkit.replay.summaries import describe, summary
from loopkit.replay.variants import Change, EditableRequest, Variant

__all__ = ["Change", "EditableRequest", "ReplayRecord", "Variant", "compare", "describe", "run", "summary"]

_renamed = renamed_names(__name__, {"told": "describe"})


def __getattr__(name: str) -> Any:
    return _renamed(name)


def __dir__() -> list[str]:
    return list(__all__)
