"""The lines of a log: line ends, and the CRC-32 that chains each line to the line before.

A line is a record's JSON with ``"crc"`` as its last member. Its value is a CRC-32 over the line's bytes up to the comma before
``"crc"``, with the checksum of the line before as its start value. This finds changed bytes, and lines that were lost, repeated
or moved. The first fault raises :class:`~loopkit.errors.TornLog` with file, line and byte offset.
"""

from __future__ import annotations

import errno
import re
import stat
import struct
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, NamedTuple

from loopkit.encoding import crc32, decode
from loopkit.errors import SessionIOError, TornLog, describe

__all__ = ["CheckedBlock", "Fault", "Place", "body_of", "checked_blocks", "close_line", "open_regular", "torn"]

BLOCK = 1 << 16
"""Bytes per read. A block of this size fits into memory that the allocator reuses, so memory use stays constant."""

_TAIL_SIZE = len(b',"crc":"00000000"}\n')
_TAIL_FORM = re.compile(rb',"crc":"([0-9a-f]{8})"\}\Z')
_TAIL = itemgetter(slice(-_TAIL_SIZE, None))

body_of = itemgetter(slice(-_TAIL_SIZE))
"""Return a line up to the comma before ``"crc"``: a record's JSON without its closing brace."""


class CheckedBlock(NamedTuple):
    """Consecutive lines of a log whose endings and checksums are correct."""

    line: int
    "Number of the first line, from 1."
    offset: int
    "Byte offset of the first line in the file."
    lines: list[bytes]
    "The lines, each with its line feed."
    crc: int
    "Checksum of the last of these lines."

    def offset_of(self, index: int) -> int:
        """Return the byte offset of ``lines[index]``."""
        return self.offset + sum(map(len, self.lines[:index]))


class Place(NamedTuple):
    """The position of a line in a log, and the checksum that it continues. The default is the first line."""

    line: int = 1
    "Line number, from 1."
    offset: int = 0
    "Byte offset in the file."
    crc: int = 0
    "Checksum of the line before; 0 for the first line."


class Fault(NamedTuple):
    """One fault in a file of a session: its position and the reason."""

    path: str
    line: int | None
    "Line number, from 1; None if the file is not a log."
    offset: int | None
    "Byte offset in the file; None if the file is not a log."
    why: str

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line is not None else self.path
        return f"{place}: {self.why}" + (f" (byte {self.offset} of the file)" if self.offset is not None else "")


def close_line(body: bytes, crc: int) -> tuple[bytes, int]:
    r"""Return a log line for a record: its JSON with the checksum as the last member.

    Parameters
    ----------
    body : bytes
        A record's JSON without its closing brace.
    crc : int
        Checksum of the line before; 0 at the start of a file.

    Returns
    -------
    tuple of (bytes, int)
        The whole line with its ``\n``, and its checksum.

    Examples
    --------
    >>> close_line(b'{"kind":"user"', 0)
    (b'{"kind":"user","crc":"28df839d"}\n', 685736861)
    """
    crc = crc32(body, crc)
    return b'%b,"crc":"%08x"}\n' % (body, crc), crc


