"""Kind and timestamp of many lines at once. They are at fixed positions, because the encoder writes one form only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loopkit.logs.own.checksums import Lines, windows

__all__ = ["ASSISTANT", "END", "LOSS", "RESULT", "START", "USAGE", "USER", "Headers", "parse_headers"]

START, USER, ASSISTANT, RESULT, USAGE, LOSS, END = b"suatgle"
_HEADERS = {
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
_DISTINCT = 12
"The first position at which the headers of any two kinds differ."
_CODES = np.zeros(256, np.uint8)
_LENGTHS = np.zeros(256, np.intp)
_PLACES = np.zeros((4, 256), np.intp)
_EIGHTS = np.zeros((4, 256), np.uint64)
"Eight bytes at four positions of each kind's header. They overlap and cover all of it, as headers have 16 to 32 bytes."
_TIME = np.dtype("S27")
for _code, _header in _HEADERS.items():
    _CODES[_header[_DISTINCT]] = _code
    _LENGTHS[_code] = len(_header)
    _PLACES[:, _code] = 0, 8, len(_header) - 16, len(_header) - 8
    _EIGHTS[:, _code] = np.frombuffer(_header[:16] + _header[-16:], np.uint64)


class Headers(NamedTuple):
    """Kind and timestamp of each line."""

    kinds: NDArray[np.uint8]
    "Code of each line's kind, such as `USER`; 0 if a line has no valid header."
    times: NDArray[np.bytes_]
    "The bytes at the position of each line's timestamp. They are not checked here."


def parse_headers(lines: Lines) -> Headers:
    r"""Return kind and timestamp of each line.

    Examples
    --------
    >>> line = b'{"kind":"user","time":"2026-11-30T07:31:05.000001Z","content":"Hi.","crc":"00000000"}\n'
    >>> kinds, times = parse_headers(Lines(1, line + bytes(64), np.array([0]), np.array([len(line) - 19])))
    >>> kinds.tobytes(), times.tolist()
    (b'u', [b'2026-11-30T07:31:05.000001Z'])
    """
    starts = lines.starts
    kinds = _CODES.take(np.frombuffer(lines.data, np.uint8).take(starts + _DISTINCT))
    right = windows(lines.data, np.uint64)[starts + _PLACES.take(kinds, axis=1)] == _EIGHTS.take(kinds, axis=1)
    if not right.all():
        kinds = kinds * right.all(axis=0)
    return Headers(kinds, windows(lines.data, _TIME)[starts + _LENGTHS.take(kinds)])
