"""Panels for notebooks. Each is a plain object with methods, shown as ipywidgets or, without a front end, as text and HTML.

Each button calls one method of the panel, so a panel can also be used from code. All text from outside is escaped in HTML.
"""

from loopkit.widgets.chat_panel import ChatPanel
from loopkit.widgets.log_explorer import LogExplorer
from loopkit.widgets.replay_panel import Replay

__all__ = ["ChatPanel", "LogExplorer", "Replay"]


def __dir__() -> list[str]:
    return list(__all__)
