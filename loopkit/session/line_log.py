"""A log that is no session's, of whole lines with the chained ``crc``: a replay's, a sweep's.

It is made with its first line, so what never began leaves no file; or it goes on behind lines that were read and checked. Knows
nothing of what the lines say.
"""

from __future__ import annotations

from pathlib import Path

from loopkit.errors import SessionIOError, describe
from loopkit.session.disk import AppendFile, create_file
from loopkit.session.journal import close_line

__all__ = ["LineFile", "make_parents"]


class LineFile:
    """A log that grows by whole lines; a failed or interrupted write is taken back.

    Parameters
    ----------
    path : Path
        The log; directories that are missing are made with it.
    size : int, optional
        Bytes of the lines that stand in it, as they were read and checked; not given where the file is still to be made.
    crc : int
        Value of the last of these lines.
    """

    def __init__(self, path: Path, size: int | None = None, crc: int = 0) -> None:
        self.path, self._size, self._crc = path, size or 0, crc
        self._file = None if size is None else AppendFile(path, size)

    def write(self, record: bytes) -> None:
        """Append a record, given as the JSON of an object on one line, and sync it."""
        line, crc = close_line(record[:-1], self._crc)
        if self._file is None:
            make_parents(self.path)
            create_file(self.path, line)
            self._file = AppendFile(self.path, len(line))
        else:
            try:
                self._file.append(line)
            except BaseException:
                self._file.cut(self._size)
                raise
        self._crc, self._size = crc, self._size + len(line)

    def close(self) -> None:
        """Close; a second time does nothing."""
        if self._file is not None:
            self._file.close()


def make_parents(path: Path) -> None:
    """Make the directories above a path that are missing, for their owner alone."""
    try:
        for parent in reversed(path.parents):
            if not parent.is_dir():
                parent.mkdir(mode=0o700, exist_ok=True)  # with parents=True those above it would be for all
    except OSError as error:
        raise SessionIOError(str(path.parent), "make the directory", describe(error)) from error
