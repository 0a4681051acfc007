r"""Checks of many lines of a log at once, which makes reading a long log fast.

:mod:`loopkit.session.journal` checks line by line. Here a single CRC-32 over a whole block shows whether all of its lines are
sound:

- The ``crc`` of each line continues from the ``crc`` that is recorded in the line before.
- A CRC-32 over the unchanged block would also cover the recorded ``crc`` and the end of each line. So it would start the next
  line with another value than the recorded one. This other value depends only on the recorded one.
- CRC-32 is linear: starting from another value has the same effect as an XOR of the first four bytes with the difference.
- So the first four bytes of each line are changed by that difference. Then one CRC-32 over the block passes exactly if every
  line's own check passes.

The end of each line is checked, too: the member ``crc`` with eight digits, and a line feed. A damaged record is found as reliably
as by the line's own ``crc``. A damaged ``crc``, or a line that is missing or doubled, is always found. Damage at several places
cancels out with probability 2**-32, as for any CRC-32. If a block fails, :func:`~loopkit.session.journal.checked_blocks` reads it
again and names the line and the fault.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from io import FileIO
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from loopkit.encoding import crc32
from loopkit.errors import SessionIOError, describe
from loopkit.session.journal import Place, checked_blocks, open_regular

__all__ = ["SLACK", "Lines", "sound_lines", "windows"]

BLOCK = 1 << 21
"Bytes that are read and checked together."
SLACK = 64
"Spare bytes at the end of a buffer, so that reading a fixed distance after the start of a short line stays inside it."

_TAIL = b',"crc":"%08x"}\n'
_TAIL_SIZE = len(_TAIL % 0)
_NAME, _DIGITS = np.frombuffer((_TAIL % 0)[:8], np.uint64), 8
_CLOSE = np.frombuffer((_TAIL % 0)[-4:], "<u4") >> 8
_NOT_HEX = 256


class Lines(NamedTuple):
    """Consecutive lines that passed the checks, in one buffer. Reading the next lines may overwrite the buffer."""

    number: int
    "Number of the first line, from 1."
    data: bytes | bytearray
    "The buffer, with at least `SLACK` more bytes at the end."
    starts: NDArray[np.intp]
    "Position of each line's start."
    ends: NDArray[np.intp]
    "Position of the comma before each line's ``crc``."

    def first(self, count: int | None) -> Lines:
        """Return at most the first ``count`` lines."""
        return self if count is None else self._replace(starts=self.starts[:count], ends=self.ends[:count])

    def bodies(self, which: NDArray[np.intp]) -> list[memoryview]:
        """Return the JSON of the lines with these indices, without the ``crc`` and the closing brace."""
        view = memoryview(self.data)
        return [
            view[start:end] for start, end in zip(self.starts.take(which).tolist(), self.ends.take(which).tolist(), strict=True)
        ]


def windows(data: bytes | bytearray, dtype: DTypeLike) -> NDArray[Any]:
    """Return the value of a dtype that starts at each byte of the data. The values overlap and share the memory of the data.

    Examples
    --------
    >>> windows(b"abcd", "S3").tolist()
    [b'abc', b'bcd']
    """
    return np.ndarray(len(data) + 1 - np.dtype(dtype).itemsize, dtype, data, strides=(1,))


def sound_lines(path: Path, *, session_dir: Path | None = None) -> Iterator[Lines]:
    r"""Read a log in blocks of whole lines, and check that each ends in ``\n`` and has the correct ``crc``.

    Parameters
    ----------
    path : Path
        A log, such as ``0.jsonl``.
    session_dir : Path, optional
        As for `checked_blocks`.

    Yields
    ------
    Lines
        Lines that passed the checks, one block at a time.

    Raises
    ------
    TornLog
        If a line is damaged. The sound lines before it are yielded first.
    SessionIOError
        If the file cannot be read.
    """
    place = Place()
    try:
        with open_regular(path, 0) as file:
            assert isinstance(file, FileIO)  # unbuffered
            block = _Block(min(BLOCK, os.fstat(file.fileno()).st_size + 1))
            while block.fill(file):
                found = block.checked(place)
                if found is None:
                    break
                lines, crc = found
                yield lines
                place = Place(place.line + lines.starts.size, place.offset + block.drop(lines), crc)
            else:
                return
    except OSError as error:
        raise SessionIOError(str(path), "read", describe(error)) from error
    del block  # its buffer may be large if a line has no end
    for sound in checked_blocks(path, session_dir=session_dir, start=place):
        yield _lines(sound.line, b"".join([*sound.lines, bytes(SLACK)]), np.array([*accumulate(map(len, sound.lines))], np.intp))


class _Block:
    """The bytes of a file that are checked together. The buffer is reused, because new memory for each block would be slow."""

    def __init__(self, size: int) -> None:
        self._filled = 0
        self._make(size)

    def _make(self, size: int) -> None:
        self._size = size
        self._data, self._equal = bytearray(size + SLACK), np.empty(size, np.bool_)
        self._bytes = np.frombuffer(self._data, np.uint8)

    def fill(self, file: FileIO) -> bool:
        """Read until the block has a complete line, or the file ends. Return True if the block is not empty."""
        while True:
            if self._filled == self._size:  # the line is longer than the buffer
                rest = self._data
                self._make(2 * self._size)
                memoryview(self._data)[: self._filled] = memoryview(rest)[: self._filled]
            begin = self._filled
            self._filled += file.readinto(memoryview(self._data)[begin : self._size])
            if self._filled == begin or self._data.find(b"\n", begin, self._filled) >= 0:
                return self._filled > 0

    def drop(self, lines: Lines) -> int:
        """Remove these lines from the start of the block, and return their size in bytes."""
        end = int(lines.ends[-1]) + _TAIL_SIZE
        rest = self._filled - end
        self._data[:rest] = self._data[end : self._filled]
        self._filled = rest
        return end

    def checked(self, place: Place) -> tuple[Lines, int] | None:
        """Return the complete lines of the block, and the checksum of the last one.

        Return None if a line is not sound, or the block has no complete line.
        """
        newlines = self._newlines()
        if not newlines.size:
            return None
        lines = _lines(place.line, self._data, newlines + 1)
        ends, begins, size = lines.ends, lines.starts[1:], int(newlines[-1]) + 1
        if (ends < lines.starts).any():
            return None
        eights, fours = windows(self._data, np.uint64), windows(self._data, "<u4")
        values = _bytes_of_digits().take(eights[ends + _DIGITS].view(np.uint16).reshape(-1, 4))
        closes = fours[ends + _TAIL_SIZE - 4] >> 8  # otherwise other digits with other closing bytes could pass
        if (eights[ends] != _NAME).any() or (values == _NOT_HEX).any() or (closes != _CLOSE).any():
            return None
        recorded = values.astype(np.uint8).view(">u4").ravel()
        behind = np.zeros_like(recorded, np.uint32)
        for table, column in zip(_behind_tail(), values.T, strict=True):
            behind ^= table.take(column)
        changes = (recorded ^ behind)[:-1]
        fours[begins] ^= changes
        value = crc32(memoryview(self._data)[:size], place.crc)
        fours[begins] ^= changes
        return (lines, int(recorded[-1])) if value == behind[-1] else None

    def _newlines(self) -> NDArray[np.intp]:
        """Return the positions of line feeds.

        Eight bytes are looked up at a time. If they contain two line feeds, the position after them is returned, and the check
        of that line fails. Sound lines are longer.
        """
        bits = np.packbits(np.equal(self._bytes[: self._filled], ord("\n"), out=self._equal[: self._filled]))
        found = (bits != 0).nonzero()[0]
        newlines: NDArray[np.intp] = found * 8 + _bit_of().take(bits.take(found))
        return newlines


def _lines(number: int, data: bytes | bytearray, behind: NDArray[np.intp]) -> Lines:
    starts = np.empty_like(behind)
    starts[0], starts[1:] = 0, behind[:-1]
    return Lines(number, data, starts, behind - _TAIL_SIZE)


@cache
def _bit_of() -> NDArray[np.intp]:
    """Return a table: for each byte the position of its set bit, from the highest; 8 if several bits are set."""
    table = np.full(256, 8)
    table[128 >> np.arange(8)] = np.arange(8)
    return table


@cache
def _bytes_of_digits() -> NDArray[np.uint16]:
    """Return a table: the value of two lowercase hex digits, indexed by their bytes as one number; 256 for other bytes."""
    table = np.full(1 << 16, _NOT_HEX, np.uint16)
    table[np.frombuffer(bytes(range(256)).hex().encode(), np.uint16)] = np.arange(256)
    return table


@cache
def _behind_tail() -> list[NDArray[np.uint32]]:
    """Return four tables, one for each byte of a recorded ``crc``, from the highest.

    The XOR of the four entries is the CRC-32 after the end of the line.
    """

    def behind(value: int) -> int:
        return crc32(_TAIL % value, value)

    def of_byte(shift: int) -> list[int]:
        return [behind(byte << shift) ^ (behind(0) if shift else 0) for byte in range(256)]

    return [np.array(of_byte(shift), np.uint32) for shift in (24, 16, 8, 0)]
