"""What tests read of artists, and requests to draw."""

from __future__ import annotations

import io
import random

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loopkit.cache import Prompt

HOSTILE = "$\\frac{$ <b>\n" + chr(0x202E) + "x"
"Broken mathtext, which would not be drawn as such; markup, a line break, and a sign that turns the writing round."


def drawn(ax: Axes) -> int:
    """Draw for real; warnings are errors. Returns the size of the picture."""
    figure = ax.figure
    assert isinstance(figure, Figure)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=40)
    return len(out.getvalue())


def legend(ax: Axes) -> list[str]:
    found = ax.get_legend()
    assert found is not None
    return [text.get_text() for text in found.get_texts()]


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def conversations(requests: int, sessions: int, *, name: str = "s", edits: bool = True) -> list[Prompt]:
    """Conversations under one system prompt, by turns; a few have something edited that was said before."""
    chance, rows, made = random.Random(3), dict[str, list[dict[str, str]]](), list[Prompt]()
    for number in range(requests):
        session = f"{name}{number % sessions}"
        row = rows.setdefault(session, [{"role": "system", "content": "Be brief."}, {"role": "user", "content": session}])
        row += [{"role": "assistant", "content": "yes " * chance.randint(1, 9)}, {"role": "user", "content": f"and {number}?"}]
        if edits and len(row) > 6 and chance.random() < 0.05:
            row[2] = {"role": "assistant", "content": f"edited {number}"}
        made.append(Prompt(messages=list(row), session=session))
    return made
