"""Which log files are meant by a home, a session, a directory of other tools' logs, a file, a pattern, or a list of these.

Looks at names and places, and into a file only where its place does not say whose it is. Reads no log.
"""

from __future__ import annotations

import glob
import os
import reprlib
import stat
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from loopkit.errors import InvalidConfig, LogError, SessionIOError, describe
from loopkit.logs.problems import Problem
from loopkit.session.concurrent_reads import is_locked, wait_for_file
from loopkit.session.store import log_numbers, log_path, session_directories

__all__ = ["HOW", "PARTS", "File", "Loadable", "find"]

HOME = ("sessions", "replays", "memory", "slots", "sweeps", "recordings")
"Directories of a home; one of them makes a directory a home."
LOGS = (".jsonl", ".json", ".eval", ".log", ".jsonl.gz")
"How the files end that are looked at in a directory that is no home of ours."
PARTS = "parts.parquet"
"What tells a directory that ``to_parquet`` wrote."
HOW = "Give a home, a session, a log, a directory of logs or a pattern"


@runtime_checkable
class HasDir(Protocol):
    """A session, as far as this room needs to know it."""

    @property
    def dir(self) -> Path: ...


Loadable: TypeAlias = "str | Path | HasDir | Iterable[str | Path | HasDir]"


class File(NamedTuple):
    """A file that was found."""

    path: Path
    scanned: bool = False
    "Found in a directory of other tools' logs, where it may be no log at all, and not asked for by name or place."


Found: TypeAlias = "File | Problem | LogError | SessionIOError"
"""A file; something left out; something that should be there and is not; something that the system refuses."""


def find(what: Loadable) -> list[Found]:
    """Find the files, each once, in an order that depends on names alone.

    Raises
    ------
    LogError
        When what was asked for by name is not there, or holds no log.
    SessionIOError
        When the system refuses.
    """
    seen: dict[str, Found] = {}
    try:
        for found in _files(what):
            seen[os.path.realpath(found.path) if isinstance(found, File) else str(found)] = found
    except OSError as error:
        raise SessionIOError(str(error.filename or what), "read", describe(error)) from error
    return list(seen.values())


def _files(what: Loadable) -> Iterator[Found]:
    if isinstance(what, HasDir):
        yield from _in_session(what.dir)
    elif isinstance(what, (str, Path)):
        path = Path(os.path.expanduser(what))
        try:
            mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError, ValueError):  # the last for what no path can hold, such as a NUL
            found = _matching(str(path))
            if not found:
                raise LogError(str(path), "nothing is there", HOW) from None
            yield from chain.from_iterable(map(_matched, found))
            return
        yield from _in_directory(path) if stat.S_ISDIR(mode) else iter((File(path),))
    elif isinstance(what, Iterable):  # bytes are numbers, each of them no path
        for one in what:
            yield from _files(one)
    else:
        raise InvalidConfig("what", f"{reprlib.repr(what)} is no path", HOW)


def _matched(path: str) -> list[Found]:
    """What a path that a pattern matched means: nobody asked for it by its name, and it hides no other."""
    try:
        return list(_files(path))
    except LogError as error:
        return [error]
    except OSError as error:
        return [_refused(error)]


def _matching(pattern: str) -> list[str]:
    try:
        found = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else []
    except ValueError:
        return []
    return [path for path in found if path != pattern]  # a link of this very name that leads nowhere


def _in_directory(path: Path) -> Iterator[Found]:
    names = {entry.name for entry in path.iterdir()}
    if PARTS in names:
        yield File(path / PARTS)
    elif not names:  # it may become a home
        yield Problem(str(path), None, None, "left_out", "the directory is empty: no log is here, and it is no home yet")
    elif names.intersection(HOME):
        yield from _in_home(path)
    elif names.intersection(("0.jsonl", "0.baseline.json")):
        yield from _in_session(path)
    else:
        found = list(_below(path))
        if not found:
            raise LogError(str(path), "neither a home nor a session, and no log is below it", HOW)
        yield from found


def _in_home(home: Path) -> Iterator[Found]:
    named, others = session_directories(home)
    for directory, is_named in sorted([*((each, True) for each in named), *((each, False) for each in others)]):
        try:
            yield from _in_sessions(directory, is_named=is_named)
        except OSError as error:  # of one that may not be looked into: the others may
            yield _refused(error)
    for name in ("replays", "recordings"):
        if (home / name).is_dir():
            yield from (File(entry) for entry in sorted((home / name).iterdir()) if entry.suffix == ".jsonl")
    for name in ("sessions", "replays", "recordings"):
        if os.path.lexists(home / name) and not (home / name).is_dir():
            yield LogError(
                str(home / name), "it is no directory, or a link that leads to none", "Mount what it leads to, or remove it"
            )


def _in_sessions(directory: Path, *, is_named: bool) -> Iterator[Found]:
    """What a directory in a home's ``sessions`` is."""
    if is_named and log_numbers(directory):
        yield from _in_session(directory)
    elif found := list(_below(directory)):
        yield from found
    elif is_named and (wait_for_file(log_path(directory, 0)) or is_locked(directory)):
        yield from _in_session(directory)
    else:
        why = "it has no 0.jsonl, so it is no session" if is_named else "not the name of a session"
        yield Problem(str(directory), None, None, "left_out", f"{why}, and was left out")


def _below(directory: Path) -> Iterator[Found]:
    """Files in a directory of other tools' logs that may be logs, and directories that cannot be looked into."""
    refused: list[OSError] = []
    for place, directories, files in os.walk(directory, onerror=refused.append):
        directories.sort()
        yield from (
            File(Path(place, name), scanned=True)
            for name in sorted(files)
            if name.endswith(LOGS) and not name.endswith((".baseline.json", ".meta.json"))  # of a sub-agent
        )
    yield from map(_refused, refused)


def _refused(error: OSError) -> SessionIOError:
    return SessionIOError(str(error.filename), "read", describe(error))


def _in_session(directory: Path) -> Iterator[Found]:
    numbers = log_numbers(directory)
    if not numbers and is_locked(directory):
        return
    if numbers != list(range(len(numbers))) or not numbers:
        missing = next(number for number in range(len(numbers) + 1) if number not in numbers)
        yield LogError(str(directory), f"a session without its {missing}.jsonl", "Put the file back, or leave the session out")
    yield from (File(log_path(directory, number)) for number in numbers)
