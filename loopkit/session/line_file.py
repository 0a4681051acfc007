"""A log of checksummed lines outside a session: a replay, a recording, a sweep."""

from __future__ import annotations

from pathlib import Path

from loopkit.errors import SessionIOError, describe
from loopkit.session.disk import AppendFile, create_file
from loopkit.session.journal import close_line

__all__ = ["LineFile", "make_parents"]


class LineFile:
    """A log, open for appending lines. If a write fails or is interrupted, the log is cut back to its last whole line.

    Parameters
    ----------
    path : Path
        The log. The first line creates it, and its missing parent directories.
    size : int, optional
        Size in bytes of an existing log, after its lines were checked. Omit it for a new log.
    crc : int
        Checksum of the last line of an existing log; 0 for a new log.
    """

    def __init__(self, path: Path, size: int | None = None, crc: int = 0) -> None:
        self.path, self._size, self._crc = path, size or 0, crc
        self._file = None if size is None else AppendFile(path, size)

    def write(self, record: bytes) -> None:
        """Append a record and sync the file. ``record`` is a JSON object without a line break; the checksum is added."""
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
        """Close the file. Safe to call twice."""
        if self._file is not None:
            self._file.close()


def make_parents(path: Path) -> None:
    """Create the missing parent directories of a path, accessible to the owner only."""
    try:
        for parent in reversed(path.parents):
            if not parent.is_dir():
                parent.mkdir(mode=0o700, exist_ok=True)  # parents=True would ignore the mode
    except OSError as error:
        raise SessionIOError(str(path.parent), "make the directory", describe(error)) from error
