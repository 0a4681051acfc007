"""Frames as pages of short rows: sessions, the epochs of one, the requests of one epoch.

Only the rows of one page are ever made into text. Knows nothing of widgets.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import pandas as pd

from loopkit.logs.load import Logs

__all__ = ["COLUMNS", "cell", "cells", "epochs_of", "requests_of", "sessions_of"]

TOKENS = ["prompt_tokens", "read_tokens", "lost_tokens"]
COLUMNS = {"prompt_tokens": "prompt", "read_tokens": "read", "cached_tokens": "reused", "lost_tokens": "lost"}
"What a frame's column is called here; the others keep their names."


def sessions_of(logs: Logs) -> pd.DataFrame:
    """A row for each session and replay, with the sums of its epochs."""
    sums = logs.epochs.groupby("session", sort=False)[TOKENS].sum(min_count=1)
    named = logs.sessions[["session", "source", "variant", "epochs", "requests"]]
    return named.join(sums, on="session")


def epochs_of(logs: Logs, session: str) -> pd.DataFrame:
    """A row for each epoch of a session."""
    found = logs.epochs
    return found.loc[found["session"] == session, ["epoch", "end_reason", "turns", "requests", *TOKENS]]


def requests_of(logs: Logs, session: str, epoch: int) -> pd.DataFrame:
    """A row for each request of an epoch, with the cause of its loss."""
    found = logs.usage
    found = found.loc[(found["session"] == session) & (found["epoch"] == epoch)]
    causes = logs.cache_loss[["session", "epoch", "request", "cause"]]
    found = found.merge(causes, "left", ["session", "epoch", "request"])
    return found[["request", "turn", "prompt_tokens", "cached_tokens", "read_tokens", "lost_tokens", "cause"]]


def cells(frame: pd.DataFrame) -> list[list[str]]:
    """The rows of a part of a frame as text; what is not known is empty.

    Examples
    --------
    >>> cells(pd.DataFrame({"request": pd.array([1, 2], "Int64"), "cause": pd.array([None, "slot_taken"], "string")}))
    [['1', ''], ['2', 'slot_taken']]
    """
    return [[cell(value) for value in row] for row in frame.itertuples(index=False)]


def cell(value: Any) -> str:
    """One value as text; what is not known is empty."""
    if pd.isna(value):
        return ""
    return f"{value:,.0f}" if isinstance(value, Real) else str(value)
