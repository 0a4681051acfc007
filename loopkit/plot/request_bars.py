"""The numbers of ``prefix_reuse``: parts of each bar, sessions side by side, and runs of losses with one cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from loopkit.plot.inputs import numbers
from loopkit.plot.style import shown

__all__ = ["Group", "Run", "Stack", "groups_of", "labels_of", "runs_of", "same_work"]

GAP = 1.5
"Smallest distance between the bars of two sessions, in bar widths."


class Stack(NamedTuple):
    """The four parts of each request's bar, in tokens. Together they are the length of the prompt."""

    reused: NDArray[np.float64]
    lost: NDArray[np.float64]
    new: NDArray[np.float64]
    unknown: NDArray[np.float64]
    "Prompt tokens if the cached tokens are unknown; processed tokens if only the lost tokens are unknown; otherwise 0."

    @classmethod
    def of(cls, usage: pd.DataFrame) -> Stack:
        """Compute the parts from a frame like ``logs.usage``."""
        prompt, cached, lost = (numbers(usage, name) for name in ("prompt_tokens", "cached_tokens", "lost_tokens"))
        read = prompt - cached
        lost = np.minimum(lost, read)
        unknown = np.where(np.isnan(cached), prompt, np.where(np.isnan(lost), read, 0))
        return cls(*(np.nan_to_num(part).astype(np.float64) for part in (cached, lost, read - lost, unknown)))


class Group(NamedTuple):
    """The requests of one session or replay, with its label and its place on the x-axis."""

    label: str
    usage: pd.DataFrame
    left: float
    "Position of the first bar."

    @property
    def x(self) -> NDArray[np.float64]:
        return np.arange(len(self.usage), dtype=np.float64) + np.float64(self.left)

    @property
    def right(self) -> float:
        return self.left + len(self.usage)


class Run(NamedTuple):
    """Consecutive requests with a loss of the same cause: position and height of their bars, and all lost tokens."""

    x: NDArray[np.float64]
    height: NDArray[np.float64]
    lost: float
    cause: str

    @property
    def text(self) -> str:
        return self.cause if len(self.x) == 1 else f"{self.cause} × {len(self.x):,}"


def labels_of(usage: pd.DataFrame, sessions: pd.DataFrame | None) -> dict[str, str]:
    """Return a label for each session id: the variant of a replay, or otherwise the id.

    If the replays come from one session, that session is labelled ``contract kept``, because its prefix stayed unchanged.
    """
    names = {session: session for session in usage["session"].unique()}
    if sessions is None:
        return names
    replays = sessions[sessions["source"] == "replay"]
    names |= dict(zip(replays["session"], replays["variant"].fillna("replayed unchanged"), strict=True))
    originals = set(names) - set(replays["session"])
    if len(originals) == 1 and originals == set(replays["parent"].dropna()):
        names[originals.pop()] = "contract kept"
    return names


def groups_of(usage: pd.DataFrame, names: Mapping[str, str]) -> Iterator[Group]:
    """Yield a group for each session or replay, from left to right."""
    left, gap = 0.0, max(GAP, 0.08 * len(usage) / max(usage["session"].nunique(), 1))
    for session, requests in usage.groupby("session", sort=False):
        group = Group(names[str(session)], requests, left)
        yield group
        left = group.right + gap


def runs_of(group: Group, cache_loss: pd.DataFrame | None) -> Iterator[Run]:
    """Yield the runs of losses in a group, from left to right."""
    lost, height = (np.nan_to_num(numbers(group.usage, name)) for name in ("lost_tokens", "prompt_tokens"))
    causes = ["" if not tokens else cause for tokens, cause in zip(lost, _causes(group.usage, cache_loss), strict=True)]
    begin = 0
    for cause, same in groupby(causes):
        end = begin + len(list(same))
        if cause:
            yield Run(group.x[begin:end], height[begin:end], float(lost[begin:end].sum()), shown(cause))
        begin = end


def _causes(usage: pd.DataFrame, cache_loss: pd.DataFrame | None) -> list[str]:
    """Return the cause of each request's loss, or ``"loss"`` if the cause is unknown."""
    if cache_loss is None:
        return ["loss"] * len(usage)
    keys = ["session", "epoch", "request"]
    known = cache_loss.drop_duplicates(keys).set_index(keys)["cause"]
    return known.reindex(pd.MultiIndex.from_frame(usage[keys])).fillna("loss").tolist()


def same_work(groups: list[Group], sessions: pd.DataFrame) -> bool:
    """Return True if the groups are one session and replays of it, so that their totals can be compared."""
    shown = sessions[sessions["session"].isin([group.usage["session"].iloc[0] for group in groups])]
    origins = shown["parent"].where(shown["source"] == "replay", shown["session"])
    return origins.nunique(dropna=False) == 1
