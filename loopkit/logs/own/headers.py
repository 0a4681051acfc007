"""The heads of a log's lines: kind and time, which stand at fixed places in a line of its one form, many at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loopkit.logs.own.checksums import Lines, windows

__all__ = ["ASSISTANT", "END", "LOSS", "RESULT", "START", "USAGE", "USER", "Heads", "heads"]

START, USER, ASSISTANT, RESULT, USAGE, LOSS, END = b"suatgle"
_HEADS = {
    code: f'{{"kind":"{kind}","time":"'.encode()
    for kind, code in {
        "session_start": START,
        "user": USER,
        "assistant": ASSISTANT,
        "tool_result": RESULT,
        "usage": USAGE,
        "cache_loss": LOSS,
        "epoch_end": END,
    }.items()
}
_TELLING = 12
"The first place where the heads of any two kinds differ."
_CODES = np.zeros(256, np.uint8)
_LENGTHS = np.zeros(256, np.intp)
_PLACES = np.zeros((4, 256), np.intp)
_EIGHTS = np.zeros((4, 256), np.uint64)
"What stands at four places of each kind's head. They overlap, and are all of it, for none is shorter than 16 or longer than 32."
_TIME = np.dtype("S27")
for _code, _head in _HEADS.items():
    _CODES[_head[_TELLING]] = _code
    _LENGTHS[_code] = len(_head)
    _PLACES[:, _code] = 0, 8, len(_head) - 16, len(_head) - 8
    _EIGHTS[:, _code] = np.frombuffer(_head[:16] + _head[-16:], np.uint64)


class Heads(NamedTuple):
    """Kind and time of each line."""

    kinds: NDArray[np.uint8]
    "One of the letters above; 0 where a line has no such head."
    times: NDArray[np.bytes_]
    "What stands where its time is."


def heads(lines: Lines) -> Heads:
    r"""Look at the lines' heads.

    Examples
    --------
    >>> line = b'{"kind":"user","time":"2026-11-30T07:31:05.000001Z","content":"Hi.","crc":"00000000"}\n'
    >>> kinds, times = heads(Lines(1, line + bytes(64), np.array([0]), np.array([len(line) - 19])))
    >>> kinds.tobytes(), times.tolist()
    (b'u', [b'2026-11-30T07:31:05.000001Z'])
    """
    starts = lines.starts
    kinds = _CODES.take(np.frombuffer(lines.data, np.uint8).take(starts + _TELLING))
    right = windows(lines.data, np.uint64)[starts + _PLACES.take(kinds, axis=1)] == _EIGHTS.take(kinds, axis=1)
    if not right.all():
        kinds = kinds * right.all(axis=0)
    return Heads(kinds, windows(lines.data, _TIME)[starts + _LENGTHS.take(kinds)])
