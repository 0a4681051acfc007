"""``load``: what is on disk as ``Logs``, whose frames are made on first use.

Finds the log files of a home, a session, a replay, a glob or a list of these and has each read once. Knows nothing of what stands
in a line, or in a column.
"""

from __future__ import annotations

import dataclasses
import datetime
import glob
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from loopkit.card import Card
from loopkit.errors import InvalidConfig, LogError
from loopkit.logs import frames
from loopkit.logs.columns import Part
from loopkit.logs.read import is_locked, read_epoch, read_replay

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

    Raises
    ------
    TornLog
        With file and line. A session that is being written right now is read up to its last whole group.
    LogError
        When something is not there, or not a log.

    Examples
    --------
    >>> load("no such runs")
    Traceback (most recent call last):
        ...
    loopkit.errors.LogError: no such runs: nothing is there. Give a home, a session's directory, a .jsonl or a pattern
    """
    files = list({file.resolve(): file for file in _files(what)}.values())
    sizes = [file.stat().st_size for file in files]
    shown = sum(sizes) >= LONG if progress is None else progress
    parts: list[Part] = []
    with tqdm(total=sum(sizes), unit="B", unit_scale=True, desc="load", disable=not shown) as bar:
        for file, size in zip(files, sizes, strict=True):
            part = read_replay(file) if _is_replay(file) else read_epoch(file)
            if part is not None:
                parts.append(part)
            bar.update(size)
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


def _files(what: Loadable) -> Iterator[Path]:
    """The log files of what was asked for."""
    if isinstance(what, HasDir):
        yield from _in_session(what.dir)
    elif isinstance(what, (str, Path)):
        path = Path(what)
        if path.is_dir():
            yield from _in_directory(path)
        elif path.is_file():
            if not _is_replay(path) and not path.stem.isdecimal():
                raise LogError(str(path), "not a log of a session or a replay", f"A session's log is called 0.jsonl. {HOW}")
            yield path
        else:
            found = sorted(glob.glob(str(path), recursive=True)) if glob.has_magic(str(path)) else []
            if not found:
                raise LogError(str(path), "nothing is there", HOW)
            yield from _files(found)
    else:
        for one in what:
            yield from _files(one)


def _in_directory(path: Path) -> Iterator[Path]:
    names = {entry.name for entry in path.iterdir()}
    if not names or names.intersection(HOME):
        for directory in sorted((path / "sessions").glob("*/")):
            yield from _in_session(directory)
        yield from sorted((path / "replays").glob("*.jsonl"))
    elif names.intersection(("0.jsonl", "0.baseline.json")):
        yield from _in_session(path)
    else:
        raise LogError(str(path), "neither a home nor a session: it has no sessions/ and no 0.jsonl", HOW)


def _in_session(directory: Path) -> Iterator[Path]:
    numbers = sorted(int(file.stem) for file in directory.glob("*.jsonl") if file.stem.isdecimal())
    if not numbers and is_locked(directory):
        return
    if numbers != list(range(len(numbers))) or not numbers:
        missing = next(number for number in range(len(numbers) + 1) if number not in numbers)
        raise LogError(str(directory), f"a session without its {missing}.jsonl", "Put the file back, or leave the session out")
    yield from (directory / f"{number}.jsonl" for number in numbers)


def _is_replay(file: Path) -> bool:
    return file.parent.name == "replays"


def _moment(since: str | datetime.datetime) -> np.datetime64:
    try:
        moment = pd.Timestamp(since)
    except ValueError as error:
        raise InvalidConfig("since", f"{since!r} is not a time", "Write it as 2026-11-30 or 2026-11-30T07:31") from error
    return (moment if moment.tz is None else moment.tz_convert("UTC").tz_localize(None)).to_datetime64()
