"""``Replay``: measure variants of a session's requests from a notebook cell, and watch the table fill in.

The panel runs :func:`loopkit.replay.compare` in a background thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import ipywidgets as ipw
import pandas as pd

from loopkit.contract.records import ReplayRecord, UsageRecord
from loopkit.errors import InvalidConfig, LoopBusy, ServerError, kind_of
from loopkit.replay.comparison import compare, variants_of
from loopkit.replay.summaries import summary
from loopkit.replay.variants import VARIANTS
from loopkit.reprs import Card, counted
from loopkit.server.client import Server
from loopkit.server.transport.cancellation import Cancellation
from loopkit.session.session import Session
from loopkit.widgets.base import Panel
from loopkit.widgets.log_tables import cells
from loopkit.widgets.rendering import Page, PageBlock, Table, as_html

__all__ = ["Replay"]

CHOICE: Final = (*VARIANTS, "window(4)")
_TOKENS = {"changed": "changed", "read_tokens": "processed", "read_tokens_more": "more processed", "lost_tokens": "lost"}
_TIMES = {"ttft_ms": "TTFT ms", "ttft_ms_more": "more ms", "ttft_ms_low": "lowest", "ttft_ms_high": "highest"}
COLUMNS: Final = {"variant": "variant", "requests": "requests", **_TOKENS, **_TIMES, "causes": "causes"}
"Columns of ``loopkit.replay.summary`` that the panel shows, and their headings."


class Replay(Panel):
    """A panel to measure what each variant (a deliberate change) of a session's requests costs.

    Parameters
    ----------
    session : Session
        Session to replay.
    server : Server
        Server to measure on. If it is an embedded server, each run starts a new one with the same settings.
    home : str or Path, optional
        Directory in which ``replays/`` is created. By default, the loopkit directory of the session.

    Attributes
    ----------
    frame : DataFrame or None
        Rows of the finished runs, as from :func:`loopkit.replay.compare`. Until the first run of a comparison ends, the rows of
        the comparison before it.

    Examples
    --------
    >>> from loopkit.loop.opening import start
    >>> from loopkit.server.opening import serve
    >>> import tempfile
    >>> with serve("tiny") as server, start(server, system="Be brief.", home=tempfile.mkdtemp(), id="s", memory="") as loop:
    ...     turns = [loop.ask("Hello."), loop.ask("And now?")]
    ...     with Replay(loop.session, server) as panel:
    ...         panel.run(["live_system"])
    ...         panel.wait()
    ...         panel
    Done.
    Done.
    Replay of session s: state done, unchanged 75 processed, 0 lost, live_system 156 processed, 46 lost, … 1 more
    """

    def __init__(self, session: Session, server: Server, *, home: str | Path | None = None) -> None:
        super().__init__()
        if not isinstance(session, Session):
            raise InvalidConfig("session", f"{kind_of(session)} is not a Session", "Use loop.session, or Session.read(…)")
        self.session, self.server, self.home = session, server, home
        self.state = "idle"
        self.frame: pd.DataFrame | None = None
        self._rows: list[list[str]] = []
        self._begin_at(0)

    def _begin_at(self, total: int) -> None:
        self._done, self._total, self._cancellation = 0, total, Cancellation()

    def run(self, variants: Sequence[str], repeats: int = 1) -> None:
        """Run :func:`loopkit.replay.compare` in the background and return at once. Call :meth:`wait` to wait for the end.

        Parameters
        ----------
        variants : sequence of str
            Names of the variants, such as ``"clock_in_system"``.
        repeats : int
            Number of runs of each variant.

        Raises
        ------
        LoopBusy
            If this panel is already measuring.
        InvalidConfig
            If a variant does not exist. The panel then keeps its last result.
        """
        if self.running:
            raise LoopBusy(self.session.id)
        chosen = variants_of(variants)
        requests = sum(isinstance(record, UsageRecord) for epoch in self.session.epochs for record in epoch.records)
        self._begin_at(requests * (1 + len(chosen)) * repeats)
        cancellation = self._cancellation

        def work() -> None:
            arguments = self.session, self.server, chosen, repeats
            try:
                compare(
                    *arguments,
                    home=self.home,
                    progress=False,
                    on_request=self._count,
                    on_run=self._take,
                    cancellation=cancellation,
                )
                self.state = "done"
            except BaseException as error:
                self.state = "stopped" if cancellation.is_set() else "failed"
                if self.state == "failed" or not isinstance(error, ServerError):
                    raise

        self.state = "running"
        self._begin(work, "replay")

    def _count(self, record: ReplayRecord) -> None:
        self._done += 1

    def _take(self, frame: pd.DataFrame) -> None:
        self.frame, self._rows = frame, cells(summary(frame).reset_index()[list(COLUMNS)])

    def _cancel(self) -> None:
        self._cancellation.set()

    def _card(self) -> Card:
        names = list(COLUMNS)
        read, lost = names.index("read_tokens"), names.index("lost_tokens")
        facts = [("state", self.state), ("requests", f"{self._done:,} of {self._total:,}")]
        facts += [(row[0], f"{row[read]} processed, {row[lost]} lost") for row in self._rows]
        return Card(f"Replay of session {self.session.id}", facts, spare=("requests",))

    def _page(self) -> Page:
        if not self._rows:
            return [PageBlock("variants", ", ".join(CHOICE))]
        known = [column for column in zip(COLUMNS.values(), *self._rows) if any(column[1:])]  # one repeat: no interval
        header, *rows = zip(*known)
        return [Table(header, rows)]

    def _build(self) -> ipw.Widget:
        self._choice = ipw.SelectMultiple(options=CHOICE, value=["clock_in_system"], rows=len(CHOICE))
        self._repeats = ipw.BoundedIntText(description="repeats", value=1, min=1, max=100, layout={"width": "12em"})
        self._start = self._button("Run", lambda: self.run(self._choice.value, self._repeats.value))
        self._stop = self._button("Stop", self.stop)
        self._bar, self._below = ipw.IntProgress(), ipw.HTML(layout={"overflow": "auto"})
        controls = ipw.VBox([self._repeats, ipw.HBox([self._start, self._stop]), self._bar])
        return ipw.VBox([ipw.HBox([self._choice, controls]), self._below])

    def _paint(self) -> None:
        self._start.disabled, self._stop.disabled = self.running, not self.running
        self._bar.max, self._bar.value = max(self._total, 1), self._done
        state = PageBlock(self.state, f"{self._done:,} of {counted(self._total, 'request')}")
        self._below.value = as_html([state, *self._page(), *self._failure()])
