"""``LogExplorer``: browse the sessions, epochs and requests of logs, with a plot and the details of one request.

Only the rows of the current page become widgets, so the panel stays fast with large logs.
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
from loopkit.plot.request_chart import prefix_reuse
from loopkit.reprs import Card, counted
from loopkit.session.session import Session
from loopkit.widgets.base import Panel
from loopkit.widgets.log_tables import cells, epochs_of, requests_of, sessions_of
from loopkit.widgets.rendering import Page, PageBlock, Table, as_html, table_lines
from loopkit.widgets.request_details import conversation, loss

__all__ = ["LogExplorer"]


class LogExplorer(Panel):
    """A panel to browse logs: sessions, their epochs and requests, and why a request lost cached tokens.

    Parameters
    ----------
    home : str, Path, Session, an iterable of these, or Logs
        What to load, as for :func:`loopkit.load`, or logs that are loaded already.
    rows : int
        Rows per page.
    errors : "raise" or "report"
        ``"raise"`` stops at a damaged log; ``"report"`` lists it in ``logs.problems``, as for :func:`loopkit.load`.

    Attributes
    ----------
    logs : Logs
        The loaded logs.
    session, epoch, request
        The current selection; None for levels at which nothing is selected. Change it with :meth:`open`.
    page : int
        Number of the current page, from 1.

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
    LogExplorer: sessions 1, epochs 1, turns 2, requests 2, processed 75 of 125 prompt tokens, lost 0
    s, epoch 0: page 1 of 1, 2 rows
    request  turn  prompt  reused  processed  lost  cause
          1     1      45       0         45     0
          2     2      80      50         30     0
    request 2: epoch 0 of s
    added: model: Done.
    added: you: And now?
    response: model: Done.
    bytes: 76 appended to the 213 of the previous request
    """

    def __init__(self, home: Loadable | Logs, *, rows: int = 12, errors: Errors = "raise") -> None:
        super().__init__()
        if not isinstance(rows, int) or rows < 1:
            raise InvalidConfig("rows", f"expected a whole number of at least 1; got {rows!r}", "Pass 1 or more")
        self.home, self.rows, self.errors = home, rows, errors
        self.reload()

    def reload(self) -> None:
        """Load the logs again and show the list of sessions."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.logs = self.home if isinstance(self.home, Logs) else load(self.home, errors=self.errors)
        self._notes = [PageBlock("note", str(warning.message)) for warning in caught]
        if problems := len(self.logs.problems):
            self._notes.append(PageBlock("problems", f"{problems:,}; see logs.problems"))
        self._sessions = sessions_of(self.logs)
        self.open()

    def open(self, session: str | None = None, epoch: int | None = None, request: int | None = None) -> None:
        """Show all sessions, the epochs of a session, the requests of an epoch, or the details of a request.

        Parameters
        ----------
        session : str, optional
            Show the epochs of this session, or its requests if it has one epoch.
        epoch : int, optional
            Show the requests of this epoch.
        request : int, optional
            Show this request: the messages that it added, the response, and for a loss its cause and the bytes that differ.

        Raises
        ------
        InvalidConfig
            If the logs have no such session, epoch or request.
        """
        frame, chosen, page = self._sessions, list[PageBlock](), 1
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
                chosen, page = self._details(session, epoch, request), numbers.index(request) // self.rows + 1
        self.session, self.epoch, self.request = session, epoch, request
        self._frame, self._chosen = frame, chosen
        self.turn_to(page)

    def up(self) -> None:
        """Show the list above the current one: the epochs of the session if it has several, otherwise the sessions."""
        several = self.session is not None and self.epoch is not None and len(epochs_of(self.logs, self.session)) > 1
        self.open(self.session if several else None)

    def turn_to(self, page: int) -> None:
        """Show another page of the current list, or the nearest page that exists.

        Parameters
        ----------
        page : int
            Number of the page, from 1.
        """
        self.page = max(1, min(page, self.pages))
        if self._widgets:
            self._draw()
        self.paint()

    @property
    def pages(self) -> int:
        """Number of pages of the current list."""
        return max(1, -(-len(self._frame) // self.rows))

    def _details(self, session: str, epoch: int, request: int) -> list[PageBlock]:
        row = self.logs.sessions.set_index("session").loc[session]
        blocks = [PageBlock(f"request {request}", f"epoch {epoch} of {session}")]
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

    def _title(self) -> PageBlock:
        of = "sessions" if self.session is None else self.session if self.epoch is None else f"{self.session}, epoch {self.epoch}"
        return PageBlock(of, f"page {self.page:,} of {self.pages:,}, {counted(len(self._frame), 'row')}")

    def _table(self) -> Table:
        return Table([*self._frame.columns], cells(self._shown()))

    def _page(self) -> Page:
        return [*self._notes, self._title(), self._table(), *self._chosen]

    def _build(self) -> ipw.Widget:
        self._plotted = self._to_plot()
        png = self._picture(self._plotted)
        self._above, self._below = ipw.HTML(), ipw.HTML()
        previous = self._button("‹", lambda: self.turn_to(self.page - 1))
        following = self._button("›", lambda: self.turn_to(self.page + 1))
        bar = [self._button("Up", self.up), previous, following, self._button("Refresh", self.reload), self._above]
        # the first line of the table is the header; clicks on it are disabled
        self._lines = [self._button("", partial(self._open_row, place)) for place in range(-1, self.rows)]
        for line in self._lines:
            line.style.font_family, line.layout.margin = "monospace", "0"
        self._plot = ipw.Image(value=png, format="png", layout={"max_width": "100%", "object_fit": "contain"})
        self._table_box = ipw.VBox(self._lines, layout={"flex": "0 0 auto"})
        parts = [self._table_box, ipw.Box([self._plot], layout={"flex": "1 1 30em"})]
        beside = ipw.Box(parts, layout={"flex_flow": "row wrap", "align_items": "flex-start"})
        return ipw.VBox([ipw.HBox(bar), beside, self._below])

    def _open_row(self, place: int) -> None:
        """Open the session, epoch or request in row `place` of the page, from 0."""
        if place >= len(self._shown()):
            return  # the page changed before a second click arrived
        row = self._shown().iloc[place]
        if self.session is None:
            self.open(row["session"])
        elif self.epoch is None:
            self.open(self.session, int(row["epoch"]))
        else:
            self.open(self.session, self.epoch, int(row["request"]))

    def _draw(self) -> None:
        """Draw the plot again if the sessions of the page are not those that it shows."""
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
            line.description = text.ljust(wide).replace(" ", "\u00a0")  # buttons collapse spaces
            line.disabled = row is table.header
            line.button_style = "info" if row[0] == (f"{self.request:,}" if self.request is not None else None) else ""
        self._table_box.children = self._lines[: len(lines)]
        self._above.value = as_html([*self._notes, self._title()])
        self._below.value = as_html([*self._chosen, *self._failure()])


def _need(what: str, value: object, there: list[Any]) -> None:
    if value not in there:
        raise InvalidConfig(what, f"the logs have no {what} {value!r} here", "Choose one from the list")
