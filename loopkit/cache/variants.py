"""Variants: one thing changed on purpose in a request, so that its price can be measured on the same work.

A variant takes the messages of a request as raw JSON and gives other messages; what it does not change stays byte for byte.
Pure: the moment that a clock would show comes in from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from msgspec import Raw

from loopkit.encoding import decode, encode

__all__ = ["VARIANTS", "Change", "Variant", "live_system"]

Change: TypeAlias = Callable[[Sequence[Raw], str], list[Raw]]


class Variant(NamedTuple):
    """A named change."""

    name: str
    change: Change
    "Takes the messages and the moment (RFC 3339), gives the messages to send."


def _live_system(messages: Sequence[Raw], moment: str) -> list[Raw]:
    changed: list[Raw] = []
    for message in messages:
        members = decode(bytes(message), dict[str, Raw])
        if bytes(members.get("role", Raw(b""))) == b'"system"':
            text = decode(bytes(members["content"]), str)
            members["content"] = Raw(encode(f"The time is {moment}.\n\n{text}"))
            message = Raw(encode(members))
        changed.append(message)
    return changed


live_system = Variant("live_system", _live_system)
"""The system prompt is read again for each request and holds the time, to the microsecond: the commonest mistake."""

VARIANTS = {variant.name: variant for variant in (live_system,)}
