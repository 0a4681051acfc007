"""A turn as it streams, as plain text on standard output: in a cell, a terminal or headless alike.

Text from the model is printed, never displayed as HTML. Knows only events.
"""

from __future__ import annotations

import sys

from loopkit.loop.events import Stopped, TurnEvent
from loopkit.server.stream import TextDelta

__all__ = ["show"]


def show(event: TurnEvent) -> None:
    """Print the text of a turn as it comes, and end the line when the turn ends."""
    match event:
        case TextDelta():
            sys.stdout.write(event.text)
            sys.stdout.flush()
        case Stopped():
            sys.stdout.write("\n")
            sys.stdout.flush()
        case _:
            return
