"""What a panel shows, as data, and its two forms: plain text and HTML, with the same words.

The only place in this room where HTML is written: every text from outside is cut to a length that a page can hold and escaped, so
that nothing but text can come of it. No style sheet, no scripts, no ids. Knows nothing of sessions or widgets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from loopkit.reprs import escaped, shown

__all__ = ["Block", "Page", "Table", "as_html", "as_text", "table_lines"]

CELL = 40
"Characters shown of one cell of a table."

_STYLE = 'style="white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.5"'


class Block(NamedTuple):
    """A text with a heading."""

    head: str
    text: str = ""
    folded: bool = False
    "Whether only the heading is seen until somebody opens it; plain text has no folds."


class Table(NamedTuple):
    """Rows of short texts under one heading each."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


Page: TypeAlias = Iterable[Block | Table]


def as_text(page: Page) -> str:
    """The page as plain text.

    Examples
    --------
    >>> print(as_text([Block("you", "Hi."), Block("note"), Table(["request", "lost"], [["1", "0"], ["2", "1,000"]])]))
    you: Hi.
    note
    request   lost
          1      0
          2  1,000
    """
    lines: list[str] = []
    for part in page:
        if isinstance(part, Table):
            lines += table_lines(part)
        else:
            head, text = shown(part.head), shown(part.text)
            lines += (
                [f"{head}:", *(f"  {line}" for line in text.split("\n"))]
                if "\n" in text
                else [": ".join(filter(None, (head, text)))]
            )
    return "\n".join(lines)


def table_lines(table: Table) -> list[str]:
    """The header and each row as one line, in columns."""
    rows, right = _cells(table)
    widths = [max(map(len, column)) for column in zip(*rows)]
    padded = ((cell.rjust(wide) if end else cell.ljust(wide) for cell, wide, end in zip(row, widths, right)) for row in rows)
    return ["  ".join(row).rstrip() for row in padded]


def _cells(table: Table) -> tuple[list[list[str]], list[bool]]:
    """The header and the rows as they are shown, and which columns are numbers and stand to the right."""
    rows = [[shown(cell.replace("\n", "·").replace("\t", "·"), CELL) for cell in row] for row in (table.header, *table.rows)]
    return rows, [all(not cell or cell[0] in "0123456789-" for cell in column[1:]) for column in zip(*rows)]


def as_html(page: Page) -> str:
    """The page as HTML, every text escaped.

    Examples
    --------
    >>> as_html([Block("<b>", "1 < 2")])
    '<div style="white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.5"><b>&lt;b&gt;:</b> 1 &lt; 2</div>'
    """
    return "".join(_table(part) if isinstance(part, Table) else _block(part) for part in page)


def _block(block: Block) -> str:
    head, text = escaped(shown(block.head)), escaped(shown(block.text))
    if block.folded:
        return f"<details {_STYLE}><summary>{head}</summary>{text}</details>"
    head = f"<b>{head}{':' if text else ''}</b> " if head else ""
    return f"<div {_STYLE}>{head}{text}</div>"


def _table(table: Table) -> str:
    (header, *rows), right = _cells(table)
    inside = "".join([_row("th", header, right), *(_row("td", row, right) for row in rows)])
    return f'<table style="white-space:pre;line-height:1.5">{inside}</table>'


def _row(tag: str, cells: Sequence[str], right: Sequence[bool]) -> str:
    sides = [f'style="padding:0 0.6em;text-align:{"right" if end else "left"}"' for end in right]
    return f"<tr>{''.join(f'<{tag} {side}>{escaped(cell)}</{tag}>' for cell, side in zip(cells, sides))}</tr>"
