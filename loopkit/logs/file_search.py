"""Search for log files: in a home, a session, a directory of other tools' logs, or by a glob pattern.

A home is the directory in which loopkit keeps its sessions, replays and recordings. The search looks only at names and locations;
no log is read.
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
from loopkit.session.layout import log_numbers, log_path, session_directories

__all__ = ["HINT", "PARTS", "File", "Loadable", "find"]

HOME = ("sessions", "replays", "memory", "slots", "sweeps", "recordings")
"Names of entries in a home. A directory that contains one of them is treated as a home."
LOGS = (".jsonl", ".json", ".eval", ".log", ".jsonl.gz")
"Suffixes of log files in a directory that is not a home."
PARTS = "parts.parquet"
"Name of the file that marks a directory written by ``to_parquet``."
HINT = "Give a home, session, log, directory of logs or pattern"


@runtime_checkable
class HasDir(Protocol):
    """An object whose ``dir`` is the directory of a session, such as a `Session`."""

    @property
    def dir(self) -> Path: ...


Loadable: TypeAlias = "str | Path | HasDir | Iterable[str | Path | HasDir]"


class File(NamedTuple):
    """A file to read. It may turn out not to be a log."""

    path: Path
    scanned: bool = False
    "True if the search found the file in a directory of other tools' files. Such a file may not be a log."


Found: TypeAlias = "File | Problem | LogError | SessionIOError"
"""A file to read, a problem for something left out, or an error: a missing file, or access that the system refused."""


def find(what: Loadable) -> list[Found]:
    """Return the files to read, and a problem or an error for each path that cannot be read.

    Each file occurs once. The order depends only on the names.

    Raises
    ------
    LogError
        If a named path does not exist or contains no log.
    SessionIOError
        If the operating system refuses access.
    """
    by_path: dict[str, Found] = {}
    try:
        for found in _files(what):
            by_path[os.path.realpath(found.path) if isinstance(found, File) else str(found)] = found
    except OSError as error:
        raise SessionIOError(str(error.filename or what), "read", describe(error)) from error
    return list(by_path.values())


def _files(what: Loadable) -> Iterator[Found]:
    if isinstance(what, HasDir):
        yield from _in_session(what.dir)
    elif isinstance(what, (str, Path)):
        path = Path(os.path.expanduser(what))
        try:
            mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: the path contains a NUL byte
            found = _matching(str(path))
            if not found:
                raise LogError(str(path), "the path does not exist", HINT) from None
            yield from chain.from_iterable(map(_matched, found))
            return
        yield from _in_directory(path) if stat.S_ISDIR(mode) else iter((File(path),))
    elif isinstance(what, Iterable):
        for one in what:
            yield from _files(one)
    else:
        raise InvalidConfig("what", f"{reprlib.repr(what)} is not a path", HINT)


def _matched(path: str) -> list[Found]:
    """Return the files at a path that a pattern matched. An error is returned instead of raised, so the other paths are read."""
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
    return [path for path in found if path != pattern]  # a link of this name whose target is missing


def _in_directory(path: Path) -> Iterator[Found]:
    names = {entry.name for entry in path.iterdir()}
    if PARTS in names:
        yield File(path / PARTS)
    elif not names:
        yield Problem(str(path), None, None, "left_out", "the directory is empty, so there is nothing to load")
    elif names.intersection(HOME):
        yield from _in_home(path)
    elif names.intersection(("0.jsonl", "0.baseline.json")):
        yield from _in_session(path)
    else:
        found = list(_below(path))
        if not found:
            raise LogError(str(path), "it is neither a home nor a session, and contains no log", HINT)
        yield from found


def _in_home(home: Path) -> Iterator[Found]:
    named, others = session_directories(home)
    for directory, is_named in sorted([*((each, True) for each in named), *((each, False) for each in others)]):
        try:
            yield from _in_sessions(directory, is_named=is_named)
        except OSError as error:  # the other sessions may be readable
            yield _refused(error)
    for name in ("replays", "recordings"):
        if (home / name).is_dir():
            yield from (File(entry) for entry in sorted((home / name).iterdir()) if entry.suffix == ".jsonl")
    for name in ("sessions", "replays", "recordings"):
        if os.path.lexists(home / name) and not (home / name).is_dir():
            why = "it is not a directory, or a link to a missing one"
            yield LogError(str(home / name), why, "Mount the directory that it links to, or remove it")


def _in_sessions(directory: Path, *, is_named: bool) -> Iterator[Found]:
    """Yield the logs in one directory of a home's ``sessions``. ``is_named`` is True if its name is a session id."""
    if is_named and log_numbers(directory):
        yield from _in_session(directory)
    elif found := list(_below(directory)):
        yield from found
    elif is_named and (wait_for_file(log_path(directory, 0)) or is_locked(directory)):
        yield from _in_session(directory)
    else:
        why = "it contains no 0.jsonl" if is_named else "its name is not a session id"
        yield Problem(str(directory), None, None, "left_out", f"{why}, so it was left out")


def _below(directory: Path) -> Iterator[Found]:
    """Yield files below a directory that may be logs, and an error for each directory that cannot be read."""
    refused: list[OSError] = []
    for place, directories, files in os.walk(directory, onerror=refused.append):
        directories.sort()
        yield from (
            File(Path(place, name), scanned=True)
            for name in sorted(files)
            if name.endswith(LOGS) and not name.endswith((".baseline.json", ".meta.json"))
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
        yield LogError(str(directory), f"the session lacks {missing}.jsonl", "Restore the file, or load the other sessions only")
    yield from (File(log_path(directory, number)) for number in numbers)
