"""Plain-text display of a turn on standard output, while it streams. Control characters are replaced by a dot."""

from __future__ import annotations

import sys

from loopkit.contract.records import EpochEnd, ToolResult
from loopkit.loop.events import Stopped, ToolCalled, TurnEvent
from loopkit.reprs import shown
from loopkit.server.completion.deltas import TextDelta

__all__ = ["NEXT_STEPS", "show"]

WIDTH = 60
NEXT_STEPS = {
    "context_full": "ask again, or call loop.go_on() if tool results wait for a response; this opens the next epoch",
    "request_limit": "call loop.go_on() to continue",
    "malformed_call": "the arguments of a tool call were not JSON, so the response was not logged; ask again",
    "cut_off": "the token limit cut a tool call off, so the response was not logged; allow more tokens",
}


def show(event: TurnEvent) -> None:
    """Print one event of a turn: streamed text, one line per tool call, or the end of an epoch.

    At the end of the turn, print why it ended. If the model stopped by itself, print only a line break.
    """
    match event:
        case TextDelta():
            _write(shown(event.text, len(event.text)))
        case ToolCalled():
            _write(f"\n[{event.name} {_line(event.arguments)}")
        case ToolResult():
            _write(f" → {event.status}: {_line(event.content)}]\n")
        case EpochEnd():
            _write(f"\n[epoch ended: {event.reason}]\n")
        case Stopped():
            then = f"; {NEXT_STEPS[event.reason]}" if event.reason in NEXT_STEPS else ""
            _write("\n" if event.reason == "done" else f"\n[stopped: {event.reason}{then}]\n")
        case _:
            return


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _line(text: str) -> str:
    line = "".join(char if char.isprintable() else "·" for char in text[: WIDTH + 1])
    return line if len(text) <= WIDTH else line[: WIDTH - 1] + "…"
