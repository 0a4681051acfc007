"""Editing members of a JSON object while every other byte stays: white space, member order, number spelling."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Raw

from loopkit.cache.prefixes.prompt_parts import NAME, read
from loopkit.encoding import decode, encode

__all__ = ["spliced"]


def spliced(text: bytes, changes: Mapping[str, bytes | None]) -> bytes:
    """Return a JSON object with members replaced, removed or added. The bytes of all other members stay as they are.

    Parameters
    ----------
    text : bytes
        The JSON text of the object.
    changes : mapping of str to bytes or None
        The new value of each member, as JSON text; None removes the member. Added members come first.

    Returns
    -------
    bytes
        The JSON text of the edited object.

    Raises
    ------
    ValueError
        If `text` is not a JSON object, or contains a member twice.

    Examples
    --------
    >>> spliced(b'{"n": 1.10, "model":"m", "seed":7}', {"model": b'"x"', "seed": None, "stream": b"true"})
    b'{"stream":true,"n": 1.10, "model":"x"}'
    >>> spliced(b"[]", {})
    Traceback (most recent call last):
        ...
    ValueError: not a JSON object with unique member names
    """
    found = read(text)
    if found is None:
        raise ValueError("not a JSON object with unique member names")
    values = decode(text, dict[str, Raw])
    opening = [] if found.opening is None else [found.opening]
    spans = sorted((*found.members, *found.unread, *opening), key=lambda span: span.start)
    close = text.rindex(b"}")
    ends = [*(span.start - 1 for span in spans[1:]), close]
    kept = [encode(name) + b":" + value for name, value in changes.items() if name not in values and value is not None]
    for span, end in zip(spans, ends, strict=False):
        value = changes.get(span.name, values[span.name])
        name = NAME.match(text, span.start)
        if value is not None and name is not None:
            kept.append(text[span.start : name.end()] + bytes(value) + text[name.end() + len(values[span.name]) : end])
    return text[: text.index(b"{") + 1] + b",".join(kept) + text[close:]
