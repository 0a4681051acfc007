"""Panels for a notebook: plain objects with methods, each with a thin skin of ipywidgets and a static form without them.

A button does what a method does, and nothing else. All text is escaped before it is shown. Nothing below knows of this room.
"""

from loopkit.widgets.chat import ChatPanel
from loopkit.widgets.explorer import LogExplorer
from loopkit.widgets.replay import Replay

__all__ = ["ChatPanel", "LogExplorer", "Replay"]


def __dir__() -> list[str]:
    return list(__all__)
