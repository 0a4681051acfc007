"""Results of tools as text, and the cap on their length."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from loopkit.encoding import encode, replace_surrogates
from loopkit.errors import kind_of

__all__ = ["Capped", "as_text", "cap"]


class Capped(NamedTuple):
    """A text of limited length, and whether it was cut."""

    text: str
    truncated: bool


def cap(text: str, limit_bytes: int = 16384) -> Capped:
    r"""Cut a text to a number of UTF-8 bytes, at a character boundary, and append a notice.

    Parameters
    ----------
    text : str
        Text without lone surrogates.
    limit_bytes : int
        Maximum bytes of the text. The notice is not counted.

    Returns
    -------
    Capped
        The text, and whether it was cut. A text that fits is unchanged.

    Examples
    --------
    >>> cap("héllo", 6)
    Capped(text='héllo', truncated=False)
    >>> cap("héllo", 2)
    Capped(text='h\n[Cut: the first 1 of 6 bytes are shown.]', truncated=True)
    """
    if len(text) * 4 <= limit_bytes:
        return Capped(text, truncated=False)
    data = text.encode("utf-8")
    if len(data) <= limit_bytes:
        return Capped(text, truncated=False)
    end = limit_bytes
    while end and data[end] & 0xC0 == 0x80:  # a byte inside a character
        end -= 1
    notice = f"\n[Cut: the first {end:,} of {len(data):,} bytes are shown.]"
    return Capped(data[:end].decode("utf-8") + notice, truncated=True)


def as_text(value: Any) -> str:
    """Return the result of a tool as text.

    A string stays as it is. None, booleans, mappings, lists, tuples, sets, dataclasses and pydantic models become JSON, with
    members in their order and sets sorted. Everything else becomes ``str(value)``.

    Parameters
    ----------
    value : Any
        Result of the tool.

    Returns
    -------
    str
        The text. If JSON has no form for a part, a last line says which parts were written as text.

    Raises
    ------
    TypeError
        If the value is a coroutine or a generator, or contains bytes.
    ValueError
        If two keys of a mapping are equal as text.

    Examples
    --------
    >>> as_text({"city": "Lima", "people": {11, 10}}), as_text(None), as_text(2.5)
    ('{"city":"Lima","people":[10,11]}', 'null', '2.5')
    >>> print(as_text({"score": float("nan")}))
    {"score":"nan"}
    [Written as text, since JSON cannot hold it: result.score]
    >>> as_text(b"GIF89a")
    Traceback (most recent call last):
        ...
    TypeError: result is bytes, which are not text: decode or describe them in the tool
    """
    if isinstance(value, str):
        return str.__str__(value)
    if inspect.iscoroutine(value) or inspect.isgenerator(value):
        value.close()
        raise TypeError(f"result is {kind_of(value)}: make the tool an async def, or return a list")
    if not (value is None or isinstance(value, _JSON) or _is_dataclass(value)):
        return str(value)
    notes: list[str] = []
    text = encode(_plain(value, "result", notes), "result").decode("utf-8")
    if not notes:
        return text
    more = f" and {len(notes) - 3} more" if len(notes) > 3 else ""
    return f"{text}\n[Written as text, since JSON cannot hold it: {', '.join(notes[:3])}{more}]"


_JSON = (bool, Mapping, list, tuple, set, frozenset, BaseModel, bytes, bytearray, memoryview)


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _plain(value: Any, path: str, notes: list[str]) -> Any:
    """Convert a value to JSON types. Append the path of each part that JSON cannot represent to ``notes``."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        text, replaced = replace_surrogates(str.__str__(value))
        if replaced:
            notes.append(f"{path} (lone surrogates)")
        return text
    if isinstance(value, int | float):
        fits = math.isfinite(value) if isinstance(value, float) else -(1 << 63) <= value < 1 << 64
        if fits:
            return float(value) if isinstance(value, float) else int(value)
        notes.append(path)
        return repr(value)
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{path} is bytes, which are not text: decode or describe them in the tool")
    if isinstance(value, BaseModel):
        return _plain(value.model_dump(mode="json"), path, notes)
    if _is_dataclass(value):
        return _plain({field.name: getattr(value, field.name) for field in dataclasses.fields(value)}, path, notes)
    if isinstance(value, Mapping):
        members: dict[str, Any] = {}
        for key, inner in value.items():
            name = _plain(as_text(key), f"{path}, a key", notes)
            if name in members:
                raise ValueError(f"{path} has two keys that are both {name!a} as text")
            members[name] = _plain(inner, f"{path}.{name}", notes)
        return members
    if isinstance(value, list | tuple):
        return [_plain(inner, f"{path}[{index}]", notes) for index, inner in enumerate(value)]
    if isinstance(value, set | frozenset):
        return sorted((_plain(inner, f"{path}[]", notes) for inner in value), key=encode)
    return _plain(str(value), path, notes)
