"""One source for an object's text and HTML repr.

A card is a title and a few facts. Its text is one line of at most 110 characters; its HTML a small table with everything escaped,
no style sheet, no random ids. `shown` is what every text from outside goes through before a page holds it. Knows nothing of the
objects it shows.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Card", "escaped", "shown"]

WIDTH = 110
LONGEST = 4000
"Characters shown of one text."

# What a terminal or a browser would obey, or could not be sent: controls, marks that turn the direction, lone surrogates.
_UNSHOWABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(text: str, most: int = LONGEST) -> str:
    """Cut a text, saying how much was left out, and put a dot for each character that is no text.

    Examples
    --------
    >>> shown(f"a{chr(27)}[31mb"), shown("word" * 100, 8)
    ('a·[31mb', 'wordword… [392 more characters]')
    """
    left = len(text) - most
    return _UNSHOWABLE.sub("·", text[:most]) + (f"… [{left:,} more character{'s' if left > 1 else ''}]" if left > 0 else "")


def escaped(text: str) -> str:
    """A text as HTML that shows just these characters. A front end must not take a part of it for a formula, either.

    Examples
    --------
    >>> escaped("<b> costs $5"), escaped("5 < 6")
    ('&lt;b&gt; costs <span>$</span>5', '5 &lt; 6')
    """
    return html.escape(text).replace("$", "<span>$</span>").replace("\\", "<span>\\</span>")


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
        """The same facts as a table; every text is cut where it is very long, and escaped."""
        title, *texts = (escaped(shown(text)) for text in (self.title, *(text for fact in self.facts for text in fact)))
        rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in zip(texts[::2], texts[1::2]))
        return f"<table><caption>{title}</caption>{rows}</table>"
