"""``Replay``: choose what a careless client would do, have it measured on a session's own requests, and watch the table fill in.

The measuring is ``loopkit.replay.compare``, in a background thread. Knows nothing of HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import ipywidgets as ipw
import pandas as pd

from loopkit.cache.variants import VARIANTS
from loopkit.card import Card
from loopkit.errors import InvalidConfig, LoopBusy, ServerError
from loopkit.records import ReplayRecord, UsageRecord
from loopkit.replay.comparing import compare
from loopkit.replay.costs import summary
from loopkit.server.client import Server
from loopkit.server.hangup import HangUp
from loopkit.session.session import Session
from loopkit.widgets.page import Block, Page, Table, as_html
from loopkit.widgets.panel import Panel
from loopkit.widgets.rows import cell

__all__ = ["Replay"]

CHOICE: Final = (*VARIANTS, "window(4)")
COLUMNS: Final = {
    "requests": "requests",
    "changed": "changed",
    "read_tokens": "read",
    "read_tokens_more": "read more",
    "lost_tokens": "lost",
    "ttft_ms": "first token ms",
    "ttft_ms_more": "ms more",
    "ttft_ms_low": "at least",
    "ttft_ms_high": "at most",
    "causes": "causes",
}
"What is shown of `loopkit.replay.summary`, and what it is called here."


class Replay(Panel):
    """A comparison in a cell: what each variant costs on a session's own requests.

    Parameters
    ----------
    session : Session
        Whose requests are sent again.
    server : Server
        Who is asked; of an embedded one each run gets a fresh one, started alike.
    home : str or Path, optional
        Where ``replays/`` lies; the session's own home where not given.

    Attributes
    ----------
    frame : DataFrame or None
        The rows of the runs that have ended; as of :func:`loopkit.replay.compare`.
    done, total : int
        Requests sent, and to be sent.

    Examples
    --------
    >>> from loopkit.loop.start import start
    >>> from loopkit.server.client import serve
    >>> import tempfile
    >>> with serve("tiny") as server, start(server, system="Be brief.", home=tempfile.mkdtemp(), id="s", memory="") as loop:
    ...     turns = [loop.ask("Hello."), loop.ask("And now?")]
    ...     with Replay(loop.session, server) as panel:
    ...         panel.run(["live_system"])
    ...         panel.wait()
    ...         panel
    Done.
    Done.
    Replay of session s: state done, requests 4 of 4, unchanged read 75 lost 0, live_system read 156 lost 46
    """

    def __init__(self, session: Session, server: Server, *, home: str | Path | None = None) -> None:
        super().__init__()
        if not isinstance(session, Session):
            raise InvalidConfig("session", f"a {type(session).__name__} is not a Session", "Use loop.session, or Session.read(…)")
        self.session, self.server, self.home = session, server, home
        self.frame: pd.DataFrame | None = None
        self.done = self.total = 0
        self.state = "idle"
        self._hang_up = HangUp()

    def run(self, variants: Sequence[str], repeats: int = 1) -> None:
        """Measure in the background; see :func:`loopkit.replay.compare`, and :meth:`wait` for the end.

        Raises
        ------
        LoopBusy
            When this panel measures already.
        """
        if self.running:
            raise LoopBusy(self.session.id)
        requests = sum(isinstance(record, UsageRecord) for epoch in self.session.epochs for record in epoch.records)
        self.done, self.total = 0, requests * (1 + len(variants)) * repeats
        self.frame, self.state, self._hang_up = None, "running", HangUp()

        def work() -> None:
            try:
                compare(
                    self.session,
                    self.server,
                    variants,
                    repeats,
                    home=self.home,
                    progress=False,
                    on_request=self._count,
                    on_run=self._take,
                    hang_up=self._hang_up,
                )
                self.state = "done"
            except BaseException as error:
                self.state = "stopped" if self._hang_up.is_set() else "failed"
                if not self._hang_up.is_set() or not isinstance(error, ServerError):
                    raise

        self._begin(work, "replay")

    def _count(self, record: ReplayRecord) -> None:
        self.done += 1
        self._changed.set()

    def _take(self, frame: pd.DataFrame) -> None:
        self.frame = frame
        self._changed.set()

    def _cancel(self) -> None:
        self._hang_up.set()

    def _rows(self) -> pd.DataFrame | None:
        return None if self.frame is None else summary(self.frame)

    def _card(self) -> Card:
        facts = [("state", self.state), ("requests", f"{self.done:,} of {self.total:,}")]
        rows = self._rows()
        if rows is not None:
            facts += [
                (str(name), f"read {cell(row['read_tokens'])} lost {cell(row['lost_tokens'])}") for name, row in rows.iterrows()
            ]
        return Card(f"Replay of session {self.session.id}", facts)

    def _page(self) -> Page:
        rows = self._rows()
        if rows is None:
            return [Block("variants", ", ".join(CHOICE))]
        cells = [[str(name), *(cell(row[column]) for column in COLUMNS)] for name, row in rows.iterrows()]
        return [Table(["variant", *COLUMNS.values()], cells)]

    # the skin

    def _dress(self) -> ipw.Widget:
        self._choice = ipw.SelectMultiple(options=CHOICE, value=["clock_in_system"], rows=len(CHOICE))
        self._repeats = ipw.BoundedIntText(description="repeats", value=1, min=1, max=100, layout={"width": "12em"})
        self._start = self._button("Run", lambda: self.run(self._choice.value, self._repeats.value))
        self._stop = self._button("Stop", self.stop)
        self._bar, self._below = ipw.IntProgress(), ipw.HTML()
        doing = ipw.VBox([self._repeats, ipw.HBox([self._start, self._stop]), self._bar])
        return ipw.VBox([ipw.HBox([self._choice, doing]), self._below])

    def _paint(self) -> None:
        self._start.disabled, self._stop.disabled = self.running, not self.running
        self._bar.max, self._bar.value = max(self.total, 1), self.done
        self._below.value = as_html(
            [Block(self.state, f"{self.done:,} of {self.total:,} requests"), *self._page(), *self._failed()]
        )
