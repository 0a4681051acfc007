"""``LogExplorer``: the sessions, epochs and requests of logs, page by page, a plot beside them, and one request in full.

A page holds the rows that it shows and no others, however large the logs. Knows nothing of HTML, or of what a log line says.
"""

from __future__ import annotations

import io
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import ipywidgets as ipw
import pandas as pd
from matplotlib.figure import Figure

from loopkit.errors import InvalidConfig
from loopkit.ids import SessionId
from loopkit.logs.collection import Logs
from loopkit.logs.loading import Loadable, load
from loopkit.logs.problems import Errors
from loopkit.plot.reuse import prefix_reuse
from loopkit.reprs import Card, counted
from loopkit.session.session import Session
from loopkit.widgets.chosen import conversation, loss
from loopkit.widgets.page import Block, Page, Table, as_html, table_lines
from loopkit.widgets.panel import Panel
from loopkit.widgets.rows import cells, epochs_of, requests_of, sessions_of

__all__ = ["LogExplorer"]


class LogExplorer(Panel):
    """Logs in a cell: sessions, epochs and requests, what each request added, and why it lost its cache.

    Parameters
    ----------
    home : str, Path, Session, an iterable of these, or Logs
        What to load; see :func:`loopkit.load`. Logs are shown as they were loaded.
    rows : int
        How many rows a page holds.
    errors : "raise" or "report"
        What a damaged log does; see :func:`loopkit.load`. What is reported stands in ``logs.problems``.

    Attributes
    ----------
    logs : Logs
        What was loaded.
    session, epoch, request
        What is open, or None; see :meth:`open`.
    page : int
        The page that is shown, from 1.

    Examples
    --------
    >>> from loopkit.loop.opening import start
    >>> from loopkit.server.opening import serve
    >>> import tempfile
    >>> home = tempfile.mkdtemp()
    >>> with serve("tiny") as server, start(server, system="Be brief.", home=home, id="s", memory="") as loop:
    ...     turns = [loop.ask("Hello."), loop.ask("And now?")]
    Done.
    Done.
    >>> explorer = LogExplorer(home)
    >>> explorer.open("s", 0, 2)
    >>> print(explorer)
    LogExplorer: sessions 1, epochs 1, turns 2, requests 2, read 75 of 125 prompt tokens, lost 0
    s, epoch 0: page 1 of 1, 2 rows
    request  turn  prompt  reused  read  lost  cause
          1     1      45       0    45     0
          2     2      80      50    30     0
    request 2: epoch 0 of s
    added: model: Done.
    added: you: And now?
    answered: model: Done.
    bytes: they extend the 213 of the request before by 76
    """

    def __init__(self, home: Loadable | Logs, *, rows: int = 12, errors: Errors = "raise") -> None:
        super().__init__()
        if not isinstance(rows, int) or rows < 1:
            raise InvalidConfig("rows", f"{rows!r} is not a number of rows", "Give 1 or more")
        self.home, self.rows, self.errors = home, rows, errors
        self.reload()

    def reload(self) -> None:
        """Read the logs again, and show all sessions."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self.logs = self.home if isinstance(self.home, Logs) else load(self.home, errors=self.errors)
        self._notes = [Block("note", str(warning.message)) for warning in said]
        if problems := len(self.logs.problems):
            self._notes.append(Block("problems", f"{problems:,}, in logs.problems"))
        self._sessions = sessions_of(self.logs)
        self.open()

    def open(self, session: str | None = None, epoch: int | None = None, request: int | None = None) -> None:
        """Show all sessions, the epochs of one, the requests of one of these (or of the only one), or one request in full.

        Of a request it is shown what it added, what was answered, and where a loss stands its cause and the differing bytes.

        Raises
        ------
        InvalidConfig
            When the logs have no such session, epoch or request.
        """
        frame, chosen, page = self._sessions, list[Block](), 1
        if session is not None:
            frame = epochs_of(self.logs, session)
            if epoch is None and len(frame) == 1:
                epoch = int(frame["epoch"].iloc[0])
            _need("session", session, [session] if len(frame) else [])
        if session is not None and epoch is not None:
            _need("epoch", epoch, frame["epoch"].tolist())
            frame = requests_of(self.logs, session, epoch)
            if request is not None:
                numbers = frame["request"].tolist()
                _need("request", request, numbers)
                chosen, page = self._about(session, epoch, request), numbers.index(request) // self.rows + 1
        self.session, self.epoch, self.request = session, epoch, request
        self._frame, self._chosen = frame, chosen
        self.turn_to(page)

    def up(self) -> None:
        """Show what stands above: of requests the epochs where there are several, else the sessions."""
        several = self.session is not None and self.epoch is not None and len(epochs_of(self.logs, self.session)) > 1
        self.open(self.session if several else None)

    def turn_to(self, page: int) -> None:
        """Show another page; the nearest where there is none of that number."""
        self.page = max(1, min(page, self.pages))
        if self._skin:
            self._draw()
        self.paint()

    @property
    def pages(self) -> int:
        """How many there are of what is shown."""
        return max(1, -(-len(self._frame) // self.rows))

    def _about(self, session: str, epoch: int, request: int) -> list[Block]:
        row = self.logs.sessions.set_index("session").loc[session]
        blocks = [Block(f"request {request}", f"epoch {epoch} of {session}")]
        losses = self.logs.cache_loss
        of = losses[(losses["session"] == session) & (losses["epoch"] == epoch) & (losses["request"] == request)]
        blocks += [block for found in of.to_dict("records") for block in loss(found)]
        if row["source"] == "loopkit":
            directory = Path(row["path"])
            blocks += conversation(Session.read(directory.parent.parent, SessionId(directory.name)), epoch, request)
        return blocks

    def _shown(self) -> pd.DataFrame:
        return self._frame[(self.page - 1) * self.rows : self.page * self.rows]

    def _card(self) -> Card:
        return self.logs._card()._replace(title="LogExplorer")

    def _title(self) -> Block:
        of = "sessions" if self.session is None else self.session if self.epoch is None else f"{self.session}, epoch {self.epoch}"
        return Block(of, f"page {self.page:,} of {self.pages:,}, {counted(len(self._frame), 'row')}")

    def _table(self) -> Table:
        return Table([*self._frame.columns], cells(self._shown()))

    def _page(self) -> Page:
        return [*self._notes, self._title(), self._table(), *self._chosen]

    def _dress(self) -> ipw.Widget:
        self._plotted = self._to_plot()
        png = self._picture(self._plotted)
        self._above, self._below = ipw.HTML(), ipw.HTML()
        back, on = self._button("‹", lambda: self.turn_to(self.page - 1)), self._button("›", lambda: self.turn_to(self.page + 1))
        bar = [self._button("Up", self.up), back, on, self._button("Load again", self.reload), self._above]
        self._lines = [self._button("", partial(self._pick, place)) for place in range(-1, self.rows)]  # the heading first
        for line in self._lines:
            line.style.font_family, line.layout.margin = "monospace", "0"
        self._plot = ipw.Image(value=png, format="png", layout={"max_width": "100%", "object_fit": "contain"})
        self._table_box = ipw.VBox(self._lines, layout={"flex": "0 0 auto"})
        parts = [self._table_box, ipw.Box([self._plot], layout={"flex": "1 1 30em"})]
        beside = ipw.Box(parts, layout={"flex_flow": "row wrap", "align_items": "flex-start"})
        return ipw.VBox([ipw.HBox(bar), beside, self._below])

    def _pick(self, place: int) -> None:
        """What the button of a row does."""
        if place >= len(self._shown()):
            return  # it was clicked twice, and the page has changed between
        row = self._shown().iloc[place]
        if self.session is None:
            self.open(row["session"])
        elif self.epoch is None:
            self.open(self.session, int(row["epoch"]))
        else:
            self.open(self.session, self.epoch, int(row["request"]))

    def _draw(self) -> None:
        """Draw the sessions of the page anew, where they are others than those that are drawn."""
        sessions = self._to_plot()
        if sessions != self._plotted:
            self._plot.value, self._plotted = self._picture(sessions), sessions

    def _to_plot(self) -> list[str]:
        return [self.session] if self.session is not None else self._shown()["session"].tolist()

    def _picture(self, sessions: list[str]) -> bytes:
        logs, png = self.logs.where(session=sessions), io.BytesIO()
        if len(logs.usage):
            figure = Figure(figsize=(8, 4), layout="constrained")
            prefix_reuse(logs, figure.subplots())
            figure.savefig(png, format="png", dpi=90)
        return png.getvalue()

    def _paint(self) -> None:
        table = self._table()
        lines = table_lines(table)
        wide = max(map(len, lines))
        for line, text, row in zip(self._lines, lines, [table.header, *table.rows]):
            line.description = text.ljust(wide).replace(" ", "\u00a0")  # a button shows several blanks as one
            line.disabled = row is table.header
            line.button_style = "info" if row[0] == (f"{self.request:,}" if self.request is not None else None) else ""
        self._table_box.children = self._lines[: len(lines)]
        self._above.value = as_html([*self._notes, self._title()])
        self._below.value = as_html([*self._chosen, *self._failure()])


def _need(what: str, value: object, there: list[Any]) -> None:
    if value not in there:
        raise InvalidConfig(what, f"the logs have no {what} {value!r} there", "Choose one of those that are listed")
