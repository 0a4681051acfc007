"""Blocks of lines with sound checksums, and their decoding with msgspec, many at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from loopkit.errors import TornLog
from loopkit.logs.own.checksums import Lines, sound_lines
from loopkit.logs.own.error_lines import session_dir, torn_at
from loopkit.session.concurrent_reads import is_locked

__all__ = ["decode_lines", "growth", "read_lines"]

T = TypeVar("T")

BATCH = 200
"Number of lines decoded together. Smaller batches cost more per line; larger ones need new memory from the system each time."


def read_lines(path: Path, limit: int | None = None) -> Iterator[Lines]:
    """Yield the checked lines of a log in blocks, at most ``limit`` lines.

    While a writer appends to the log, an unfinished last line is ignored.
    """
    try:
        for lines in sound_lines(path, session_dir=session_dir(path)):
            left = None if limit is None else limit + 1 - lines.number
            yield lines.first(left)
            if left is not None and left <= lines.starts.size:
                return
    except TornLog as torn:
        if not torn.at_end or not is_locked(path.parent):
            raise


def decode_lines(decoder: msgspec.json.Decoder[T], path: Path, lines: Lines, which: NDArray[np.intp]) -> Iterator[list[T]]:
    """Decode the lines with the indices ``which``, and yield their records in batches.

    Raises
    ------
    TornLog
        If a line is not a record of the decoder's type.
    """
    bodies = lines.bodies(which)
    for first in range(0, len(bodies), BATCH):
        batch = bodies[first : first + BATCH]
        records: list[T] = []
        with suppress(ValueError, RecursionError):
            records = decoder.decode_lines(b"}\n".join(batch) + b"}")
        if len(records) != len(batch):  # decode_lines also accepts several values in one line
            at, why = next((at, why) for at, body in enumerate(batch, first) if (why := _fault(decoder, body)))
            raise torn_at(path, lines.number - 1 + int(which[at]), why)
        yield records


def _fault(decoder: msgspec.json.Decoder[T], body: memoryview) -> str | None:
    """Return why a line cannot be decoded, or None."""
    try:
        decoder.decode(bytes(body) + b"}")
    except ValueError as error:
        return str(error)
    except RecursionError:
        return "nested too deep"
    return None


def growth(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how much each size exceeds the one before. The first size is unchanged.

    Examples
    --------
    >>> growth(np.array([10, 12, 15])).tolist()
    [10, 2, 3]
    """
    grown = sizes.copy()
    grown[1:] -= sizes[:-1]
    return grown
