"""`LazyFrames`: the dataframes of loaded logs, each built on first use."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pandas as pd

from loopkit.logs.frames import build
from loopkit.logs.frames.columns import Part
from loopkit.logs.frames.schema import FRAMES, document_columns
from loopkit.logs.problems import Problem

__all__ = ["LazyFrames"]

COPIES_ON_WRITE = int(pd.__version__.split(".")[0]) >= 3
"True if pandas copies data on write, so that changing a shallow copy leaves the original unchanged."


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LazyFrames:
    """The dataframes of loaded logs. Base class of `Logs`."""

    parts: tuple[Part, ...]
    unread: tuple[Problem, ...] = ()
    content: bool = False
    _frames: dict[str, pd.DataFrame] = dataclasses.field(default_factory=dict, init=False)

    @property
    @document_columns
    def sessions(self) -> pd.DataFrame:
        """One row per session or replay."""
        return self._copy("sessions")

    @property
    @document_columns
    def epochs(self) -> pd.DataFrame:
        """One row per epoch. In other tools' logs, a compaction of the history starts a new epoch."""
        return self._copy("epochs")

    @property
    @document_columns
    def turns(self) -> pd.DataFrame:
        """One row per turn: a user message and everything until the model stops."""
        return self._copy("turns")

    @property
    @document_columns
    def usage(self) -> pd.DataFrame:
        """One row per completed request."""
        return self._copy("usage")

    @property
    @document_columns
    def cache_loss(self) -> pd.DataFrame:
        """One row per cache loss: a request for which fewer tokens were cached than expected."""
        return self._copy("cache_loss")

    @property
    @document_columns
    def messages(self) -> pd.DataFrame:
        """One row per message. The logs are read a second time for this frame.

        Raises
        ------
        TornLog, BaselineError, LogError, SessionIOError
            If a log or baseline has changed since it was loaded, or a message is invalid. A system message is left out if
            its baseline is among the problems.
        """
        return self._copy("messages")

    @property
    @document_columns
    def problems(self) -> pd.DataFrame:
        """One row per problem: something that could not be read, or was left out."""
        return self._copy("problems")

    def _all_frames(self) -> dict[str, pd.DataFrame]:
        return {name: self._frame(name) for name in FRAMES}

    def _copy(self, name: str) -> pd.DataFrame:
        return self._frame(name).copy(deep=not COPIES_ON_WRITE)

    def _frame(self, name: str) -> pd.DataFrame:
        if name not in self._frames:
            builders: dict[str, Callable[[], pd.DataFrame]] = {
                "sessions": lambda: build.sessions(self.parts),
                "epochs": lambda: build.epochs(self.parts, self._frame("usage")),
                "turns": lambda: build.turns(self.parts, self._frame("usage")),
                "usage": lambda: build.usage(self.parts),
                "cache_loss": lambda: build.cache_loss(self.parts, self._frame("usage")),
                "messages": lambda: build.messages(self.parts, content=self.content),
                "problems": lambda: build.problems(self.unread),
            }
            self._frames[name] = builders[name]()
        return self._frames[name]
