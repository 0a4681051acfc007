"""The first difference between two requests: its byte, its member, both sides, and the kind of change.

Bodies are compared in prompt order (see :mod:`loopkit.cache.prefixes.prompt_parts`): first the members, then the messages.
Members that no chat template reads are compared only if the rest has no difference. The time is linear in the bodies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from loopkit.cache.prefixes.change_kinds import Change, in_items, in_members, in_text, is_space
from loopkit.cache.prefixes.prompt_parts import NAME, Body, Prompt, Span, body_of, read
from loopkit.contract.json_position import first_difference, path_at
from loopkit.contract.request import Request
from loopkit.reprs import Card

__all__ = ["Divergence", "Side", "divergence"]

CONTEXT = 40
"Number of characters that are shown before and after the first difference."


class Side(NamedTuple):
    """The text of one of the two bodies around the first difference."""

    offset: int
    "Offset of the first differing byte in this body."
    before: str
    "Up to 40 characters before the difference."
    changed: str
    "The first 40 characters of the text that differs; empty if the text exists only in the other body."
    after: str
    "The characters after ``changed``. Both together have at most 40 characters."


@dataclass(frozen=True, slots=True, repr=False)
class Divergence:
    """Result of `divergence`: the first difference between two requests. Its ``str`` is a small diff."""

    culprit: str
    "The kind of change, such as ``time``: a key of ``loopkit.cache.prefixes.change_kinds.KINDS``."
    member: str
    "Path of the differing member, such as ``messages[3].content`` or ``tools[1].function.description``."
    in_prompt: bool
    "False if no chat template reads the member, such as the temperature or the slot. Then the prompt is unchanged."
    a: Side
    "The text in the first request."
    b: Side
    "The text in the second request."

    @property
    def offset(self) -> int:
        """Offset of the first differing byte in the body of the first request."""
        return self.a.offset

    def _card(self) -> Card:
        facts = [("a", f"[{self.a.changed}]"), ("b", f"[{self.b.changed}]"), ("byte", str(self.offset))]
        facts += [("in prompt", "yes" if self.in_prompt else "no")]
        facts += [(f"{name} in context", _marked(side)) for name, side in (("a", self.a), ("b", self.b))]
        return Card(f"Divergence {self.culprit} in {self.member}", facts)

    def __str__(self) -> str:
        lines = (f"{sign} {_marked(side)!r}" for sign, side in (("-", self.a), ("+", self.b)))
        return "\n".join([f"{self.member}, byte {self.offset}: {self.culprit}", *lines])

    def __repr__(self) -> str:
        return self._card().text()

    def _repr_html_(self) -> str:
        return self._card().html()


def divergence(a: Request | Prompt | bytes, b: Request | Prompt | bytes) -> Divergence | None:
    """Find the first difference between two requests.

    Parameters
    ----------
    a, b : Request, Prompt or bytes
        The earlier request and the later one. Bytes are taken as a request body.

    Returns
    -------
    Divergence or None
        The first difference. None if the bodies have no difference except that one has additional messages at its end.

    Raises
    ------
    InvalidConfig
        If a prompt consists of token ids or block hashes.

    Examples
    --------
    >>> first = b'{"messages":[{"role":"system","content":"It is 07:31:05."},{"role":"user","content":"Hi"}]}'
    >>> found = divergence(first, first.replace(b"31:05", b"32:06"))
    >>> print(found)
    messages[0].content, byte 51: time
    - ':[{"role":"system","content":"It is 07:3[1:05]."},{"role":"user","content":"Hi"}]}'
    + ':[{"role":"system","content":"It is 07:3[2:06]."},{"role":"user","content":"Hi"}]}'
    >>> divergence(first, first[:-2] + b',{"role":"assistant","content":"Ho"}]}') is None
    True
    """
    ours, theirs = body_of(a), body_of(b)
    one, other = read(ours), read(theirs)
    if one is None or other is None:
        return _of_texts(ours, theirs)
    name = one.opening.name if one.opening else ""
    for in_prompt, grows, spans, others in (
        (True, False, _head(one), _head(other)),
        (True, True, one.messages, other.messages),
        (False, False, one.unread, other.unread),
    ):
        texts, other_texts = _texts(ours, spans), _texts(theirs, others)
        least = min(len(texts), len(other_texts))
        at = next((at for at in range(least) if texts[at] != other_texts[at]), least)
        if at == len(texts) == len(other_texts) or (grows and at == least):
            continue
        place, other_place = _place(spans, at), _place(others, at)
        if at < least and is_space(texts[at], other_texts[at]):
            same = first_difference(texts[at], other_texts[at])
            spaced = texts[at][same : same + 1].isspace()
            body, start = (ours, place.start) if spaced else (theirs, other_place.start)
            found = Change("white_space", path_at(body, start + same))
        elif grows:
            found = in_items(name, texts, other_texts)
        else:
            found = in_members("", _values(spans, texts), _values(others, other_texts))
        return _made(found, (ours, place), (theirs, other_place), in_prompt=in_prompt)
    return None


def _of_texts(a: bytes, b: bytes) -> Divergence | None:
    """Return the first difference of two bodies as plain texts, because one of them cannot be split into members."""
    if first_difference(a, b) == min(len(a), len(b)):
        return None
    found = in_text("body", a.decode("utf-8", "replace"), b.decode("utf-8", "replace"))
    return _made(found, (a, Span("", 0, len(a))), (b, Span("", 0, len(b))), in_prompt=True)


def _head(body: Body) -> list[Span]:
    return body.members if body.opening is None else [*body.members, body.opening]


def _texts(body: bytes, spans: list[Span]) -> list[bytes]:
    return [body[start:stop] for _, start, stop in spans]


def _values(spans: list[Span], texts: list[bytes]) -> list[tuple[str, bytes]]:
    names = (NAME.match(text) for text in texts)
    return [(span.name, text[match.end() if match else 0 :]) for span, text, match in zip(spans, texts, names)]


def _place(spans: list[Span], at: int) -> Span:
    """Return the span at index `at`, or an empty span after the last one if there are not so many."""
    if at < len(spans):
        return spans[at]
    end = spans[-1].stop if spans else 1
    return Span("", end, end)


def _made(found: Change, a: tuple[bytes, Span], b: tuple[bytes, Span], *, in_prompt: bool) -> Divergence:
    text, other = (body[span.start : span.stop] for body, span in (a, b))
    same = first_difference(text, other)
    text, other = text[same:], other[same:]
    alike = first_difference(text[::-1], other[::-1])
    sides = [
        _side(body, span.start + same, span.start + same + len(rest) - alike) for (body, span), rest in ((a, text), (b, other))
    ]
    return Divergence(found.kind, found.member, in_prompt, *sides)


def _side(body: bytes, start: int, stop: int) -> Side:
    """Return the text around a difference. UTF-8 characters are not cut in half."""
    offset = start
    while start and _is_continuation(body, start):
        start -= 1
    while _is_continuation(body, stop):
        stop += 1
    reach = 4 * CONTEXT  # a UTF-8 character has at most four bytes
    before = body[max(0, start - reach - 4) : start].decode("utf-8", "replace")[-CONTEXT:]
    behind = body[start : start + reach + 4].decode("utf-8", "replace")[:CONTEXT]
    changed = body[start : min(stop, start + reach + 4)].decode("utf-8", "replace")[:CONTEXT]
    return Side(offset, before, changed, behind[len(changed) :])


def _is_continuation(body: bytes, at: int) -> bool:
    """Return True if the byte at offset `at` continues a UTF-8 character."""
    return at < len(body) and body[at] & 0xC0 == 0x80


def _marked(side: Side) -> str:
    return f"{side.before}[{side.changed}]{side.after}"
