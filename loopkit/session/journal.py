r"""The log on disk, line by line: where a line ends, and the CRC-32 that chains it to the line before.

A line is a record's JSON, its last member ``"crc"``: the CRC-32 of the line's bytes before the comma that stands before it,
continued from the line before. So a changed byte, and a line lost, doubled or moved, is seen and named. Nothing here writes, and
nothing is ever passed over: the first fault is a :class:`~loopkit.errors.TornLog` with file, line and byte offset.
Knows nothing of what the lines say.
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

__all__ = ["Block", "Fault", "Place", "body_of", "checked_blocks", "close_line", "open_regular", "torn"]

BLOCK = 1 << 16
"""Bytes read at once: small enough that the allocator takes and gives them without the system, so memory stays flat."""

_TAIL_SIZE = len(b',"crc":"00000000"}\n')
_TAIL_FORM = re.compile(rb',"crc":"([0-9a-f]{8})"\}\Z')
_TAIL = itemgetter(slice(-_TAIL_SIZE, None))

body_of = itemgetter(slice(-_TAIL_SIZE))
"""A line as far as the comma before ``"crc"``: a record's JSON without its closing brace."""


class Block(NamedTuple):
    """Sound lines that follow one another."""

    line: int
    "Number of the first, from 1."
    offset: int
    "Its byte offset in the file."
    lines: list[bytes]
    "Each with its line feed."
    crc: int
    "Value of the last of them."

    def offset_of(self, index: int) -> int:
        """Byte offset of ``lines[index]``."""
        return self.offset + sum(map(len, self.lines[:index]))


class Place(NamedTuple):
    """Where a line begins."""

    line: int = 1
    "Its number."
    offset: int = 0
    crc: int = 0
    "Value of the line before it."


class Fault(NamedTuple):
    """What is wrong with a session's file, and where."""

    path: str
    line: int | None
    "From 1; None where the file is no log."
    offset: int | None
    why: str

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line is not None else self.path
        return f"{place}: {self.why}" + (f" (byte {self.offset} of the file)" if self.offset is not None else "")


def close_line(body: bytes, crc: int) -> tuple[bytes, int]:
    r"""Close a line.

    Parameters
    ----------
    body : bytes
        A record's JSON without its closing brace.
    crc : int
        The value of the line before; 0 at the start of a file.

    Returns
    -------
    tuple of (bytes, int)
        The line with its ``\n``, and its value.

    Examples
    --------
    >>> close_line(b'{"kind":"user"', 0)
    (b'{"kind":"user","crc":"28df839d"}\n', 685736861)
    """
    crc = crc32(body, crc)
    return b'%b,"crc":"%08x"}\n' % (body, crc), crc


def open_regular(path: Path, buffering: int = BLOCK) -> BinaryIO:
    """Open a file to read it.

    Raises
    ------
    OSError
        When the system refuses; also for what is not a regular file: a FIFO would let the reader wait for ever.
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
    start: Place = Place(),  # noqa: B008  it cannot be changed
) -> Iterator[Block]:
    r"""Read a log in blocks of whole lines, and check of each line that it ends in ``\n`` and carries the right ``crc``.

    What stands before the ``crc`` is not looked at. Memory does not grow with the file.

    Parameters
    ----------
    path : Path
        A log, such as ``0.jsonl``.
    session_dir : Path, optional
        The session that it belongs to, so that the error can name the command that salvages it.
    faults : list of Fault, optional
        Where given, a fault is put here instead of raised, and the rest of the file is checked as well. No block is given out
        behind the first fault. The chain goes on from each line's recorded value, so one defect is one fault (three where a line
        was moved).
    size : int
        Bytes to read at once.
    start : Place
        The line to begin with; those before it are not read.

    Yields
    ------
    Block
        The sound lines in front of the first fault.

    Raises
    ------
    TornLog
        At the first fault, after the sound lines before it were given out.
    SessionIOError
        When the file cannot be read.
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
                    yield Block(line, offset, lines[:sound], crcs[sound - 1])
                whole = whole and not found
                _report(found, session_dir, faults)
                line += len(lines)
                offset += sum(map(len, lines))
    except OSError as error:
        raise SessionIOError(str(path), "read", describe(error)) from error
    if unfinished:
        why, at = _why(unfinished, line)
        why = "the last line does not end in a line feed" + (f": {why}" if why else ", though it is whole")
        _report([Fault(str(path), line, offset + at, why)], session_dir, faults, at_end=True)


class _Chain(NamedTuple):
    crc: int
    "Value of the last line."
    doubtful: bool = False
    "The last line had none: the next one's is taken as it stands."


def _tails(crcs: list[int]) -> bytes:
    """The ends of the lines that have these values, joined; all at once, for that is ten times as fast as line by line."""
    if not crcs:
        return b""
    digits = struct.pack(f">{len(crcs)}I", *crcs).hex(",", 4)
    return b',"crc":"%b"}\n' % digits.replace(",", '"}\n,"crc":"').encode()


def _line_by_line(path: str, lines: list[bytes], line: int, offset: int, chain: _Chain) -> tuple[list[Fault], _Chain]:
    faults = []
    for number, text in enumerate(lines, line):
        form = _TAIL_FORM.search(text)
        if form is None:
            why, at = _why(text, number)
            faults.append(Fault(path, number, offset + at, why))
            chain = _Chain(chain.crc, doubtful=True)
        else:
            recorded, crc = int(form[1], 16), crc32(text[: form.start()], chain.crc)
            if crc != recorded and not chain.doubtful:
                why, at = _why(text, number)
                faults.append(Fault(path, number, offset + at, why or _why_crc(recorded, crc)))
            chain = _Chain(recorded)
        offset += len(text) + 1
    return faults, chain


def _why_crc(recorded: int, crc: int) -> str:
    return (
        f"its crc is {recorded:08x}, but its bytes behind the lines before it give {crc:08x}: "
        "a byte was changed, or a line was lost, doubled or moved"
    )


def _why(text: bytes, line: int) -> tuple[str, int]:
    """Say what is wrong with a line by itself, and at which of its bytes; ``""`` where only its ``crc`` is."""
    if not text.strip():
        return ("an empty line" if not text else f"a blank line of {len(text)} bytes"), 0
    if (at := text.find(b"\0")) >= 0:
        return f"{text.count(0)} NUL bytes", at
    if text.startswith(b"\xef\xbb\xbf"):
        return "a byte order mark (BOM), which no log begins with" if line == 1 else "a byte order mark (BOM)", 0
    if text.endswith(b'"}\r'):
        return "it ends in CRLF, not LF: something rewrote the line ends", len(text) - 1
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
    """The error of a fault in a log."""
    where = None if session_dir is None else str(session_dir)
    return TornLog(fault.path, fault.line or 0, fault.offset or 0, fault.why, where, at_end=at_end)
