"""A turn as it streams, as plain text on standard output: in a cell, a terminal or headless alike.

Text from outside is printed, never displayed as HTML; what a terminal would obey in it is shown as a dot. Knows only events.
"""

from __future__ import annotations

import sys

from loopkit.contract.records import EpochEnd, ToolResult
from loopkit.loop.events import Stopped, ToolCalled, TurnEvent
from loopkit.reprs import shown
from loopkit.server.completion.assembly import TextDelta

__all__ = ["GO_ON", "show"]

WIDTH = 60
GO_ON = {
    "context_full": "the next epoch opens when you ask (again), or with loop.go_on() where tool results wait for an answer",
    "request_limit": "loop.go_on() goes on",
    "malformed_call": "the arguments of a tool call were not JSON, so nothing of that answer was logged: ask again",
    "cut_off": "a tool call was cut off by the token limit, so nothing of that answer was logged: allow more tokens",
}


def show(event: TurnEvent) -> None:
    """Print the text of a turn as it comes, a line for each tool call, and why it ended where that is not of itself."""
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
            then = f"; {GO_ON[event.reason]}" if event.reason in GO_ON else ""
            _write("\n" if event.reason == "done" else f"\n[stopped: {event.reason}{then}]\n")
        case _:
            return


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _line(text: str) -> str:
    line = "".join(char if char.isprintable() else "·" for char in text[: WIDTH + 1])
    return line if len(text) <= WIDTH else line[: WIDTH - 1] + "…"
