"""``LogExplorer``: the sessions, epochs and requests of logs, page by page, a plot beside them, and one request in full.

A page holds the rows that it shows and no others, however large the logs. Knows nothing of HTML, or of what a log line says.
"""

from __future__ import annotations

import io
import warnings
from functools import partial
from pathlib import Path

import ipywidgets as ipw
from matplotlib.figure import Figure

from loopkit.card import Card
from loopkit.errors import InvalidConfig
from loopkit.ids import SessionId
from loopkit.logs.load import Loadable, Logs, load
from loopkit.plot.reuse import prefix_reuse
from loopkit.session.session import Session
from loopkit.widgets.chosen import conversation, loss
from loopkit.widgets.page import Block, Page, Table, as_html, table_lines
from loopkit.widgets.panel import Panel
from loopkit.widgets.rows import COLUMNS, cells, epochs_of, requests_of, sessions_of

__all__ = ["LogExplorer"]


class LogExplorer(Panel):
    """Logs in a cell: sessions, epochs and requests, what each request added, and why it lost its cache.

    Parameters
    ----------
    home : str, Path, Session, or an iterable of these
        What to load; see :func:`loopkit.load`.
    rows : int
        How many rows a page holds.

    Attributes
    ----------
    logs : Logs
        What was loaded.
    session, epoch, request
        What is open, or None; see :meth:`open` and :meth:`choose`.
    page : int
        The page that is shown, from 1.

    Examples
    --------
    >>> from loopkit.loop.start import start
    >>> from loopkit.server.client import serve
    >>> import tempfile
    >>> home = tempfile.mkdtemp()
    >>> with serve("tiny") as server, start(server, system="Be brief.", home=home, id="s", memory="") as loop:
    ...     turns = [loop.ask("Hello."), loop.ask("And now?")]
    Done.
    Done.
    >>> explorer = LogExplorer(home)
    >>> explorer.choose("s", 0, 2)
    >>> print(explorer)
    LogExplorer: sessions 1, epochs 1, turns 2, requests 2, read 75 of 125 prompt tokens, lost 0
    session s, epoch 0: page 1 of 1, 2 rows
    request  turn  prompt  reused  read  lost  cause
          1     1      45       0    45     0
          2     2      80      50    30     0
    request 2: epoch 0 of session s
    added: model: Done.
    added: you: And now?
    answered: model: Done.
    bytes: they extend the 213 of the request before by 76
    """

    def __init__(self, home: Loadable, *, rows: int = 12) -> None:
        super().__init__()
        if not isinstance(rows, int) or rows < 1:
            raise InvalidConfig("rows", f"{rows!r} is not a number of rows", "Give 1 or more")
        self.home, self.rows = home, rows
        self.reload()

    def reload(self) -> None:
        """Read the logs again, and show all sessions."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self.logs: Logs = load(self.home)
        self._notes = [Block("note", str(warning.message)) for warning in said]
        self._sessions = sessions_of(self.logs)
        self.open()

    def open(self, session: str | None = None, epoch: int | None = None) -> None:
        """Show the sessions, or the epochs of one, or the requests of one of these; of a session with one epoch its requests.

        Raises
        ------
        InvalidConfig
            When the logs have no such session or epoch.
        """
        frame = self._sessions
        if session is not None:
            frame = epochs_of(self.logs, session)
            if frame.empty:
                raise InvalidConfig("session", f"the logs have no session {session!r}", "Choose one of those that are listed")
            numbers = frame["epoch"].tolist()
            epoch = numbers[0] if epoch is None and len(numbers) == 1 else epoch
            if epoch is not None and epoch not in numbers:
                raise InvalidConfig("epoch", f"session {session!r} has no epoch {epoch!r}", f"It has {numbers}")
            frame = frame if epoch is None else requests_of(self.logs, session, epoch)
        self.session, self.epoch = session, epoch
        self.request: int | None = None
        self._frame, self._chosen = frame, list[Block]()
        self.turn_to(1)

    def up(self) -> None:
        """Show what stands above: of requests the epochs where there are several, else the sessions."""
        several = self.session is not None and self.epoch is not None and len(epochs_of(self.logs, self.session)) > 1
        self.open(self.session if several else None)

    def turn_to(self, page: int) -> None:
        """Show another page; the nearest where there is none of that number."""
        self.page = max(1, min(page, self.pages))
        self.paint()

    @property
    def pages(self) -> int:
        """How many there are of what is shown."""
        return max(1, -(-len(self._frame) // self.rows))

    def choose(self, session: str, epoch: int, request: int) -> None:
        """Show one request in full: what it added, what was answered, and where a loss stands its cause and the differing bytes.

        Raises
        ------
        InvalidConfig
            When the logs have no such request.
        """
        if (self.session, self.epoch) != (session, epoch):
            self.open(session, epoch)
        numbers = self._frame["request"].tolist()
        if request not in numbers:
            raise InvalidConfig(
                "request", f"epoch {epoch} of session {session!r} has no request {request!r}", f"It has {len(numbers)}"
            )
        self.request = request
        self._chosen = self._about(session, epoch, request)
        self.turn_to(numbers.index(request) // self.rows + 1)

    def _about(self, session: str, epoch: int, request: int) -> list[Block]:
        row = self.logs.sessions.set_index("session").loc[session]
        blocks = [
            Block(f"request {request}", f"epoch {epoch} of {'replay' if row['source'] == 'replay' else 'session'} {session}")
        ]
        losses = self.logs.cache_loss
        of = losses[(losses["session"] == session) & (losses["epoch"] == epoch) & (losses["request"] == request)]
        blocks += [block for found in of.to_dict("records") for block in loss(found)]
        if row["source"] == "loopkit":
            directory = Path(row["path"])
            blocks += conversation(Session.read(directory.parent.parent, SessionId(directory.name)), epoch, request)
        return blocks

    def _card(self) -> Card:
        return Card("LogExplorer", self.logs._card().facts)

    def _title(self) -> Block:
        names = ("session", self.session), ("epoch", self.epoch)
        of = ", ".join(f"{name} {value}" for name, value in names if value is not None) or "sessions"
        return Block(of, f"page {self.page:,} of {self.pages:,}, {len(self._frame):,} rows")

    def _table(self) -> Table:
        first = (self.page - 1) * self.rows
        return Table([COLUMNS.get(name, name) for name in self._frame.columns], cells(self._frame[first : first + self.rows]))

    def _page(self) -> Page:
        return [*self._notes, self._title(), self._table(), *self._chosen]

    # the skin

    def _dress(self) -> ipw.Widget:
        self._above, self._below = ipw.HTML(), ipw.HTML()
        bar = [
            self._button("Up", self.up),
            self._button("‹", lambda: self.turn_to(self.page - 1)),
            self._button("›", lambda: self.turn_to(self.page + 1)),
            self._button("Load again", self.reload),
        ]
        style, layout = ipw.ButtonStyle(font_family="monospace"), ipw.Layout(width="auto", margin="0")
        self._lines = [self._button("", partial(self._pick, place)) for place in range(-1, self.rows)]
        for line in self._lines:
            for old in (line.style, line.layout):
                old.close()
            line.style, line.layout = style, layout
        self._plot, self._plotted = ipw.Image(format="png", layout={"max_width": "100%", "object_fit": "contain"}), list[str]()
        self._rows = ipw.VBox(self._lines, layout={"flex": "0 0 auto"})
        beside = ipw.Box(
            [self._rows, ipw.Box([self._plot], layout={"flex": "1 1 30em"})],
            layout={"flex_flow": "row wrap", "align_items": "flex-start"},
        )
        return ipw.VBox([ipw.HBox([*bar, self._above]), beside, self._below])

    def _pick(self, place: int) -> None:
        """What the button of a row does."""
        at = (self.page - 1) * self.rows + place
        if at >= len(self._frame):
            return  # clicked twice, and the page has changed between
        row = self._frame.iloc[at]
        if self.session is None:
            self.open(row["session"])
        elif self.epoch is None:
            self.open(self.session, int(row["epoch"]))
        else:
            self.choose(self.session, self.epoch, int(row["request"]))

    def _paint(self) -> None:
        table = self._table()
        lines = table_lines(table)
        wide = max(map(len, lines))
        lines = [line.ljust(wide).replace(" ", "\u00a0") for line in lines]  # a button shows several blanks as one
        self._above.value = as_html([*self._notes, self._title()])
        chosen = f"{self.request:,}" if self.request is not None else None
        for line, text, row in zip(self._lines, lines, [table.header, *table.rows]):
            line.description, line.disabled = text, row is table.header
            line.button_style = "info" if row[0] == chosen else ""
        self._rows.children = self._lines[: len(lines)]
        self._below.value = as_html([*self._chosen, *self._failed()])
        sessions = [self.session] if self.session is not None else [row[0] for row in table.rows]
        if sessions != self._plotted:
            self._plot.value, self._plotted = _drawn(self.logs.where(session=sessions)), sessions


def _drawn(logs: Logs) -> bytes:
    figure = Figure(figsize=(8, 4), layout="constrained")
    prefix_reuse(logs, figure.subplots())
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=90)
    return png.getvalue()
