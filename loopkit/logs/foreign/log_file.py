"""Log files, plain or gzipped: opening, and the member names at the start, from which formats are recognised."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path
from typing import BinaryIO

__all__ = ["BOM", "DECOMPRESS_ERRORS", "first_member_names", "open_log", "read_range"]

BOM = b"\xef\xbb\xbf"
GZIP_MAGIC = b"\x1f\x8b"
DECOMPRESS_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile)
"Exceptions that a damaged gzip file raises."
TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:]', re.S)


def open_log(path: Path) -> BinaryIO:
    """Open a file for reading bytes. A gzip file is decompressed."""
    file = path.open("rb")
    if file.peek(2)[:2] != GZIP_MAGIC:
        return file
    file.close()
    return gzip.open(path)  # type: ignore[return-value]


def read_range(path: Path, offset: int, size: int) -> bytes:
    """Return ``size`` bytes of a file from an offset. For a gzip file, the offset is in the decompressed content."""
    with open_log(path) as file:
        file.seek(offset)
        return file.read(size)


def first_member_names(head: bytes) -> frozenset[str]:
    """Return the member names of the first JSON object in the first bytes of a file.

    Examples
    --------
    >>> sorted(first_member_names(b'[{"a": {"b": ":"}, "c": [1, {"d'))
    ['a', 'c']
    """
    names: set[str] = set()
    depth, last, start = 0, b"", re.match(rb"[\s\[]*(?=\{)", head)
    for match in TOKEN.finditer(head, start.end()) if start else ():
        token = match[0]
        if token in b"{[":
            depth += 1
        elif token in b"}]":
            depth -= 1
            if not depth:
                break
        elif token == b":" and depth == 1:
            names.add(last[1:-1].decode("utf-8", "replace"))
        last = token
    return frozenset(names)
