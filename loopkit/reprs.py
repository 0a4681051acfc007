"""Text and HTML reprs from one source, and escaping of text from outside.

A card has a title and a few facts (a name and a value each). It is shown as one line of at most 110 characters, or as a small
HTML table. In the line, numbers are never cut, and the number of omitted facts is shown. The table has no style sheet and no
random ids. Every text from outside passes through `shown` before it becomes part of a page.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Card", "counted", "escaped", "shown"]

WIDTH = 110
MOST, LEAST = 100, 20
"If a line is too long, each value is cut to the largest number of characters in this range at which the line fits."
LONGEST = 4000
"Maximum characters of one value in HTML."

# Characters that control a terminal or a browser, or cannot be sent: controls, direction marks, lone surrogates.
_UNSHOWABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(text: str, most: int = LONGEST) -> str:
    """Return a text for display: control characters become dots, and a long text is truncated.

    A truncated text ends with the number of omitted characters.

    Examples
    --------
    >>> shown(f"a{chr(27)}[31mb"), shown("word" * 100, 8)
    ('a·[31mb', 'wordword… [392 more characters]')
    """
    left = len(text) - most
    return _UNSHOWABLE.sub("·", text[:most]) + (f"… [{counted(left, 'more character')}]" if left > 0 else "")


def counted(count: int, one: str, more: str | None = None) -> str:
    """Return a count with a noun in the singular or plural. ``more`` is the plural if it is not ``one`` with an s.

    Examples
    --------
    >>> counted(1, "loss", "losses"), counted(0, "request"), counted(1200, "request")
    ('1 loss', '0 requests', '1,200 requests')
    """
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def escaped(text: str) -> str:
    """Escape a text for HTML. A notebook then shows exactly these characters, and no formula between dollar signs.

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
        Names of the facts to omit first if the line is too long. If that is not enough, facts are omitted from the end.

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
        """Return one line of at most 110 characters.

        Long texts are cut first. If the line is still too long, facts are left out and replaced by "… N more".

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
        """Return the title and the facts as an HTML table. Very long texts are truncated, and all texts are escaped."""
        title, *texts = (escaped(shown(text)) for text in (self.title, *(text for fact in self.facts for text in fact)))
        rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in zip(texts[::2], texts[1::2]))
        return f"<table><caption>{title}</caption>{rows}</table>"


def _line(title: str, facts: Sequence[tuple[str, str]]) -> str:
    line = title + (": " if facts else "") + ", ".join(f"{name} {value}" for name, value in facts)
    return "".join(char if char.isprintable() else "·" for char in line)


def _cut(text: str, most: int) -> str:
    """Return a text of at most ``most`` characters that ends with "…" if it was cut. Numbers are not cut in the middle.

    A text that begins with a digit is returned whole.
    """
    if len(text) <= most or text[:1].isdigit():
        return text
    return re.sub(r"[\d.,]+$", "", text[: most - 1]) + "…"
