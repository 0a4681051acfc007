"""Pages of blocks and tables, rendered as plain text or HTML with the same content.

Only this module of the package writes HTML. It cuts every text to a maximum length and escapes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from loopkit.reprs import escaped, shown

__all__ = ["Page", "PageBlock", "Table", "as_html", "as_text", "table_lines"]

CELL = 40
"Maximum length of a table cell, in characters."

_STYLE = 'style="white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.5"'


class PageBlock(NamedTuple):
    """A paragraph of a page: a heading and a text."""

    head: str
    text: str = ""
    folded: bool = False
    "True if HTML shows only the heading until the reader opens the block."


class Table(NamedTuple):
    """A table of short texts: the header and the rows."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


Page: TypeAlias = Iterable[PageBlock | Table]


def as_text(page: Page) -> str:
    """Return the page as plain text.

    Examples
    --------
    >>> print(as_text([PageBlock("you", "Hi."), PageBlock("note"), Table(["request", "lost"], [["1", "0"], ["2", "1,000"]])]))
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
    """Return one line of text for the header and each row, with aligned columns."""
    rows, right = _cells(table)
    widths = [max(map(len, column)) for column in zip(*rows)]
    padded = ((cell.rjust(wide) if end else cell.ljust(wide) for cell, wide, end in zip(row, widths, right)) for row in rows)
    return ["  ".join(row).rstrip() for row in padded]


def _cells(table: Table) -> tuple[list[list[str]], list[bool]]:
    """Return header and rows with their texts cut and cleaned, and for each column whether it is numeric."""
    rows = [[shown(cell.replace("\n", "·").replace("\t", "·"), CELL) for cell in row] for row in (table.header, *table.rows)]
    return rows, [all(not cell or cell[0] in "0123456789-" for cell in column[1:]) for column in zip(*rows)]


def as_html(page: Page) -> str:
    """Return the page as HTML, with every text escaped.

    Examples
    --------
    >>> as_html([PageBlock("<b>", "1 < 2")])
    '<div style="white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.5"><b>&lt;b&gt;:</b> 1 &lt; 2</div>'
    """
    return "".join(_table(part) if isinstance(part, Table) else _block(part) for part in page)


def _block(block: PageBlock) -> str:
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
