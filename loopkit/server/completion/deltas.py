"""Deltas: what one event adds to a completion.

`Assembly` returns them, and a caller's ``on_delta`` is called with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Delta", "Progress", "ReasoningDelta", "TextDelta", "ToolCallDelta"]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the response's text, in whole characters."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the reasoning, in whole characters."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a tool call."""

    index: int
    "Position of the call in its message, from 0."
    name: str | None
    "The tool's name in the first delta of the call, else None."
    arguments: str
    "Text added to the arguments; may be empty."


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of llama.cpp in the prompt."""

    total: int
    "Tokens of the prompt."
    cached: int
    "Tokens taken from the cache."
    processed: int
    "Tokens done so far, cached ones included."
    ms: float
    "Milliseconds so far."


Delta: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta | Progress
