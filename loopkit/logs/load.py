"""``load``: what is on disk as ``Logs``, whose frames are made on first use.

Finds the log files of a home, a session, a replay, a glob or a list of these and has each read once. Knows nothing of what stands
in a line, or in a column.
"""

from __future__ import annotations

import dataclasses
import datetime
import glob
import os
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from loopkit.card import Card
from loopkit.errors import InvalidConfig, LogError, SessionIOError, TornLog, describe
from loopkit.logs import frames
from loopkit.logs.columns import Part
from loopkit.logs.read import read_epoch, read_replay
from loopkit.session.live import appears, is_locked
from loopkit.session.store import is_log_name, log_numbers, log_path, session_directories

__all__ = ["Loadable", "Logs", "load"]

LONG = 1 << 28
"Bytes from which on a load shows its progress."
HOME = ("sessions", "replays", "memory", "slots", "sweeps", "recordings")
"Directories of a home; one of them makes a directory a home."
HOW = "Give a home, a session's directory, a .jsonl or a pattern"


@runtime_checkable
class HasDir(Protocol):
    """A session, as far as this room needs to know it."""

    @property
    def dir(self) -> Path: ...


Loadable: TypeAlias = "str | Path | HasDir | Iterable[str | Path | HasDir]"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Logs:
    """Logs as frames, one row one thing, made on first use; ``load`` makes it.

    Every frame has all its columns with the dtypes of ``loopkit.logs.schema``, of an empty log too; missing is ``<NA>``, never 0.
    A frame given out may be changed: it is the caller's.

    Parameters
    ----------
    parts : tuple of Part
        What was read, the epochs of a session in order.

    Examples
    --------
    >>> Logs(())
    Logs: sessions 0, epochs 0, turns 0, requests 0, read unknown, lost unknown
    >>> len(Logs(()).usage)
    0
    """

    parts: tuple[Part, ...]
    _made: dict[str, pd.DataFrame] = dataclasses.field(default_factory=dict, init=False)

    @property
    def sessions(self) -> pd.DataFrame:
        """A row is a session or a replay."""
        return self._frame("sessions", lambda: frames.sessions(self.parts))

    @property
    def epochs(self) -> pd.DataFrame:
        """A row is an epoch."""
        return self._frame("epochs", lambda: frames.epochs(self.parts, self.usage))

    @property
    def turns(self) -> pd.DataFrame:
        """A row is a user message and all that followed."""
        return self._frame("turns", lambda: frames.turns(self.parts, self.usage))

    @property
    def usage(self) -> pd.DataFrame:
        """A row is a completed request."""
        return self._frame("usage", lambda: frames.usage(self.parts))

    @property
    def cache_loss(self) -> pd.DataFrame:
        """A row is a loss."""
        return self._frame("cache_loss", lambda: frames.cache_loss(self.parts, self.usage))

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
            Empty where none fits.
        """
        kept = {part.session for part in self.parts}
        if session is not None:
            kept &= {session} if isinstance(session, str) else set(session)
        if since is not None:
            moment = _moment(since)
            kept &= {part.session for part in self.parts if part.ended >= moment}
        if model is not None:
            kept &= {part.session for part in self.parts if part.model == model}
        return Logs(tuple(part for part in self.parts if part.session in kept))

    def concat(self, other: Logs) -> Logs:
        """Put two together; an epoch that both have is taken from ``other``, which may have been read later.

        Raises
        ------
        LogError
            When two logs have the same session id, for then keys would not tell them apart.
        """
        return Logs(_in_order([*self.parts, *other.parts]))

    def __repr__(self) -> str:
        return self._card().text()

    def _repr_html_(self) -> str:
        return self._card().html()

    def _card(self) -> Card:
        found = self.sessions
        replays = int((found["source"] == "replay").sum())
        facts = [("sessions", len(found) - replays), ("replays", replays), ("epochs", len(self.parts))]
        facts += [("turns", int(found["turns"].sum())), ("requests", len(self.usage))]
        counted = [(name, f"{number:,}") for name, number in facts if number or name != "replays"]
        return Card("Logs", [*counted, *frames.finding(self.usage)])

    def _frame(self, name: str, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name].copy(deep=False)


def load(what: Loadable, *, progress: bool | None = None) -> Logs:
    """Read logs.

    Parameters
    ----------
    what : str, Path, Session, or an iterable of these
        A home, a session's directory, a ``.jsonl`` of a session or replay, or a pattern. A file named twice counts once.
    progress : bool, optional
        Whether to show a bar; by default for long loads only.

    Returns
    -------
    Logs
        Without rows where a home holds no session.

    Warns
    -----
    UserWarning
        For each directory in a home's ``sessions`` that holds no session, and for each damaged log in its ``replays``, of which
        the lines before the fault are taken: a replay is a measurement that ends where it was cut.

    Raises
    ------
    TornLog
        With file and line. A session that is being written right now is read up to its last whole group.
    LogError
        When something is not there, or not a log.
    SessionIOError
        When the system refuses; names the path.

    Examples
    --------
    >>> load("no such runs")
    Traceback (most recent call last):
        ...
    loopkit.errors.LogError: no such runs: nothing is there. Give a home, a session's directory, a .jsonl or a pattern
    """
    notes: list[str] = []
    try:
        files = list({os.path.realpath(found.path): found for found in _files(what, notes)}.values())
    except OSError as error:
        raise SessionIOError(str(error.filename or what), "read", describe(error)) from error
    sizes = [found.path.stat().st_size if found.path.is_file() else 0 for found in files]
    shown = sum(sizes) >= LONG if progress is None else progress
    parts: list[Part] = []
    with tqdm(total=sum(sizes), unit="B", unit_scale=True, desc="load", disable=not shown) as bar:
        for found, size in zip(files, sizes, strict=True):
            part = _read(found, notes)
            if part is not None:
                parts.append(part)
            bar.update(size)
    for note in notes:
        warnings.warn(note, UserWarning, stacklevel=2)
    return Logs(_in_order(parts))


def _in_order(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Each epoch once, the epochs of a session together and in order."""
    by_session: dict[str, dict[int, Part]] = {}
    for part in parts:
        epochs = by_session.setdefault(part.session, {})
        for other in epochs.values():
            if Path(other.path).resolve() != Path(part.path).resolve():
                why = f"{other.path} has the session id {part.session} too, and keys would not tell them apart"
                raise LogError(part.path, why, "Load them one at a time")
        epochs[part.epoch] = part
    return tuple(epochs[number] for epochs in by_session.values() for number in sorted(epochs))


