"""Error messages with line numbers, which are computed only when there is an error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import msgspec

from loopkit.errors import SessionIOError, TornLog
from loopkit.logs.frames.columns import times

__all__ = ["locate_invalid_time", "offset_of", "session_dir", "torn_at"]

HEADER = re.compile(rb'\{"kind":"\w+","time":"(.{0,27})')


class _Timed(msgspec.Struct):
    time: str


_timed = msgspec.json.Decoder(_Timed)


def session_dir(path: Path) -> Path | None:
    """Return the directory of the session to which a log belongs; None for a replay log, which has no session directory."""
    return None if path.parent.name == "replays" else path.parent


def torn_at(path: Path, index: int, why: str, *, at_end: bool = False) -> TornLog:
    """Return the `TornLog` for the line with this index, from 0."""
    directory = session_dir(path)
    return TornLog(
        str(path), index + 1, offset_of(path, index), why, None if directory is None else str(directory), at_end=at_end
    )


def offset_of(path: Path, index: int) -> int:
    """Return the byte offset of the line with this index, from 0."""
    with path.open("rb") as file:
        return sum(map(len, islice(file, index)))


@contextmanager
def locate_invalid_time(path: Path) -> Iterator[None]:
    """Replace a `ValueError` about a timestamp by a `TornLog` that names the line.

    Many timestamps are parsed together, so the `ValueError` does not name one.
    """
    try:
        yield
    except ValueError as error:
        with path.open("rb") as file:
            for index, line in enumerate(file):
                if not all(map(_is_timestamp, _times_of(line))):
                    raise torn_at(path, index, "its timestamp is invalid") from None
        raise SessionIOError(str(path), "read", "the file was changed meanwhile") from error


def _times_of(line: bytes) -> Iterator[bytes | str]:
    """Yield the timestamp at its fixed position in a line, and the one that decoding the line gives.

    They differ if another program wrote the member ``time`` twice.
    """
    if header := HEADER.match(line):
        yield header[1]
    with suppress(ValueError, RecursionError):
        yield _timed.decode(line).time


def _is_timestamp(time: bytes | str) -> bool:
    try:
        times([time])
    except ValueError:
        return False
    return True
