r"""The kind of the first change between two JSON texts: a clock, a reordering, another number spelling, an edit.

Two JSON values are compared down to the first member that differs, and this member gives the kind. Later differences are ignored:
they may be consequences of the first, and a new comparison finds them once the first is fixed. The time is linear in the texts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Final, NamedTuple

from msgspec import Raw

from loopkit.cache.prefixes.volatile import find_volatile
from loopkit.contract.json_position import first_difference
from loopkit.encoding import decode

__all__ = ["KINDS", "Change", "in_items", "in_members", "in_text", "is_space"]

KINDS: Final = {
    "time": "a time of day, with or without a date, has changed",
    "date": "a date has changed",
    "timestamp": "a Unix timestamp has changed",
    "uuid": "a UUID has changed",
    "process_id": "a process id has changed",
    "temporary_path": "a temporary path has changed",
    "counter": "a counter has changed: the words beside the number or its member's name say what it counts",
    "number": "only a number has changed, and nothing marks it as a counter",
    "nonce": "a random id, request id or memory address has changed",
    "key_order": "an object's members are in another order, as after another serialiser or a set",
    "tool_order": "the tools are in another order",
    "item_order": "an array's items are in another order, such as `required` written from a set",
    "white_space": "only white space has changed",
    "number_form": "one number is spelled in two ways: 1.10 and 1.1, 1 and 1.0",
    "escapes": r"one string is escaped in two ways: \u00e9 and é, \/ and /",
    "content_form": "one text is a string on one side and a list of parts on the other",
    "reasoning": "the model's reasoning is on one side only",
    "dropped": "a message, tool or member of the first request is missing in the second",
    "added": "a message, tool or member of the second request is missing in the first",
    "edited": "another text: none of the other kinds",
}
"""Every kind of change, with its meaning."""

REASONING = {"reasoning", "reasoning_content", "reasoning_details", "thinking", "thinking_blocks"}
THINKING = {"thinking", "redacted_thinking", "reasoning"}

CLOCKS = {"time", "date", "timestamp"}
# Patterns that match too much in a single text. They are used only if both texts match at the first difference.
_PAIRED = {
    "time": re.compile(r"(?<![\d:])\d{1,2}:\d\d(?::\d\d)?(?![\d:])"),
    "nonce": re.compile(r"(?<![A-Za-z0-9])(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{5,64}(?![A-Za-z0-9])"),
}
_COUNTING = r"(?:turn|step|visit|seq|sequence|iteration|round|count|counter|request|attempt|call)s?"
_PAIRED["counter"] = re.compile(rf"(?i)\b{_COUNTING}\W{{1,3}}\d+|\d+ ?% (?:used|left|full)")
_WINDOW = 200
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*("?)', re.S)


class Change(NamedTuple):
    """The first change between two JSON texts."""

    kind: str
    "A key of `KINDS`."
    member: str
    "Path of the changed member, such as ``messages[3].content``."


def is_space(a: bytes, b: bytes) -> bool:
    """Return True if the first difference between two JSON texts is white space outside of strings.

    Examples
    --------
    >>> is_space(b'{"a": 1}', b'{"a":1}'), is_space(b'{"a":"x y"}', b'{"a":"xy"}')
    (True, False)
    """
    at = first_difference(a, b)
    if not any(text[at : at + 1] in (b" ", b"\t", b"\r", b"\n") for text in (a, b)):
        return False
    before = list(_STRING.finditer(a, 0, at))
    return not before or bool(before[-1][1])  # True if the string before the position is closed


def in_members(path: str, a: Sequence[tuple[str, bytes]], b: Sequence[tuple[str, bytes]]) -> Change:
    """Return the first change between two JSON objects at `path`. Each is a sequence of (name, JSON text of the value) pairs."""
    for (name, value), (other_name, other_value) in zip(a, b):
        if name == other_name:
            if value != other_value:
                return _in_value(_joined(path, name), value, other_value)
            continue
        names, other_names = dict(a), dict(b)
        if name in other_names and other_name in names:
            return Change("key_order", path or "body")
        if name not in other_names:
            return _missing("dropped", _joined(path, name), value)
        return _missing("added", _joined(path, other_name), other_value)
    if len(a) != len(b):
        longer, kind = (a, "dropped") if len(a) > len(b) else (b, "added")
        name, value = longer[min(len(a), len(b))]
        return _missing(kind, _joined(path, name), value)
    return Change("edited", path or "body")  # a member occurs twice, or its name is escaped in two ways


def in_items(path: str, a: Sequence[bytes], b: Sequence[bytes]) -> Change:
    """Return the first change between two JSON arrays at `path`. Each is a sequence with the JSON text of every item."""
    a, b = [item.strip() for item in a], [item.strip() for item in b]  # items after the first may have white space before them
    at = next((index for index, (ours, theirs) in enumerate(zip(a, b)) if ours != theirs), min(len(a), len(b)))
    place = f"{path}[{at}]"
    if at == len(a) or at == len(b):
        return _missing("added", place, b[at]) if at == len(a) else _missing("dropped", place, a[at])
    tools = path.rpartition(".")[2] == "tools"
    ours, theirs = ([_tool_name(item) if tools else item for item in items[at:]] for items in (a, b))
    if ours[0] != theirs[0]:
        kept, added = theirs[0] in ours, ours[0] in theirs
        if kept and added:
            return Change("tool_order" if tools else "item_order", path)
        if kept and _agree_next(ours, ours.index(theirs[0]), theirs, 0):
            return _missing("dropped", place, a[at])
        if added and _agree_next(theirs, theirs.index(ours[0]), ours, 0):
            return _missing("added", place, b[at])
    return _in_value(place, a[at], b[at])


def in_text(path: str, a: str, b: str) -> Change:
    """Return the first change between two decoded strings at `path`. If both are JSON, their values are compared.

    If they are equal, only their escapes in the JSON text differed.
    """
    if a == b:
        return Change("escapes", path)
    if a.lstrip()[:1] in ("{", "[") and b.lstrip()[:1] in ("{", "["):
        inner = _in_json(path, a.encode("utf-8", "surrogatepass"), b.encode("utf-8", "surrogatepass"))
        if inner is not None:
            return Change(inner.kind, path)
    return Change(_changed(a, b), path)


def _in_json(path: str, a: bytes, b: bytes) -> Change | None:
    """Compare two strings that contain JSON. Return None if either is not valid JSON."""
    try:
        decode(a), decode(b)
    except ValueError:
        return None
    return Change("white_space", path) if is_space(a, b) else _in_value(path, a.strip(), b.strip())


def _in_value(path: str, a: bytes, b: bytes) -> Change:
    a, b = a.strip(), b.strip()
    kinds = a[:1] + b[:1]
    try:
        if kinds == b"{{":
            ours, theirs = ([(name, bytes(raw)) for name, raw in decode(text, dict[str, Raw]).items()] for text in (a, b))
            found = in_members(path, ours, theirs)
            return Change("escapes", path) if ours == theirs and b"\\" in a + b else found
        if kinds == b"[[":
            return in_items(path, *([bytes(raw) for raw in decode(text, list[Raw])] for text in (a, b)))
        if kinds == b'""':
            text, other = decode(a, str), decode(b, str)
            if not (text and other) and _is_reasoning(path):
                return Change("reasoning", path)
            return in_text(path, text, other)
        if kinds in (b'"[', b'["'):
            return Change("content_form" if _text_of(a) == _text_of(b) else "edited", path)
        if b"null" in (a, b) and _is_reasoning(path):
            return Change("reasoning", path)
        if Decimal(a.decode()) == Decimal(b.decode()):
            return Change("number_form", path)
        kind = _changed(a.decode(), b.decode())
        counts = kind == "number" and re.fullmatch(_COUNTING, path.rpartition(".")[2], re.IGNORECASE)
        return Change("counter" if counts else kind, path)
    except (ValueError, InvalidOperation):  # not JSON, or not two numbers
        return Change("edited", path)


def _changed(a: str, b: str) -> str:
    """Return the kind of the first change between two plain texts: a key of `KINDS`."""
    at = first_difference(a, b)
    start = max(0, at - _WINDOW)
    a_near, b_near, at = a[start : at + _WINDOW], b[start : at + _WINDOW], at - start
    if (a_near[at : at + 1].isspace() or b_near[at : at + 1].isspace()) and (
        a_near[at:].lstrip()[:40] == b_near[at:].lstrip()[:40]
    ):
        return "white_space"
    kinds = [{span.kind for span in find_volatile(near) if span.start <= at <= span.end} for near in (a_near, b_near)]
    both = kinds[0] & kinds[1]
    if both:
        return next(kind for kind in KINDS if kind in both)
    if kinds[0] & CLOCKS and kinds[1] & CLOCKS:
        return "time"
    for kind, pattern in _PAIRED.items():
        if all(any(match.start() <= at < match.end() for match in pattern.finditer(near)) for near in (a_near, b_near)):
            return kind
    return "number" if _number(a, b, start + at) else _added_span(a_near, b_near, at) or "edited"


def _number(a: str, b: str, at: int) -> bool:
    """Return True if the texts differ only in one whole number, at the first difference `at`."""
    start = at
    while start and a[start - 1] in "0123456789":
        start -= 1
    if a[start - 1 : start] == ".":
        return False  # part of a version or a fraction
    digits = re.compile("[0-9]{1,18}")
    ours, theirs = digits.match(a, start), digits.match(b, start)
    if ours is None or theirs is None:
        return False
    return a[ours.end() :] == b[theirs.end() :]


def _added_span(a: str, b: str, at: int) -> str | None:
    """Return the kind of a volatile span if only one text has the span at `at`; otherwise None."""
    for text, other in ((a, b), (b, a)):
        for span in find_volatile(text):
            if span.start <= at + 3 and at < span.end:
                trim = " .,;:()[]\n"
                if text[span.end :].strip(trim)[:40] == other[at:].strip(trim)[:40]:
                    return span.kind
    return None


def _missing(kind: str, path: str, value: bytes) -> Change:
    is_thinking = False
    if value.lstrip()[:1] == b"{":
        is_thinking = any(b'"%s"' % name.encode() in value[:200] for name in THINKING) and _type_of(value) in THINKING
    return Change("reasoning" if is_thinking or _is_reasoning(path) else kind, path)


def _agree_next(a: Sequence[object], at: int, b: Sequence[object], other_at: int) -> bool:
    """Return True if the items after positions `at` and `other_at` are equal, or a sequence has no such item."""
    return at + 1 >= len(a) or other_at + 1 >= len(b) or a[at + 1] == b[other_at + 1]


def _is_reasoning(path: str) -> bool:
    return re.split(r"[.\[]", path)[-1] in REASONING


def _type_of(value: bytes) -> object:
    try:
        return decode(value, dict[str, object]).get("type")
    except ValueError:
        return None


def _tool_name(tool: bytes) -> object:
    """Return a tool's name, or the whole tool if it has none."""
    try:
        members = decode(tool, dict[str, object])
    except ValueError:
        return tool
    function = members.get("function")
    return (function.get("name") if isinstance(function, dict) else None) or members.get("name") or tool


def _text_of(content: bytes) -> object:
    value = decode(content)
    if isinstance(value, str):
        return value
    return "".join(str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in value)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
