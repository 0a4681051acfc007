"""One source for an object's text and HTML repr.

A card is a title and a few facts. Its text is one line of at most 110 characters, in which no number is cut and no fact left out
without a word; its HTML a small table with everything escaped, no style sheet, no random ids. `shown` is what every text from
outside goes through before a page holds it. Knows nothing of the objects it shows.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Card", "counted", "escaped", "shown"]

WIDTH = 110
MOST, LEAST = 100, 20
"Characters of one text in a line that is too long: as many as there is room for."
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
    return _UNSHOWABLE.sub("·", text[:most]) + (f"… [{counted(left, 'more character')}]" if left > 0 else "")


def counted(count: int, one: str, more: str | None = None) -> str:
    """A number of things in words.

    Examples
    --------
    >>> counted(1, "loss", "losses"), counted(0, "request"), counted(1200, "request")
    ('1 loss', '0 requests', '1,200 requests')
    """
    return f"{count:,} {one if count == 1 else more or one + 's'}"


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
    spare : sequence of str
        Names of the facts that the line of text goes without first, where it is short of room; after them the last ones.

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
    spare: Sequence[str] = ()

    def whole(self) -> str:
        """Every fact on one line, however long; what `print` shows."""
        return _line(self.title, self.facts)

    def text(self) -> str:
        """One line of at most 110 characters: long names and texts are cut first; then facts are left out, and counted.

        Examples
        --------
        >>> Card("Logs", [("turns", "1,000,000"), ("model", "long-" * 30), ("lost", "68,000")]).text()[-24:]
        'ng-long-lo…, lost 68,000'
        >>> Card("Logs", [(f"fact {number}", "1,000,000") for number in range(9)]).text()[-38:]
        ' 1,000,000, fact 4 1,000,000, … 4 more'
        """
        line, facts, most = self.whole(), list(self.facts), MOST
        while len(line) > WIDTH and most > LEAST:
            most -= 1
            facts = [(name, _cut(value, most)) for name, value in self.facts]
            line = _line(_cut(self.title, max(most, 2 * LEAST)), facts)
        kept = [fact for name in self.spare for fact in facts if fact[0] == name]
        dropped = [*kept, *(fact for fact in reversed(facts) if fact[0] not in self.spare)]
        for left, fact in enumerate(dropped, 1):
            if len(line) <= WIDTH:
                break
            facts.remove(fact)
            line = _line(_cut(self.title, max(most, 2 * LEAST)), [*facts, ("…", f"{left} more")])
        return line

    def html(self) -> str:
        """The same facts as a table; every text is cut where it is very long, and escaped."""
        title, *texts = (escaped(shown(text)) for text in (self.title, *(text for fact in self.facts for text in fact)))
        rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in zip(texts[::2], texts[1::2]))
        return f"<table><caption>{title}</caption>{rows}</table>"


def _line(title: str, facts: Sequence[tuple[str, str]]) -> str:
    line = title + (": " if facts else "") + ", ".join(f"{name} {value}" for name, value in facts)
    return "".join(char if char.isprintable() else "·" for char in line)


def _cut(text: str, most: int) -> str:
    """A name or a text in so many characters; what begins with a number stays whole, and none is cut."""
    if len(text) <= most or text[:1].isdigit():
        return text
    return re.sub(r"[\d.,]+$", "", text[: most - 1]) + "…"