class _Found(NamedTuple):
    path: Path
    beside: bool = False
    "Found in a home, beside others that it must not hide, and not asked for by name."


def _read(found: _Found, notes: list[str]) -> Part | None:
    if not _is_replay(found.path):
        return read_epoch(found.path)
    try:
        return read_replay(found.path)
    except (TornLog, SessionIOError) as error:
        if not found.beside:
            raise
        line = error.line if isinstance(error, TornLog) else 1
        place = f"{found.path}:{line}: {error.why}" if isinstance(error, TornLog) else str(error)
        notes.append(f"{place}. Of this replay {line - 1 or 'no'} {'line is' if line == 2 else 'lines are'} loaded")
        return read_replay(found.path, lines=line - 1) if line > 1 else None


def _files(what: Loadable, notes: list[str]) -> Iterator[_Found]:
    """The log files of what was asked for."""
    if isinstance(what, HasDir):
        yield from _in_session(what.dir)
    elif isinstance(what, (str, Path)):
        path = Path(what)
        try:
            mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError, ValueError):  # the last for what no path can hold, such as a NUL
            found = _matching(str(path))
            if not found:
                raise LogError(str(path), "nothing is there", HOW) from None
            yield from _files(found, notes)
            return
        if stat.S_ISDIR(mode):
            yield from _in_directory(path, notes)
        elif _is_replay(path) or is_log_name(path.name):
            yield _Found(path)
        else:
            raise LogError(str(path), "not a log of a session or a replay", f"A session's log is called 0.jsonl. {HOW}")
    else:
        for one in what:
            yield from _files(one, notes)


def _matching(pattern: str) -> list[str]:
    try:
        found = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else []
    except ValueError:
        return []
    return [path for path in found if path != pattern]  # a link of this very name that leads nowhere


def _in_directory(path: Path, notes: list[str]) -> Iterator[_Found]:
    names = {entry.name for entry in path.iterdir()}
    if not names or names.intersection(HOME):
        named, others = session_directories(path)
        notes += [f"{directory}: not the name of a session, so it was left out" for directory in others]
        for directory in named:
            if appears(log_path(directory, 0)) or is_locked(directory):
                yield from _in_session(directory)
            else:
                notes.append(f"{directory}: it has no 0.jsonl, so it is no session, and was left out")
        if (path / "replays").is_dir():
            found = sorted(entry for entry in (path / "replays").iterdir() if entry.suffix == ".jsonl")
            yield from (_Found(replay, beside=True) for replay in found)
    elif names.intersection(("0.jsonl", "0.baseline.json")):
        yield from _in_session(path)
    else:
        raise LogError(str(path), "neither a home nor a session: it has no sessions/ and no 0.jsonl", HOW)


def _in_session(directory: Path) -> Iterator[_Found]:
    numbers = log_numbers(directory)
    if not numbers and is_locked(directory):
        return
    if numbers != list(range(len(numbers))) or not numbers:
        missing = next(number for number in range(len(numbers) + 1) if number not in numbers)
        raise LogError(str(directory), f"a session without its {missing}.jsonl", "Put the file back, or leave the session out")
    yield from (_Found(log_path(directory, number)) for number in numbers)


def _is_replay(file: Path) -> bool:
    return file.parent.name == "replays"


def _moment(since: str | datetime.datetime) -> np.datetime64:
    try:
        moment = pd.Timestamp(since)
    except ValueError as error:
        raise InvalidConfig("since", f"{since!r} is not a time", "Write it as 2026-11-30 or 2026-11-30T07:31") from error
    return (moment if moment.tz is None else moment.tz_convert("UTC").tz_localize(None)).to_datetime64()
