r"""The lines of a log of ours, checked many at once: what makes reading a long log fast.

The journal checks line after line. Here one CRC-32 over a whole block says of all its lines together whether they are sound. Each
line's ``crc`` continues from the value that the line before it records. A CRC-32 over the block as it stands would continue from
something else, for it takes in the recorded digits, too: from what the line's end makes of its value, which depends on the value
alone. CRC-32 is linear: that it begins with another value is the same as that the first four bytes are changed by the difference
of the two. So the block is checked with the first four bytes of each of its lines so changed; then each line continues from the
value that the line before it records, and the CRC-32 at the end of the last line is right if that of every line is.

The form of each line's end is looked at. A damaged record is found as by the line's own ``crc``; a damaged ``crc``, and a line
lost or doubled, always. Damage at several places, such as a line's record and its ``crc``, could cancel out with the odds of any
CRC-32, one in 2**32. A block that is not sound is left to :func:`~loopkit.session.journal.checked_blocks`, which names the line
and says what is wrong. Knows nothing of what the lines say.
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
"Bytes read at once: that many lines share the cost of looking at them together."
SLACK = 64
"Bytes behind the lines, so that what is looked for behind a line's beginning need not be there."

_TAIL = b',"crc":"%08x"}\n'
_TAIL_SIZE = len(_TAIL % 0)
_NAME, _DIGITS = np.frombuffer((_TAIL % 0)[:8], np.uint64), 8
_CLOSE = np.frombuffer((_TAIL % 0)[-4:], "<u4") >> 8
_NOT_HEX = 256


class Lines(NamedTuple):
    """Sound lines that follow one another, in one piece of bytes, which the next ones may overwrite."""

    number: int
    "Of the first, from 1."
    data: bytes | bytearray
    "With `SLACK` bytes more, or more than that."
    starts: NDArray[np.intp]
    "Where each line begins."
    ends: NDArray[np.intp]
    "Behind each line's record, where the comma stands before its ``crc``."

    def first(self, count: int | None) -> Lines:
        """No more than so many of them."""
        return self if count is None else self._replace(starts=self.starts[:count], ends=self.ends[:count])

    def bodies(self, which: NDArray[np.intp]) -> list[memoryview]:
        """The records of these lines, without their closing braces."""
        view = memoryview(self.data)
        return [
            view[start:end] for start, end in zip(self.starts.take(which).tolist(), self.ends.take(which).tolist(), strict=True)
        ]


def windows(data: bytes | bytearray, dtype: DTypeLike) -> NDArray[Any]:
    """What stands at each place of some bytes.

    Examples
    --------
    >>> windows(b"abcd", "S3").tolist()
    [b'abc', b'bcd']
    """
    return np.ndarray(len(data) + 1 - np.dtype(dtype).itemsize, dtype, data, strides=(1,))


def sound_lines(path: Path, *, session_dir: Path | None = None) -> Iterator[Lines]:
    r"""Read a log in blocks of whole lines, and check that each ends in ``\n`` and carries the right ``crc``.

    Parameters
    ----------
    path : Path
        A log, such as ``0.jsonl``.
    session_dir : Path, optional
        As for `checked_blocks`.

    Yields
    ------
    Lines
        The sound lines in front of the first fault.

    Raises
    ------
    TornLog
        At the first fault, after the sound lines before it were given out.
    SessionIOError
        When the file cannot be read.
    """
    place = Place()
    try:
        with open_regular(path, 0) as file:
            assert isinstance(file, FileIO)  # for it has no buffer
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
    del block  # it may be large: a line without an end
    for sound in checked_blocks(path, session_dir=session_dir, start=place):
        yield _lines(sound.line, b"".join([*sound.lines, bytes(SLACK)]), np.array([*accumulate(map(len, sound.lines))], np.intp))


class _Block:
    """Some of a file's bytes, in memory that is used again, for new memory would be asked of the system each time."""

    def __init__(self, size: int) -> None:
        self._filled = 0
        self._make(size)

    def _make(self, size: int) -> None:
        self._size = size
        self._data, self._equal = bytearray(size + SLACK), np.empty(size, np.bool_)
        self._bytes = np.frombuffer(self._data, np.uint8)

    def fill(self, file: FileIO) -> bool:
        """Read on, until a line ends or the file does; tells whether there is anything."""
        while True:
            if self._filled == self._size:  # a line longer than all this
                rest = self._data
                self._make(2 * self._size)
                memoryview(self._data)[: self._filled] = memoryview(rest)[: self._filled]
            begin = self._filled
            self._filled += file.readinto(memoryview(self._data)[begin : self._size])
            if self._filled == begin or self._data.find(b"\n", begin, self._filled) >= 0:
                return self._filled > 0

    def drop(self, lines: Lines) -> int:
        """Forget these lines; gives their size."""
        end = int(lines.ends[-1]) + _TAIL_SIZE
        rest = self._filled - end
        self._data[:rest] = self._data[end : self._filled]
        self._filled = rest
        return end

    def checked(self, place: Place) -> tuple[Lines, int] | None:
        """The whole lines and the value of the last, or None where one is not sound or none is whole."""
        newlines = self._newlines()
        if not newlines.size:
            return None
        lines = _lines(place.line, self._data, newlines + 1)
        ends, begins, size = lines.ends, lines.starts[1:], int(newlines[-1]) + 1
        if (ends < lines.starts).any():
            return None
        eights, fours = windows(self._data, np.uint64), windows(self._data, "<u4")
        values = _bytes_of_digits().take(eights[ends + _DIGITS].view(np.uint16).reshape(-1, 4))
        closes = fours[ends + _TAIL_SIZE - 4] >> 8  # with other digits, other closing bytes could give the same CRC-32
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
        """Where lines end; for two ends within eight bytes, which no sound lines have, the place behind these eight."""
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
    """Which bit of a byte is set, the highest first; 8 where several are."""
    table = np.full(256, 8)
    table[128 >> np.arange(8)] = np.arange(8)
    return table


@cache
def _bytes_of_digits() -> NDArray[np.uint16]:
    """The byte that two lowercase hex digits write, by the number that the two are in memory."""
    table = np.full(1 << 16, _NOT_HEX, np.uint16)
    table[np.frombuffer(bytes(range(256)).hex().encode(), np.uint16)] = np.arange(256)
    return table


@cache
def _behind_tail() -> list[NDArray[np.uint32]]:
    """What a line's end makes of the line's value, for each byte of the value, the highest first; XOR puts the four together."""

    def behind(value: int) -> int:
        return crc32(_TAIL % value, value)

    def of_byte(shift: int) -> list[int]:
        return [behind(byte << shift) ^ (behind(0) if shift else 0) for byte in range(256)]

    return [np.array(of_byte(shift), np.uint32) for shift in (24, 16, 8, 0)]
