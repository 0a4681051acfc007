"""JSON ↔ bytes, lines, SHA-256 and CRC-32: the one room that turns values into bytes.

One form stands here, for wire and log: compact UTF-8 JSON, members in the order they were given, nothing sorted, nothing escaped
that need not be. It is msgspec's, so the same value gives the same bytes on every Python, platform and hash seed.
Knows nothing of records, files or servers. The standard library's ``json`` is used here alone, for the one input that msgspec
refuses and the world sends: lone surrogate escapes.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

import msgspec
from zlib_ng import zlib_ng

from loopkit.errors import EncodeError, kind_of

__all__ = [
    "canonical",
    "compact",
    "crc32",
    "decode",
    "decode_lenient",
    "encode",
    "encode_texts",
    "find_unencodable",
    "lines",
    "mend_surrogates",
    "sha256",
]

T = TypeVar("T")


def _plain(value: Any) -> Any:
    """Turn a subclass of a JSON type, such as an identifier, into what it is a subclass of."""
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"JSON has no form for {kind_of(value)}")


_encoder = msgspec.json.Encoder(enc_hook=_plain)
_LONE = re.compile("[\ud800-\udfff]")


def encode(value: Any, name: str = "value") -> bytes:
    r"""Encode a value as compact UTF-8 JSON, members in their order.

    Parameters
    ----------
    value : Any
        What JSON can hold: None, bool, int, float, str, list, tuple, dict, ``msgspec.Struct``, ``msgspec.Raw``.
    name : str
        What to call the value in an error.

    Returns
    -------
    bytes
        The JSON text, without a final newline.

    Raises
    ------
    EncodeError
        For NaN, infinities, lone surrogates, integers beyond 64 bits, invalid ``Raw`` and foreign types; names the member.

    Examples
    --------
    >>> encode({"b": 1, "a": [1.5, None, "é"]}).decode()
    '{"b":1,"a":[1.5,null,"é"]}'
    >>> encode({"score": float("nan")}, "result")
    Traceback (most recent call last):
        ...
    loopkit.errors.EncodeError: result.score cannot be encoded: nan is not a JSON number. Nothing was written
    """
    fault = find_unencodable(value, name)
    if fault is not None:
        raise EncodeError(*fault)
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise EncodeError(name, str(error) or type(error).__name__) from error


def encode_texts(value: Any, name: str) -> bytes:
    """Encode what holds strings, counts and truth values only, as :func:`encode` does but sooner.

    There msgspec itself sees all that JSON cannot hold; only then is the member looked for.

    Examples
    --------
    >>> encode_texts(["a", 1, True], "value")
    b'["a",1,true]'
    """
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, OverflowError):
        return encode(value, name)


def find_unencodable(value: Any, name: str) -> tuple[str, str] | None:
    """Find the first part of a value that JSON cannot hold.

    Returns
    -------
    tuple of (str, str), or None
        The member's path, such as ``evidence.at[3]``, and why; None when all of it can be encoded.

    Examples
    --------
    >>> find_unencodable({"a": [1, float("inf")]}, "x")
    ('x.a[1]', 'inf is not a JSON number')
    """
    stack: list[tuple[Any, str]] = [(value, name)]
    while stack:
        item, path = stack.pop()
        if item is None or isinstance(item, bool):
            continue
        if isinstance(item, str):
            if not item.isascii() and (match := _LONE.search(item)):
                return path, f"the lone surrogate {match.group()!a} at character {match.start()} is not text"
        elif isinstance(item, int):
            if not -(1 << 63) <= item < 1 << 64:
                return path, f"an integer of {item.bit_length()} bits does not fit 64"
        elif isinstance(item, float):
            if not math.isfinite(item):
                return path, f"{item!r} is not a JSON number"
        elif isinstance(item, msgspec.Raw):
            why = _raw_fault(bytes(item))
            if why is not None:
                return path, why
        elif isinstance(item, Mapping):
            for key, inner in item.items():
                if not isinstance(key, str):
                    return path, f"the key {key!r} is not a string"
                stack.append((inner, f"{path}.{key}"))
                stack.append((key, f"{path} key {key!a}"))
        elif isinstance(item, Sequence) and not isinstance(item, (bytes, bytearray)):
            stack.extend((inner, f"{path}[{index}]") for index, inner in enumerate(item))
        elif isinstance(item, msgspec.Struct):
            stack.extend((getattr(item, field), f"{path}.{field}") for field in item.__struct_fields__)
        elif item is not msgspec.UNSET:
            return path, f"JSON has no form for {kind_of(item)}"
        if len(path) > 4096:
            return name, "it is nested too deep"
    return None


def _raw_fault(data: bytes) -> str | None:
    """Say why ``data`` cannot stand inside a line as it is, or None. msgspec passes ``Raw`` on unread."""
    if b"\n" in data or b"\r" in data:
        return "raw JSON with a line break in it"
    try:
        data.decode("utf-8")
        msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return str(error)
    return None


@overload
def decode(data: bytes | str) -> Any: ...
@overload
def decode(data: bytes | str, type: type[T]) -> T: ...
def decode(data: bytes | str, type: Any = Any) -> Any:
    r"""Decode JSON, strictly: UTF-8, no NaN, no lone surrogates, no integers beyond 64 bits, bounded depth.

    Raises
    ------
    ValueError
        With the reason; ``msgspec.ValidationError`` and ``msgspec.DecodeError`` are of this kind, and deep nesting is made so.

    Examples
    --------
    >>> decode(b'{"a": [1, 2.50]}')
    {'a': [1, 2.5]}
    >>> decode(b"[" * 100_000)
    Traceback (most recent call last):
        ...
    ValueError: nested too deep
    """
    try:
        return msgspec.json.decode(data, type=type)
    except RecursionError:
        raise ValueError("nested too deep") from None


def decode_lenient(data: bytes | str) -> Any:
    r"""Decode JSON of a server, which may hold lone surrogate escapes; they stay in the strings, for :func:`mend_surrogates`.

    Examples
    --------
    >>> decode_lenient(b'"half \\ud83d"') == "half \ud83d"
    True
    """
    try:
        return decode(data)
    except ValueError:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        if r"\ud" not in text.lower():
            raise
        return json.loads(text)


def mend_surrogates(text: str) -> tuple[str, int]:
    r"""Join split surrogate pairs and replace each lone surrogate by U+FFFD.

    No server accepts a lone surrogate, so one that entered a history would be refused for ever.

    Returns
    -------
    tuple of (str, int)
        The text, the same object when there is nothing to do, and how many were replaced.

    Examples
    --------
    >>> mend_surrogates("a \ud83d\ude00 b \ud83d") == ("a 😀 b \ufffd", 1)
    True
    """
    if text.isascii() or not _LONE.search(text):
        return text, 0
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return _LONE.subn("\ufffd", joined)


def canonical(text: str) -> bytes:
    r"""Return JSON text in a canonical form, for comparison. Text that is not JSON stays unchanged.

    Key order, white space and escapes are ignored. ``1`` and ``1.0`` differ.

    Examples
    --------
    >>> canonical('{"b": 1, "a": "é"}') == canonical('{"a":"\u00e9","b":1}')
    True
    >>> canonical('{"b": 1}') == canonical('{"b": 1.0}')
    False
    """
    try:
        return encode(_sorted_keys(decode(text)))
    except (ValueError, EncodeError, RecursionError):
        return text.encode("utf-8", "surrogatepass")


def _sorted_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted_keys(value[key]) for key in sorted(value)}
    return [_sorted_keys(inner) for inner in value] if isinstance(value, list) else value


def compact(data: bytes) -> bytes:
    """Take the white space between the tokens out of JSON text; every token, key order and duplicate stays as written.

    Examples
    --------
    >>> compact(b'{ "n" : 1.10, "n": "a  b" }')
    b'{"n":1.10,"n":"a  b"}'
    """
    return msgspec.json.format(data, indent=-1)


def lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    r"""Split on ``\n`` only: yields (offset, line without its end). What follows the last ``\n`` is yielded when not empty.

    Examples
    --------
    >>> list(lines("a\u2028b\r\nc".encode()))
    [(0, b'a\xe2\x80\xa8b\r'), (7, b'c')]
    """
    start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        if end < 0:
            end = len(data)
        yield start, data[start:end]
        start = end + 1


def sha256(data: bytes) -> str:
    """SHA-256 as 64 lowercase hex digits.

    Examples
    --------
    >>> sha256(b"")[:16]
    'e3b0c44298fc1c14'
    """
    return hashlib.sha256(data).hexdigest()


crc32 = zlib_ng.crc32
"""CRC-32 (ISO-HDLC, zlib's): of bytes, or with a second argument continued from that value. The very function, for every line of
every log goes through it, and zlib-ng's takes a third of the time of the standard library's."""
