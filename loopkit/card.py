"""One source for an object's text and HTML repr.

A card is a title and a few facts. Its text is one line of at most 110 characters; its HTML a small table with everything escaped,
no style sheet, no random ids. Knows nothing of the objects it shows.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Card"]

WIDTH = 110


class Card(NamedTuple):
    """What a cell shows of an object.

    Parameters
    ----------
    title : str
        The kind of object, and its name.
    facts : sequence of (str, str)
        Name and value of each fact, the most important first.

    Examples
    --------
    >>> card = Card("Session demo", [("epoch", "0"), ("requests", "8")])
    >>> card.text()
    'Session demo: epoch 0, requests 8'
    >>> card.html()
    '<table><caption>Session demo</caption><tr><th>epoch</th><td>0</td></tr><tr><th>requests</th><td>8</td></tr></table>'
    """

    title: str
    facts: Sequence[tuple[str, str]]

    def text(self) -> str:
        """One line of at most 110 characters; what does not fit is cut with an ellipsis."""
        line = self.title + (": " if self.facts else "") + ", ".join(f"{name} {value}" for name, value in self.facts)
        line = "".join(char if char.isprintable() else "·" for char in line)
        return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"

    def html(self) -> str:
        """The same facts as a table; every text is escaped."""
        rows = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in self.facts)
        return f"<table><caption>{html.escape(self.title)}</caption>{rows}</table>"
