"""``load``: what is on disk as ``Logs``, whose frames are made on first use.

Has each file read once and puts the parts together. Knows nothing of what stands in a line, or in a column.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from loopkit.cache.losses.findings import Findings
from loopkit.cache.prefixes.prompt_parts import Prompt
from loopkit.errors import InvalidConfig, kind_of
from loopkit.logs.frames import build, schema
from loopkit.logs.frames.columns import Part
from loopkit.logs.frames.files import write_csv, write_parquet
from loopkit.logs.merge import problems_of_others, together
from loopkit.logs.problems import Problem
from loopkit.logs.requests import diagnosed, export, prompts
from loopkit.reprs import Card

__all__ = ["Logs"]

SPARE = ("turns", "epochs", "replays", "requests", "problems")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Logs:
    """Logs as frames, one row one thing, made on first use; ``load`` makes it.

    Every frame has all its columns with the dtypes of ``loopkit.logs.frames.schema``. Missing is ``<NA>``, never 0.
    A frame given out may be changed: it is the caller's.

    Parameters
    ----------
    parts : tuple of Part
        What was read, the epochs of a session in order.
    unread : tuple of Problem
        What could not be read, or was counted and left out.
    content : bool
        Whether the frame of messages has their text.

    Examples
    --------
    >>> Logs(())
    Logs: sessions 0, epochs 0, turns 0, requests 0, read unknown, lost unknown
    >>> len(Logs(()).usage)
    0
    """

    parts: tuple[Part, ...]
    unread: tuple[Problem, ...] = ()
    content: bool = False
    _made: dict[str, pd.DataFrame] = dataclasses.field(default_factory=dict, init=False)

    @property
    def sessions(self) -> pd.DataFrame:
        """A row is a session or a replay."""
        return self._frame("sessions", lambda: build.sessions(self.parts))

    @property
    def epochs(self) -> pd.DataFrame:
        """A row is an epoch."""
        return self._frame("epochs", lambda: build.epochs(self.parts, self.usage))

    @property
    def turns(self) -> pd.DataFrame:
        """A row is a user message and all that followed."""
        return self._frame("turns", lambda: build.turns(self.parts, self.usage))

    @property
    def usage(self) -> pd.DataFrame:
        """A row is a completed request."""
        return self._frame("usage", lambda: build.usage(self.parts))

    @property
    def cache_loss(self) -> pd.DataFrame:
        """A row is a loss."""
        return self._frame("cache_loss", lambda: build.cache_loss(self.parts, self.usage))

    @property
    def messages(self) -> pd.DataFrame:
        """A row is a message; the logs are read once more for it, as far as they were read before.

        Raises
        ------
        TornLog, BaselineError, LogError, SessionIOError
            When a log or its baseline is not what it was, or a message is none. Where a baseline was reported, it has no row.
        """
        return self._frame("messages", lambda: build.messages(self.parts, content=self.content))

    @property
    def problems(self) -> pd.DataFrame:
        """A row is something that could not be read, or was counted and left out."""
        return self._frame("problems", lambda: build.problems(self.unread))

    def requests(self) -> Iterator[Prompt]:
        """Each request's prompt, for `loopkit.cache`, as far as it is known.

        Yields
        ------
        Prompt
            With the body, rebuilt from the log or as it was recorded; else with messages, tokens or blocks. A request of which
            only the usage is known is left out.

        Raises
        ------
        TornLog, BaselineError, LogError, SessionIOError
            When a log is not any more what it was.
        """
        return prompts(self.parts)

    def diagnose(self) -> Findings:
        """Say every loss and its cause, and how much of the log could be judged at all.

        The losses are those of ``cache_loss``; one of a session that had no cause live, or one that another session's requests in
        its slot can feign, is judged once more, for now the other sessions at its server are known. Replays break the contract on
        purpose, and count only where nothing else is there.

        Examples
        --------
        >>> Logs(()).diagnose()
        0 losses in 0 requests: with usage ?, rendered exactly ?, lost with a cause ?
        """
        return diagnosed(self.parts)

    def export_trace(self, path: Path | str, salt: bytes, *, block: int = 512) -> int:
        """Write how prompts share prefixes, without their text: a line a request, as Mooncake's traces have it.

        Parameters
        ----------
        path : Path or str
            A JSONL file that is not there yet: ``timestamp`` (milliseconds from the first record), ``input_length``,
            ``output_length``, ``hash_ids``; with ``unit``, in which lengths are counted: ``tokens`` where the log knows them,
            ``blocks`` where it knows no more, else ``bytes`` of the body's prompt; also ``engine`` and ``epoch``, for ``load``.
        salt : bytes
            At least 16 random bytes. Two exports with one salt can be compared; who knows it can try out guesses of a text.
        block : int
            Tokens or bytes in a block. A block's number stands for all that comes before it, too.

        Returns
        -------
        int
            Lines written: requests of which only the usage is known are left out.

        Raises
        ------
        InvalidConfig
            When the salt is too short.
        LogError
            When the file is there already or cannot be written.
        """
        return export(self.parts, _path("path", path), salt, block)

    def to_parquet(self, directory: Path | str) -> None:
        """Write every frame as Parquet files of at most a million rows; ``load(directory)`` reads them back, equal.

        What a request sent is not in a frame: ``requests()`` has none afterwards. Messages have their text only where these logs
        were loaded with ``content=True``. Needs the extra ``scale``.

        Raises
        ------
        LogError
            When the directory holds something, or cannot be written.
        InvalidConfig
            When pyarrow is not installed.
        """
        write_parquet(self.parts, self._frames(), _path("directory", directory))

    def to_csv(self, directory: Path | str) -> None:
        """Write a CSV file a frame, for other programs.

        Text that a spreadsheet would take for a formula has an apostrophe before it; missing is an empty field.

        Raises
        ------
        LogError
            When the directory holds something, or cannot be written.
        """
        write_csv(self._frames(), _path("directory", directory))

    def where(
        self,
        *,
        session: str | Iterable[str] | None = None,
        since: str | datetime.datetime | None = None,
        model: str | None = None,
    ) -> Logs:
        """Keep some sessions, each whole, so that the frames go on agreeing with each other. To keep fewer rows, filter a frame.

        Parameters
        ----------
        session : str or iterable of str, optional
            Their ids.
        since : str or datetime, optional
            Those with a record at or after this moment; in UTC where it names no zone.
        model : str, optional
            Those with an epoch of this model.

        Returns
        -------
        Logs
            Without rows where none fits. Problems stay, but those of files whose sessions are all left out.
        """
        kept = {part.session for part in self.parts}
        if session is not None:
            kept &= _named(session)
        if since is not None:
            moment = _moment(since)
            kept &= {part.session for part in self.parts if part.ended >= moment}
        if model is not None:
            if not isinstance(model, str):
                raise InvalidConfig("model", f"{model!r} is not the name of one")
            kept &= {part.session for part in self.parts if part.model == model}
        parts = tuple(part for part in self.parts if part.session in kept)
        files = {part.path for part in parts}
        gone = [part for part in self.parts if part.session not in kept and part.path not in files]
        return dataclasses.replace(self, parts=parts, unread=problems_of_others(self.unread, gone))

    def concat(self, other: Logs) -> Logs:
        """Put two together; of a file that both have, epochs and problems are those of ``other``, which may have been read later.

        Raises
        ------
        LogError
            When two logs have the same session id, for then keys would not tell them apart.
        """
        if not isinstance(other, Logs):
            raise InvalidConfig("other", f"{kind_of(other)} is no Logs", "Load it first")
        unread = [*problems_of_others(self.unread, other.parts), *other.unread]
        return Logs(*together([*self.parts, *other.parts], unread, "raise"), self.content or other.content)

    def __repr__(self) -> str:
        return self._card().text()

    def __str__(self) -> str:
        return self._card().whole()

    def _repr_html_(self) -> str:
        card, plot = self._card(), build.spark(self.usage)
        return card._replace(facts=[*card.facts, *([("reuse by request", plot)] if plot else [])]).html()

    def _card(self) -> Card:
        found = self.sessions
        replays = int((found["source"] == "replay").sum())
        facts = [("sessions", len(found) - replays), ("replays", replays), ("epochs", len(self.parts))]
        facts += [("turns", int(found["turns"].sum())), ("requests", len(self.usage))]
        counted = [(name, f"{number:,}") for name, number in facts if number or name != "replays"]
        faults = [("problems", f"{len(self.unread):,}")] if self.unread else []
        return Card("Logs", [*counted, *faults, *build.finding(self.usage)], SPARE)

    def _frames(self) -> dict[str, pd.DataFrame]:
        return {name: getattr(self, name) for name in schema.FRAMES}

    def _frame(self, name: str, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name].copy(deep=False)


def _named(session: str | Iterable[str]) -> set[str]:
    names = [session] if isinstance(session, str) or not isinstance(session, Iterable) else list(session)
    for name in names:
        if not isinstance(name, str):
            raise InvalidConfig("session", f"{name!r} is not the id of one")
    return set(names)


def _path(name: str, value: Path | str) -> Path:
    if not isinstance(value, (str, Path)) or "\0" in str(value):
        raise InvalidConfig(name, f"{value!r} is no path")
    return Path(value)


def _moment(since: str | datetime.datetime) -> np.datetime64:
    moment: pd.Timestamp | None = None
    if isinstance(since, (str, datetime.date, np.datetime64)):  # of a bare number nobody knows the unit
        with contextlib.suppress(ValueError):
            moment = pd.Timestamp(since)
    if moment is None or pd.isna(moment):
        raise InvalidConfig("since", f"{since!r} is not a time", "Write it as 2026-11-30 or 2026-11-30T07:31")
    return (moment if moment.tz is None else moment.tz_convert("UTC").tz_localize(None)).to_datetime64()
