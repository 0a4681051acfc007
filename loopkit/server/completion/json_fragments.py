"""JSON objects in fragments: decoding, merging, and repair of characters that a server cut in two.

A value is text (a decoded JSON string) or bytes (any other JSON value as the server wrote it, so that numbers and the order of
members are kept). The two surrogates of a character outside the basic plane may arrive in different fragments. They are joined
first. A surrogate that is still alone is replaced by U+FFFD and counted.
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
        JSON.

    Returns
    -------
    tuple of (str, int)
        The JSON, and the number of replaced escapes.

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
    """Decoder of JSON with lone surrogates.

    msgspec rejects text with a lone surrogate. Such text is decoded twice. Values that are kept as bytes come from the text with
    replaced surrogates. Strings come from a lenient decoding, called `loose`, so that the next fragment can complete a character.
    """

    def __init__(self) -> None:
        self.replaced = 0
        "Number of lone surrogates in values that are kept as bytes."

    def decode(self, text: str, type: type[T]) -> tuple[T, Any]:
        """Decode JSON.

        Parameters
        ----------
        text : str
            JSON.
        type : type
            Expected type.

        Returns
        -------
        tuple
            The value, and its loose form; None if the text has no lone surrogate.

        Raises
        ------
        ValueError
            The text is not JSON, or not of that type.
        """
        try:
            return decode(text, type), None
        except ValueError:
            repaired, count = replace_surrogate_escapes(text)
            if not count:
                raise
            return decode(repaired, type), decode_lenient(text)

    def open(self, data: Raw, loose: Any, *, deeper: str = "") -> dict[str, Value]:
        """Return the members of an object.

        Parameters
        ----------
        data : Raw
            The object.
        loose : Any
            Its loose form, or None.
        deeper : str
            Name of a member that the caller opens separately.

        Returns
        -------
        dict of str to Value
            The members.
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
    """Text in fragments, returned in whole characters: half a character waits for its other half."""

    def __init__(self) -> None:
        self._half = ""

    def push(self, text: str) -> str:
        """Add a fragment, and return the text that is complete."""
        text = self._half + text
        self._half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        return replace_surrogates(text[:-1] if self._half else text)[0]

    def flush(self) -> str:
        """Return U+FFFD if half a character is left at the end, else an empty text."""
        half, self._half = self._half, ""
        return "\ufffd" if half else ""


class Members:
    """The members of one object, collected from its fragments, in the order of their first occurrence."""

    def __init__(self) -> None:
        self.values: dict[str, list[Value]] = {}

    def add(self, fragment: Mapping[str, Value]) -> None:
        """Add the members of a fragment."""
        for name, value in fragment.items():
            self.values.setdefault(name, []).append(value)

    def pop_text(self, name: str) -> tuple[str | None, int] | None:
        """Remove a member and return its text (or None for null) and the number of replaced characters.

        Return None, and keep the member, if it is missing or neither text nor null.
        """
        values = self.values.get(name)
        if values is None or not all(isinstance(value, str) or value == NULL for value in values):
            return None
        del self.values[name]
        texts = [value for value in values if isinstance(value, str)]
        return replace_surrogates("".join(texts)) if texts else (None, 0)


def join(name: str, values: list[Value]) -> tuple[bytes, int]:
    """Merge the fragments of one value. Texts and arrays are joined; of other values, the last one that is not null is used.

    Parameters
    ----------
    name : str
        Name of the member, for errors.
    values : list of Value
        The fragments.

    Returns
    -------
    tuple of (bytes, int)
        JSON, and the number of replaced characters.

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
