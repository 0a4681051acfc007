r"""What made two JSON texts part: the kinds of change that cost a cache by accident, told apart from an edit.

Looks at one pair of values that should have been the same, goes down to the first member that differs, and names what happened to
it. Only that member decides; what differs behind it is a consequence, or comes up once this is mended. Pure, and linear in the
texts. Knows nothing of requests or of tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Final, NamedTuple

from msgspec import Raw

from loopkit.cache.prefixes.volatile import find_volatile
from loopkit.contract.request import first_difference
from loopkit.encoding import decode

__all__ = ["KINDS", "Found", "in_items", "in_members", "in_text", "is_space"]

KINDS: Final = {
    "time": "a time of day, or a date with one, moved on",
    "date": "a date moved on",
    "timestamp": "seconds since 1970 moved on",
    "uuid": "another uuid",
    "process_id": "another process id",
    "temporary_path": "another temporary path",
    "counter": "a number that counts, by the words beside it or its member's name: of turns, of visits, of tokens left",
    "number": "another number, all else being the same: nothing says that it counts",
    "nonce": "another random word, request id or address",
    "key_order": "an object's members in another order: built from a dict or a set, or sorted by a serialiser",
    "tool_order": "the tools in another order",
    "item_order": "another array's items in another order, such as `required` written out of a set",
    "white_space": "white space alone, between tokens or in a text",
    "number_form": "one number written in two ways: 1.10 and 1.1, 1 and 1.0",
    "escapes": r"one string written in two ways: \u00e9 and é, \/ and /",
    "content_form": "one text as a string and as a list of parts",
    "reasoning": "the model's reasoning stands on one side only",
    "dropped": "a message, tool or member of the first is not in the second",
    "added": "a message, tool or member of the second is not in the first",
    "edited": "other words: none of these",
}
"""Every kind of culprit, and what it means."""

REASONING = {"reasoning", "reasoning_content", "reasoning_details", "thinking", "thinking_blocks"}
THINKING = {"thinking", "redacted_thinking", "reasoning"}

CLOCKS = {"time", "date", "timestamp"}
# What a text alone does not give away, two texts do: these count only where both sides have one at the place where they part.
_PAIRED = {
    "time": re.compile(r"(?<![\d:])\d{1,2}:\d\d(?::\d\d)?(?![\d:])"),
    "nonce": re.compile(r"(?<![A-Za-z0-9])(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{5,64}(?![A-Za-z0-9])"),
}
_COUNTING = r"(?:turn|step|visit|seq|sequence|iteration|round|count|counter|request|attempt|call)s?"
_PAIRED["counter"] = re.compile(rf"(?i)\b{_COUNTING}\W{{1,3}}\d+|\d+ ?% (?:used|left|full)")
_WINDOW = 200
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*("?)', re.S)


class Found(NamedTuple):
    """A culprit, and the member that it is in."""

    kind: str
    member: str


def is_space(a: bytes, b: bytes) -> bool:
    """Whether two JSON texts part at white space between their tokens.

    Examples
    --------
    >>> is_space(b'{"a": 1}', b'{"a":1}'), is_space(b'{"a":"x y"}', b'{"a":"xy"}')
    (True, False)
    """
    at = first_difference(a, b)
    if not any(text[at : at + 1] in (b" ", b"\t", b"\r", b"\n") for text in (a, b)):
        return False
    before = list(_STRING.finditer(a, 0, at))
    return not before or bool(before[-1][1])  # the last string before it is closed


def in_members(path: str, a: Sequence[tuple[str, bytes]], b: Sequence[tuple[str, bytes]]) -> Found:
    """Name the first difference of two objects, given as names and values in their order."""
    for (name, value), (other_name, other_value) in zip(a, b):
        if name == other_name:
            if value != other_value:
                return _in_value(_joined(path, name), value, other_value)
            continue
        names, other_names = dict(a), dict(b)
        if name in other_names and other_name in names:
            return Found("key_order", path or "body")
        if name not in other_names:
            return _missing("dropped", _joined(path, name), value)
        return _missing("added", _joined(path, other_name), other_value)
    if len(a) != len(b):
        longer, kind = (a, "dropped") if len(a) > len(b) else (b, "added")
        name, value = longer[min(len(a), len(b))]
        return _missing(kind, _joined(path, name), value)
    return Found("edited", path or "body")  # a member said twice, or a name written in two ways


def in_items(path: str, a: Sequence[bytes], b: Sequence[bytes]) -> Found:
    """Name the first difference of two arrays."""
    a, b = [item.strip() for item in a], [item.strip() for item in b]  # the first of an array has no space before it
    at = next((index for index, (ours, theirs) in enumerate(zip(a, b)) if ours != theirs), min(len(a), len(b)))
    place = f"{path}[{at}]"
    if at == len(a) or at == len(b):
        return _missing("added", place, b[at]) if at == len(a) else _missing("dropped", place, a[at])
    tools = path.rpartition(".")[2] == "tools"
    ours, theirs = ([_tool_name(item) if tools else item for item in items[at:]] for items in (a, b))
    if ours[0] != theirs[0]:
        kept, came = theirs[0] in ours, ours[0] in theirs
        if kept and came:
            return Found("tool_order" if tools else "item_order", path)
        if kept and _go_on(ours, ours.index(theirs[0]), theirs, 0):
            return _missing("dropped", place, a[at])
        if came and _go_on(theirs, theirs.index(ours[0]), ours, 0):
            return _missing("added", place, b[at])
    return _in_value(place, a[at], b[at])


def in_text(path: str, a: str, b: str) -> Found:
    """Name the first difference of two strings."""
    if a == b:
        return Found("escapes", path)
    if a.lstrip()[:1] in ("{", "[") and b.lstrip()[:1] in ("{", "["):
        inner = _in_json(path, a.encode("utf-8", "surrogatepass"), b.encode("utf-8", "surrogatepass"))
        if inner is not None:
            return Found(inner.kind, path)
    return Found(_changed(a, b), path)


def _in_json(path: str, a: bytes, b: bytes) -> Found | None:
    """As for a value, of JSON that stands inside a string; None where it is none."""
    try:
        decode(a), decode(b)
    except ValueError:
        return None
    return Found("white_space", path) if is_space(a, b) else _in_value(path, a.strip(), b.strip())


def _in_value(path: str, a: bytes, b: bytes) -> Found:
    a, b = a.strip(), b.strip()
    kinds = a[:1] + b[:1]
    try:
        if kinds == b"{{":
            ours, theirs = ([(name, bytes(raw)) for name, raw in decode(text, dict[str, Raw]).items()] for text in (a, b))
            found = in_members(path, ours, theirs)
            return Found("escapes", path) if ours == theirs and b"\\" in a + b else found
        if kinds == b"[[":
            return in_items(path, *([bytes(raw) for raw in decode(text, list[Raw])] for text in (a, b)))
        if kinds == b'""':
            text, other = decode(a, str), decode(b, str)
            if not (text and other) and _is_reasoning(path):
                return Found("reasoning", path)
            return in_text(path, text, other)
        if kinds in (b'"[', b'["'):
            return Found("content_form" if _text_of(a) == _text_of(b) else "edited", path)
        if b"null" in (a, b) and _is_reasoning(path):
            return Found("reasoning", path)
        if Decimal(a.decode()) == Decimal(b.decode()):
            return Found("number_form", path)
        kind = _changed(a.decode(), b.decode())
        counts = kind == "number" and re.fullmatch(_COUNTING, path.rpartition(".")[2], re.IGNORECASE)
        return Found("counter" if counts else kind, path)
    except (ValueError, InvalidOperation):  # not JSON, or not two numbers
        return Found("edited", path)


def _changed(a: str, b: str) -> str:
    """What became of a text that says something else now."""
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
    return "number" if _number(a, b, start + at) else _came(a_near, b_near, at) or "edited"


def _number(a: str, b: str, at: int) -> bool:
    """Whether nothing changed but a whole number."""
    start = at
    while start and a[start - 1] in "0123456789":
        start -= 1
    if a[start - 1 : start] == ".":
        return False  # the end of a version or of a fraction
    digits = re.compile("[0-9]{1,18}")
    ours, theirs = digits.match(a, start), digits.match(b, start)
    if ours is None or theirs is None:
        return False
    return a[ours.end() :] == b[theirs.end() :]


def _came(a: str, b: str, at: int) -> str | None:
    """The kind of a span that one side has where the other goes on."""
    for text, other in ((a, b), (b, a)):
        for span in find_volatile(text):
            if span.start <= at + 3 and at < span.end:
                trim = " .,;:()[]\n"
                if text[span.end :].strip(trim)[:40] == other[at:].strip(trim)[:40]:
                    return span.kind
    return None


def _missing(kind: str, path: str, value: bytes) -> Found:
    is_thinking = False
    if value.lstrip()[:1] == b"{":
        is_thinking = any(b'"%s"' % name.encode() in value[:200] for name in THINKING) and _type_of(value) in THINKING
    return Found("reasoning" if is_thinking or _is_reasoning(path) else kind, path)


def _go_on(a: Sequence[object], at: int, b: Sequence[object], other_at: int) -> bool:
    """Whether two sequences that meet again agree on the next item too, as far as there is one."""
    return at + 1 >= len(a) or other_at + 1 >= len(b) or a[at + 1] == b[other_at + 1]


def _is_reasoning(path: str) -> bool:
    return re.split(r"[.\[]", path)[-1] in REASONING


def _type_of(value: bytes) -> object:
    try:
        return decode(value, dict[str, object]).get("type")
    except ValueError:
        return None


def _tool_name(tool: bytes) -> object:
    """What tells a tool from others: its name, or where it has none, all of it."""
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
