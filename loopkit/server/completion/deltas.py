"""Deltas: what one event adds to a completion.

`Assembly` creates deltas from the events of a stream. `Server.complete` calls its argument ``on_delta`` with each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Delta", "Progress", "ReasoningDelta", "TextDelta", "ToolCallDelta"]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the response's text. It never ends in the middle of a character."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the model's reasoning. It never ends in the middle of a character."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a tool call."""

    index: int
    "Position of the call in its message, from 0."
    name: str | None
    "Name of the tool in the first delta of a call; None in later ones."
    arguments: str
    "Text to append to the call's arguments; may be empty."


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of llama.cpp while it processes the prompt."""

    total: int
    "Number of tokens in the prompt."
    cached: int
    "Number of tokens taken from the cache."
    processed: int
    "Number of tokens processed so far, including the cached ones."
    ms: float
    "Milliseconds since the server began to process the prompt."


Delta: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta | Progress
