"""Faults of a log of ours, named with their lines: these are looked up when there is a fault, for that is rare.

Knows nothing of how lines are read, nor of what was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import msgspec

from loopkit.errors import SessionIOError, TornLog
from loopkit.logs.frames.columns import times

__all__ = ["offset_of", "session_dir", "times_named", "torn_at"]

HEAD = re.compile(rb'\{"kind":"\w+","time":"(.{0,27})')


class _Timed(msgspec.Struct):
    time: str


_timed = msgspec.json.Decoder(_Timed)


def session_dir(path: Path) -> Path | None:
    """The session that a log belongs to; None where it is a replay's."""
    return None if path.parent.name == "replays" else path.parent


def torn_at(path: Path, index: int, why: str, *, at_end: bool = False) -> TornLog:
    """The error that names the line of this index."""
    where = session_dir(path)
    return TornLog(str(path), index + 1, offset_of(path, index), why, None if where is None else str(where), at_end=at_end)


def offset_of(path: Path, index: int) -> int:
    """Where the line of this index begins."""
    with path.open("rb") as file:
        return sum(map(len, islice(file, index)))


@contextmanager
def times_named(path: Path) -> Iterator[None]:
    """Times are read many at once; where one is none, name its line."""
    try:
        yield
    except ValueError as error:
        with path.open("rb") as file:
            for index, line in enumerate(file):
                if not all(map(_is_moment, _times_of(line))):
                    raise torn_at(path, index, "its time is no moment") from None
        raise SessionIOError(str(path), "read", "it was changed meanwhile") from error


def _times_of(line: bytes) -> Iterator[bytes | str]:
    """A line's time, as it stands at its place and as a decoder finds it: another writer may have told it twice."""
    if head := HEAD.match(line):
        yield head[1]
    with suppress(ValueError, RecursionError):
        yield _timed.decode(line).time


def _is_moment(time: bytes | str) -> bool:
    try:
        times([time])
    except ValueError:
        return False
    return True
