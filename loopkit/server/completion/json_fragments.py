"""JSON objects that come in fragments: opened, merged, and mended where a server cut a character in two.

A value is text (a JSON string, decoded) or bytes (any other JSON value, as the server wrote it, so that numbers and the order of
members keep their form). A character outside the basic plane can be cut into two halves that lie in different fragments; the
halves are joined first, and what is still alone becomes U+FFFD and is counted. Pure: knows nothing of chat completions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

from msgspec import Raw

from loopkit.encoding import compact, decode, decode_lenient, encode, replace_surrogates

__all__ = ["Halves", "Members", "Reader", "Value", "join", "mend_escapes"]

T = TypeVar("T")
Value: TypeAlias = str | bytes

NULL = b"null"
_HALF = r"u[dD][89a-fA-F][0-9a-fA-F]{2}"
_PAIR = r"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(rf"\\(?:{_PAIR}|({_HALF})|.)", re.DOTALL)


def mend_escapes(text: str) -> tuple[str, int]:
    r"""Replace the lone surrogate escapes of a JSON text by the escape of U+FFFD; also gives how many there were.

    Examples
    --------
    >>> mend_escapes(r'"\ud83d\ude00 \ud83d \\ud83d"')
    ('"\\ud83d\\ude00 \\ufffd \\\\ud83d"', 1)
    """
    count = 0

    def mended(match: re.Match[str]) -> str:
        nonlocal count
        if match.group(1) is None:
            return match.group()
        count += 1
        return r"\ufffd"

    return _ESCAPE.sub(mended, text), count


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


class Reader:
    """Decodes a server's JSON, halves of characters included.

    msgspec refuses a lone surrogate anywhere in a text. Such a text is decoded twice: mended, for everything that is kept as
    bytes, and leniently, for the strings, whose halves may find each other in the next fragment; this one is called `loose`.
    """

    def __init__(self) -> None:
        self.replaced = 0
        "Lone surrogates inside values that are kept as bytes."

    def decode(self, text: str, type: type[T]) -> tuple[T, Any]:
        """Decode `text`; the second value is its loose form, None where it is the same.

        Raises
        ------
        ValueError
            When it is not JSON, or not of that type.
        """
        try:
            return decode(text, type), None
        except ValueError:
            mended, count = mend_escapes(text)
            if not count:
                raise
            return decode(mended, type), decode_lenient(text)

    def open(self, data: Raw, loose: Any, *, deeper: str = "") -> dict[str, Value]:
        """The members of an object; `deeper` names one that will be opened in its turn."""
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


class Halves:
    """Keeps the first half of a character back until the second comes, so that what is shown is always whole."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> str:
        """What can be shown now."""
        text = self._held + text
        self._held = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        return replace_surrogates(text[:-1] if self._held else text)[0]

    def flush(self) -> str:
        """What is left when no more comes."""
        held, self._held = self._held, ""
        return "\ufffd" if held else ""


class Members:
    """The members of one object, gathered from its fragments in the order in which they first came."""

    def __init__(self) -> None:
        self.values: dict[str, list[Value]] = {}

    def add(self, fragment: Mapping[str, Value]) -> None:
        for name, value in fragment.items():
            self.values.setdefault(name, []).append(value)

    def pop_text(self, name: str) -> tuple[str | None, int] | None:
        """Take a member out that is text or null: its text and how many characters were replaced; None where it is neither."""
        values = self.values.get(name)
        if values is None or not all(isinstance(value, str) or value == NULL for value in values):
            return None
        del self.values[name]
        texts = [value for value in values if isinstance(value, str)]
        return replace_surrogates("".join(texts)) if texts else (None, 0)


def join(name: str, values: list[Value]) -> tuple[bytes, int]:
    """Merge the fragments of one value: texts and arrays are joined, of anything else the last that is not null stands.

    Returns
    -------
    tuple of (bytes, int)
        JSON, and how many characters were replaced.

    Raises
    ------
    ValueError
        When a text or an array goes on as something else.

    Examples
    --------
    >>> join("note", ["a", b"null", "b"])
    (b'"ab"', 0)
    >>> join("parts", [b"[1.0]", b"[]", b"[2]"])
    (b'[1.0,2]', 0)
    >>> join("seen", [b"1", b"2"])
    (b'2', 0)
    """
    there = [value for value in values if value != NULL]
    if not there:
        return NULL, 0
    texts = [value for value in there if isinstance(value, str)]
    others = [compact(value) for value in there if isinstance(value, bytes)]
    if not others:
        text, replaced = replace_surrogates("".join(texts))
        return encode(text), replaced
    arrays = [value for value in others if value[:1] == b"["]
    if texts or 0 < len(arrays) < len(others):
        raise ValueError(f"{name} begins as one kind of value and goes on as another")
    if arrays:
        return b"[" + b",".join(inner for array in arrays if (inner := array[1:-1])) + b"]", 0
    return others[-1], 0
