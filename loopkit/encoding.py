"""JSON encoding and decoding, lines, SHA-256 and CRC-32.

Requests and logs use the same form: compact UTF-8 JSON with members in their given order and as few escapes as possible. msgspec
writes it, so a value gives the same bytes with every Python version, platform and hash seed. The standard library's ``json`` is
used only here: some servers send escapes of lone surrogates, which msgspec cannot decode.
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
    "replace_surrogates",
    "sha256",
]

T = TypeVar("T")


def _plain(value: Any) -> Any:
    """Convert an instance of a subclass of str, int or float, such as a `SessionId`, to the base type."""
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"JSON cannot represent {kind_of(value)}")


_encoder = msgspec.json.Encoder(enc_hook=_plain)
_LONE = re.compile("[\ud800-\udfff]")


def encode(value: Any, name: str = "value") -> bytes:
    r"""Encode a value as compact UTF-8 JSON. Members keep their order.

    Parameters
    ----------
    value : Any
        None, bool, int, float, str, list, tuple, dict, ``msgspec.Struct`` or ``msgspec.Raw``.
    name : str
        Name of the value, for the error message.

    Returns
    -------
    bytes
        The JSON text, without a final newline.

    Raises
    ------
    EncodeError
        If a part of the value cannot be encoded: NaN, an infinity, a lone surrogate, an integer of more than 64 bits, invalid
        ``Raw``, or a type that is not listed above. The message names the member.

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
    """Encode a value that contains only strings, counts and booleans. The bytes are those of :func:`encode`, but it is faster.

    For these types, msgspec itself raises an error if JSON cannot represent a value. Only after such an error is the faulty
    member looked up.

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
    """Return the first part of a value that JSON cannot represent.

    Parameters
    ----------
    value : Any
        The value.
    name : str
        Name of the value. The returned path begins with it.

    Returns
    -------
    tuple of (str, str), or None
        The member's path, such as ``evidence.at[3]``, and the reason; None if the whole value can be encoded.

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
            return path, f"JSON cannot represent {kind_of(item)}"
        if len(path) > 4096:
            return name, "it is nested too deep"
    return None


def _raw_fault(data: bytes) -> str | None:
    """Return why the bytes of a ``Raw`` cannot be part of a line of JSON; None if they can. msgspec does not check them."""
    if b"\n" in data or b"\r" in data:
        return "raw JSON contains a line break"
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
    r"""Decode JSON strictly.

    Invalid UTF-8, NaN, lone surrogates, integers of more than 64 bits and very deep nesting are errors.

    Parameters
    ----------
    data : bytes or str
        JSON text.
    type : type, optional
        Type to decode to, such as a ``msgspec.Struct``. By default, the result has Python's types for JSON.

    Raises
    ------
    ValueError
        If the text is invalid, nested too deep, or not of the type. msgspec's own errors are subclasses of ``ValueError``.

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
    r"""Decode JSON from a server, which may contain escapes of lone surrogates.

    The lone surrogates are kept in the strings. Replace them with :func:`replace_surrogates`.

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


def replace_surrogates(text: str) -> tuple[str, int]:
    r"""Join split surrogate pairs and replace each lone surrogate by U+FFFD.

    Servers reject lone surrogates, so without this every later request of the conversation would fail.

    Returns
    -------
    tuple of (str, int)
        The new text, and the number of surrogates replaced by U+FFFD. Text without surrogates is returned as the same object.

    Examples
    --------
    >>> replace_surrogates("a \ud83d\ude00 b \ud83d") == ("a 😀 b \ufffd", 1)
    True
    """
    if text.isascii() or not _LONE.search(text):
        return text, 0
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return _LONE.subn("\ufffd", joined)


def canonical(text: str) -> bytes:
    r"""Return JSON text in a canonical form, as bytes, for comparison. Text that is not JSON is only encoded.

    Texts that differ only in key order, white space and escapes have the same canonical form. ``1`` and ``1.0`` have different
    ones.

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
    """Return a JSON text without the white space between its tokens. Tokens, key order and duplicate keys stay as written.

    Examples
    --------
    >>> compact(b'{ "n" : 1.10, "n": "a  b" }')
    b'{"n":1.10,"n":"a  b"}'
    """
    return msgspec.json.format(data, indent=-1)


def lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    r"""Yield the byte offset and the content of each line, without its ``\n``.

    Only ``\n`` ends a line. Bytes after the last ``\n`` are a line, too.

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
    """Return the SHA-256 of bytes as 64 lowercase hex digits.

    Examples
    --------
    >>> sha256(b"")[:16]
    'e3b0c44298fc1c14'
    """
    return hashlib.sha256(data).hexdigest()


crc32 = zlib_ng.crc32
"""Return the CRC-32 (ISO-HDLC, as in zlib) of bytes. A second argument is the CRC-32 of the bytes before them.

zlib-ng needs a third of the time of the standard library. There is no wrapper function, because the call would slow down every
line of a log.
"""
