"""Tables of a log explorer: sessions, the epochs of a session, and the requests of an epoch."""

from __future__ import annotations

from numbers import Real
from typing import Any

import pandas as pd

from loopkit.logs.collection import Logs

__all__ = ["cells", "epochs_of", "requests_of", "sessions_of"]

TOKENS = ["prompt_tokens", "read_tokens", "lost_tokens"]
NAMES = {"prompt_tokens": "prompt", "read_tokens": "processed", "cached_tokens": "reused", "lost_tokens": "lost"}


def sessions_of(logs: Logs) -> pd.DataFrame:
    """Return a frame with one row per session and replay. Tokens are summed over the epochs."""
    sums = logs.epochs.groupby("session", sort=False)[TOKENS].sum(min_count=1)
    named = logs.sessions[["session", "source", "variant", "epochs", "requests"]]
    return named.join(sums, on="session").rename(columns=NAMES)


def epochs_of(logs: Logs, session: str) -> pd.DataFrame:
    """Return a frame with one row per epoch of a session."""
    found = logs.epochs
    found = found.loc[found["session"] == session, ["epoch", "end_reason", "turns", "requests", *TOKENS]]
    return found.rename(columns=NAMES)


def requests_of(logs: Logs, session: str, epoch: int) -> pd.DataFrame:
    """Return a frame with one row per request of an epoch, with its tokens and the cause of its loss."""
    found = logs.usage
    found = found.loc[(found["session"] == session) & (found["epoch"] == epoch)]
    found = found.merge(logs.cache_loss[["session", "epoch", "request", "cause"]], "left", ["session", "epoch", "request"])
    columns = ["request", "turn", "prompt_tokens", "cached_tokens", "read_tokens", "lost_tokens", "cause"]
    return found[columns].rename(columns=NAMES)


def cells(frame: pd.DataFrame) -> list[list[str]]:
    """Return the cells of each row of a frame as text. A missing value is an empty text.

    Examples
    --------
    >>> cells(pd.DataFrame({"request": pd.array([1, 2000], "Int64"), "cause": pd.array([None, "slot_taken"], "string")}))
    [['1', ''], ['2,000', 'slot_taken']]
    """
    return [[_cell(value) for value in row] for row in frame.itertuples(index=False)]


def _cell(value: Any) -> str:
    return "" if pd.isna(value) else f"{value:,.0f}" if isinstance(value, Real) else str(value)
