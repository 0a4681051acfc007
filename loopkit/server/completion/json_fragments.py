"""JSON objects in fragments: decoding, merging, and repair of characters that a server cut in two.

A stream sends an object such as a message in fragments, each with some members or parts of them. This module represents the value
of a member in one of two ways. A JSON string is decoded to a str. Any other JSON value stays in bytes as the server wrote it, so
the spelling of numbers and the order of members are kept.

JSON writes a character such as an emoji as a pair of surrogates, and the two may arrive in different fragments. Fragments are
therefore joined first. Then a surrogate that has no partner is replaced by U+FFFD and counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

from msgspec import Raw

from loopkit.encoding import compact, decode, decode_lenient, encode, replace_surrogates

__all__ = ["FragmentDecoder", "Members", "TextBuffer", "Value", "join", "replace_surrogate_escapes"]

T = TypeVar("T")
Value: TypeAlias = str | bytes

NULL = b"null"
_SURROGATE = r"u[dD][89a-fA-F][0-9a-fA-F]{2}"
_PAIR = r"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(rf"\\(?:{_PAIR}|({_SURROGATE})|.)", re.DOTALL)


def replace_surrogate_escapes(text: str) -> tuple[str, int]:
    r"""Replace lone surrogate escapes in JSON by the escape of U+FFFD.

    Parameters
    ----------
    text : str
        JSON text.

    Returns
    -------
    tuple of (str, int)
        The JSON text without lone surrogates, and the number of replaced escapes.

    Examples
    --------
    >>> replace_surrogate_escapes(r'"\ud83d\ude00 \ud83d \\ud83d"')
    ('"\\ud83d\\ude00 \\ufffd \\\\ud83d"', 1)
    """
    count = 0

    def replacement(match: re.Match[str]) -> str:
        nonlocal count
        if match.group(1) is None:
            return match.group()
        count += 1
        return r"\ufffd"

    return _ESCAPE.sub(replacement, text), count


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield key
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


class FragmentDecoder:
    """Decoder of JSON that may contain lone surrogates.

    msgspec rejects text with a lone surrogate. Such text is decoded twice. The first decoding replaces each lone surrogate by
    U+FFFD; values that stay in bytes are taken from its result. The second is lenient and keeps the surrogates, so that the next
    fragment can complete the character; strings are taken from its result, which is called the *loose form*.
    """

    def __init__(self) -> None:
        self.replaced = 0
        "Number of surrogates replaced so far in values that stay in bytes."

    def decode(self, text: str, type: type[T]) -> tuple[T, Any]:
        """Decode JSON text strictly and, if it has lone surrogates, also leniently.

        Parameters
        ----------
        text : str
            JSON text.
        type : type
            Type of the decoded value.

        Returns
        -------
        tuple
            The decoded value, and its loose form as plain Python objects. The loose form is None if the text has no lone
            surrogate.

        Raises
        ------
        ValueError
            The text is not JSON, or its value is not of that type.
        """
        try:
            return decode(text, type), None
        except ValueError:
            repaired, count = replace_surrogate_escapes(text)
            if not count:
                raise
            return decode(repaired, type), decode_lenient(text)

    def open(self, data: Raw, loose: Any, *, deeper: str = "") -> dict[str, Value]:
        """Return the members of a JSON object, and count the replaced surrogates.

        Parameters
        ----------
        data : Raw
            The object as JSON.
        loose : Any
            The object's loose form, or None.
        deeper : str
            Name of a member that the caller opens separately. Its surrogates are not counted here.

        Returns
        -------
        dict of str to Value
            The members by name: strings decoded, all other values as JSON in bytes.
        """
        opened: dict[str, Value] = {}
        for name, raw in decode(bytes(data), dict[str, Raw]).items():
            value = bytes(raw)
            if value[:1] != b'"':
                opened[name] = value
                if loose is not None and name != deeper:
                    self.replaced += sum(replace_surrogates(text)[1] for text in _texts(loose.get(name)))
            else:
                opened[name] = decode(value, str) if loose is None else str(loose.get(name, decode(value, str)))
        return opened


class TextBuffer:
    """Buffer that joins fragments of text. If a fragment ends in half a character, the half waits for the next fragment."""

    def __init__(self) -> None:
        self._half = ""

    def push(self, text: str) -> str:
        """Add a fragment, and return the text that now consists of whole characters."""
        text = self._half + text
        self._half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        return replace_surrogates(text[:-1] if self._half else text)[0]

    def flush(self) -> str:
        """Return U+FFFD if half a character is left in the buffer, else an empty str. The buffer is then empty."""
        half, self._half = self._half, ""
        return "\ufffd" if half else ""


class Members:
    """Collector of one object's members. It keeps all fragments of each, and the order in which the members first occurred."""

    def __init__(self) -> None:
        self.values: dict[str, list[Value]] = {}

    def add(self, fragment: Mapping[str, Value]) -> None:
        """Append the values of a fragment to those already collected."""
        for name, value in fragment.items():
            self.values.setdefault(name, []).append(value)

    def pop_text(self, name: str) -> tuple[str | None, int] | None:
        """Remove a member and return its text (None for null) and the number of replaced surrogates.

        If the member is missing, or is neither text nor null, leave it unchanged and return None.
        """
        values = self.values.get(name)
        if values is None or not all(isinstance(value, str) or value == NULL for value in values):
            return None
        del self.values[name]
        texts = [value for value in values if isinstance(value, str)]
        return replace_surrogates("".join(texts)) if texts else (None, 0)


def join(name: str, values: list[Value]) -> tuple[bytes, int]:
    """Merge the fragments of one member. Strings and arrays are joined. For other types, the last value that is not null is used.

    Parameters
    ----------
    name : str
        Name of the member, for error messages.
    values : list of Value
        The fragments in order.

    Returns
    -------
    tuple of (bytes, int)
        The merged value as JSON, and the number of replaced surrogates.

    Raises
    ------
    ValueError
        The fragments have different types, for example a text and an array.

    Examples
    --------
    >>> join("note", ["a", b"null", "b"])
    (b'"ab"', 0)
    >>> join("parts", [b"[1.0]", b"[]", b"[2]"])
    (b'[1.0,2]', 0)
    >>> join("count", [b"1", b"2"])
    (b'2', 0)
    """
    present = [value for value in values if value != NULL]
    if not present:
        return NULL, 0
    texts = [value for value in present if isinstance(value, str)]
    others = [compact(value) for value in present if isinstance(value, bytes)]
    if not others:
        text, replaced = replace_surrogates("".join(texts))
        return encode(text), replaced
    arrays = [value for value in others if value[:1] == b"["]
    if texts or 0 < len(arrays) < len(others):
        raise ValueError(f"the fragments of {name} have different types")
    if arrays:
        return b"[" + b",".join(inner for array in arrays if (inner := array[1:-1])) + b"]", 0
    return others[-1], 0
