"""Text and HTML reprs from one source, and escaping of text from outside.

A card is a title and a few facts. Its text is one line of at most 110 characters. Numbers are never cut, and omitted facts are
counted. Its HTML is a small table with escaped texts, without style sheet or random ids. Every text from outside passes through
`shown` before it is part of a page.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Card", "counted", "escaped", "shown"]

WIDTH = 110
MOST, LEAST = 100, 20
"Maximum characters of one text in a line that is too long; the value between them that fits is used."
LONGEST = 4000
"Maximum characters of one text in HTML."

# Characters that control a terminal or a browser, or cannot be sent: controls, direction marks, lone surrogates.
_UNSHOWABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(text: str, most: int = LONGEST) -> str:
    """Truncate a text, with the number of omitted characters, and replace each control character by a dot.

    Examples
    --------
    >>> shown(f"a{chr(27)}[31mb"), shown("word" * 100, 8)
    ('a·[31mb', 'wordword… [392 more characters]')
    """
    left = len(text) - most
    return _UNSHOWABLE.sub("·", text[:most]) + (f"… [{counted(left, 'more character')}]" if left > 0 else "")


def counted(count: int, one: str, more: str | None = None) -> str:
    """Return a count with its noun.

    Examples
    --------
    >>> counted(1, "loss", "losses"), counted(0, "request"), counted(1200, "request")
    ('1 loss', '0 requests', '1,200 requests')
    """
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def escaped(text: str) -> str:
    """Escape a text for HTML, so that a front end shows exactly these characters and no formula.

    Examples
    --------
    >>> escaped("<b> costs $5"), escaped("5 < 6")
    ('&lt;b&gt; costs <span>$</span>5', '5 &lt; 6')
    """
    return html.escape(text).replace("$", "<span>$</span>").replace("\\", "<span>\\</span>")


class Card(NamedTuple):
    """The content of an object's repr.

    Parameters
    ----------
    title : str
        Kind and name of the object.
    facts : sequence of (str, str)
        Name and value of each fact, the most important first.
    spare : sequence of str
        Names of the facts to omit first if the line is too long. After them, the last facts are omitted.

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
        """Return all facts on one line of any length, for `print`."""
        return _line(self.title, self.facts)

    def text(self) -> str:
        """Return one line of at most 110 characters. Long texts are cut first; then facts are omitted, and counted.

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
        """Return the facts as a table. Very long texts are truncated, and all texts are escaped."""
        title, *texts = (escaped(shown(text)) for text in (self.title, *(text for fact in self.facts for text in fact)))
        rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in zip(texts[::2], texts[1::2]))
        return f"<table><caption>{title}</caption>{rows}</table>"


def _line(title: str, facts: Sequence[tuple[str, str]]) -> str:
    line = title + (": " if facts else "") + ", ".join(f"{name} {value}" for name, value in facts)
    return "".join(char if char.isprintable() else "·" for char in line)


def _cut(text: str, most: int) -> str:
    """Truncate a text, unless it begins with a number; a number at its end is removed whole."""
    if len(text) <= most or text[:1].isdigit():
        return text
    return re.sub(r"[\d.,]+$", "", text[: most - 1]) + "…"
