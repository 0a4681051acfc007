"""Positions in JSON texts: the first byte that differs, and the member that contains a byte."""

from __future__ import annotations

import re
from typing import AnyStr

__all__ = ["first_difference", "path_at"]


def first_difference(a: AnyStr, b: AnyStr) -> int:
    """Return the first offset at which two byte strings or texts differ.

    If one is a prefix of the other, return the length of the shorter one.

    Examples
    --------
    >>> first_difference(b"abcd", b"abxd")
    2
    """
    low, high, end = 0, 64, min(len(a), len(b))
    while high < end and a[low:high] == b[low:high]:  # doubling: the cost depends only on the length of the common part
        low, high = high, 2 * high
    high = min(high, end)
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"?|[{}\[\],:]|[^\s{}\[\],:"]+', re.S)


def path_at(body: bytes, offset: int) -> str:
    """Return the path of the member that contains a byte of a JSON text.

    Parameters
    ----------
    body : bytes
        JSON text; it may be incomplete.
    offset : int
        Byte offset, from 0.

    Returns
    -------
    str
        The path, such as ``messages[3].content``. If the byte is in no member, ``body``.

    Examples
    --------
    >>> path_at(b'{"model":"x","messages":[{"role":"user","content":"Hi"}]}', 51)
    'messages[0].content'
    """
    stack: list[str | int | None] = []
    is_key = False
    for match in _TOKEN.finditer(body):
        if match.start() > offset:
            break
        token = match.group()
        if token == b"{":
            stack.append(None)
            is_key = True
        elif token == b"[":
            stack.append(0)
            is_key = False
        elif token in (b"}", b"]"):
            if match.start() == offset:
                break
            if stack:
                stack.pop()
            is_key = False
        elif token == b"," and stack:
            top = stack[-1]
            if match.start() == offset:
                break
            stack[-1] = top + 1 if isinstance(top, int) else None
            is_key = not isinstance(top, int)
        elif token == b":":
            is_key = False
        elif is_key:
            stack[-1] = token.strip(b'"').decode("utf-8", "replace")
    path = ""
    for part in stack:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if part is not None else ""
    return path.removeprefix(".") or "body"