def open_regular(path: Path, buffering: int = BLOCK) -> BinaryIO:
    """Open a regular file for reading.

    Raises
    ------
    OSError
        If the file cannot be opened, or the path is not a regular file. (Opening a FIFO would wait forever.)
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return path.open("rb", buffering=buffering)


def checked_blocks(
    path: Path,
    *,
    session_dir: Path | None = None,
    faults: list[Fault] | None = None,
    size: int = BLOCK,
    start: Place = Place(),  # noqa: B008  a Place is immutable
) -> Iterator[CheckedBlock]:
    r"""Read a log in blocks of whole lines, and check each line's ending and checksum.

    The JSON between line start and checksum is not decoded. Memory use does not depend on the size of the file.

    Parameters
    ----------
    path : Path
        A log, such as ``0.jsonl``.
    session_dir : Path, optional
        Directory of the log's session. With it, the error message contains the command that salvages the session.
    faults : list of Fault, optional
        List to which all faults of the file are appended; no ``TornLog`` is raised then. Blocks are yielded only up to the first
        fault. After a fault, the check continues with the checksum that the line contains, so one defect is usually one fault.
        (A moved line gives three.)
    size : int
        Bytes per read.
    start : Place
        The line to begin with. Earlier lines are not read.

    Yields
    ------
    CheckedBlock
        The lines before the first fault, a block at a time.

    Raises
    ------
    TornLog
        At the first fault, after the lines before it were yielded. Not raised if ``faults`` is given.
    SessionIOError
        If the file cannot be read.
    """
    line, offset, chain, whole = start.line, start.offset, _Chain(start.crc), True
    unfinished = b""
    try:
        with open_regular(path) as file:
            file.seek(offset)
            while not unfinished and (lines := file.readlines(size)):
                if not lines[-1].endswith(b"\n"):
                    unfinished = lines.pop()
                crc = chain.crc
                crcs = [crc := crc32(body, crc) for body in map(body_of, lines)]
                sound = len(lines)
                found: list[Fault] = []
                if b"".join(map(_TAIL, lines)) == _tails(crcs):
                    chain = _Chain(crc)
                else:
                    sound = next(index for index, text in enumerate(lines) if _TAIL(text) != _tails(crcs[index : index + 1]))
                    found, chain = _line_by_line(str(path), [text[:-1] for text in lines], line, offset, chain)
                if whole and sound:
                    yield CheckedBlock(line, offset, lines[:sound], crcs[sound - 1])
                whole = whole and not found
                _report(found, session_dir, faults)
                line += len(lines)
                offset += sum(map(len, lines))
    except OSError as error:
        raise SessionIOError(str(path), "read", describe(error)) from error
    if unfinished:
        why, at = _why(unfinished)
        why = "the last line does not end in a line feed" + (f": {why}" if why else ", but is otherwise whole")
        _report([Fault(str(path), line, offset + at, why)], session_dir, faults, at_end=True)


class _Chain(NamedTuple):
    crc: int
    "Checksum of the last line."
    doubtful: bool = False
    "True if the last line had no checksum. The checksum of the next line then cannot be checked and is accepted."


def _tails(crcs: list[int]) -> bytes:
    """Return the line endings with these checksums, joined. Comparing them at once is ten times as fast as line by line."""
    if not crcs:
        return b""
    digits = struct.pack(f">{len(crcs)}I", *crcs).hex(",", 4)
    return b',"crc":"%b"}\n' % digits.replace(",", '"}\n,"crc":"').encode()


def _line_by_line(path: str, lines: list[bytes], line: int, offset: int, chain: _Chain) -> tuple[list[Fault], _Chain]:
    faults = []
    for number, text in enumerate(lines, line):
        form = _TAIL_FORM.search(text)
        if form is None:
            why, at = _why(text)
            faults.append(Fault(path, number, offset + at, why))
            chain = _Chain(chain.crc, doubtful=True)
        else:
            recorded, crc = int(form[1], 16), crc32(text[: form.start()], chain.crc)
            if crc != recorded and not chain.doubtful:
                why, at = _why(text)
                faults.append(Fault(path, number, offset + at, why or _why_crc(recorded, crc)))
            chain = _Chain(recorded)
        offset += len(text) + 1
    return faults, chain


def _why_crc(recorded: int, crc: int) -> str:
    return (
        f"its crc is {recorded:08x}, but its bytes and the lines before it give {crc:08x}: "
        "a byte was changed, or a line was lost, doubled or moved"
    )


def _why(text: bytes) -> tuple[str, int]:
    """Return what is wrong with a line, and at which byte of it. The text is empty if only the checksum is wrong."""
    if not text.strip():
        return ("an empty line" if not text else f"a blank line of {len(text)} bytes"), 0
    if (at := text.find(b"\0")) >= 0:
        return f"{text.count(0)} NUL bytes", at
    if text.startswith(b"\xef\xbb\xbf"):
        return "a byte order mark (BOM)", 0
    if text.endswith(b'"}\r'):
        return "it ends in CRLF, not LF: a program changed the line ends", len(text) - 1
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"not UTF-8: {error.reason}", error.start
    try:
        decode(text)
    except ValueError as error:
        return f"not a record: {error}", 0
    if _TAIL_FORM.search(text) is None:
        return 'its last member is not "crc" with eight hex digits', 0
    return "", 0


def _report(found: list[Fault], session_dir: Path | None, faults: list[Fault] | None, *, at_end: bool = False) -> None:
    if faults is not None:
        faults += found
    elif found:
        raise torn(found[0], session_dir, at_end=at_end)


def torn(fault: Fault, session_dir: Path | None, *, at_end: bool = False) -> TornLog:
    """Return the error for a fault in a log."""
    where = None if session_dir is None else str(session_dir)
    return TornLog(fault.path, fault.line or 0, fault.offset or 0, fault.why, where, at_end=at_end)
