"""One request of a log, as a page: what it added, what was answered, and where a loss stands why, with the differing bytes.

Pure but for the session that it is given. Knows nothing of widgets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from loopkit.cache.prefixes.divergence import divergence
from loopkit.contract.records import Assistant, LogRecord, ToolResult, UsageRecord, User
from loopkit.contract.request import replayed
from loopkit.encoding import decode, encode
from loopkit.reprs import shown
from loopkit.session.session import Session
from loopkit.session.store import Epoch
from loopkit.widgets.page import Block
from loopkit.widgets.transcript import Transcript, lost_line

__all__ = ["conversation", "loss"]


def conversation(session: Session, epoch: int, request: int) -> Iterator[Block]:
    """What a request added to the one before, what was answered, and whether its bytes extend that one's.

    Parameters
    ----------
    session : Session
        Open for reading is enough.
    epoch, request : int
        The request's place.
    """
    of = session.epochs[epoch]
    added, answer = _records(of, request)
    if request == 1:
        yield Block("added: system prompt", of.baseline.system, folded=True)
        if of.baseline.tools:
            yield Block("added: tools", ", ".join(tool.function.name for tool in of.baseline.tools))
    yield from (block._replace(head=f"added: {block.head}") for block in _said(added))
    yield from (block._replace(head=f"answered: {block.head}") for block in _said(answer))
    yield from _bytes(session, epoch, request)


def _records(epoch: Epoch, request: int) -> tuple[list[LogRecord], list[LogRecord]]:
    """The messages that a request has and the one before had not, the last answer first; and its answer."""
    said: list[LogRecord] = []
    since = 0
    for record in epoch.records:
        if isinstance(record, User | Assistant | ToolResult):
            said.append(record)
        elif isinstance(record, UsageRecord) and record.request == request:
            break
        elif isinstance(record, UsageRecord):
            since = len(said) - 1
    return said[since:-1], said[-1:]


def _said(records: list[LogRecord]) -> list[Block]:
    blocks = Transcript(records).blocks()[0]
    calls = [call for record in records[-1:] if isinstance(record, Assistant) for call in record.calls()]
    return [*blocks, *(Block(f"calls {call.function.name}", call.function.arguments) for call in calls)]


def _bytes(session: Session, epoch: int, request: int) -> Iterator[Block]:
    last = None
    for of in session.epochs[max(0, epoch - 1) : epoch + 1]:
        for _, record, sent in replayed(of.start, of.baseline, of.records):
            if (of.start.epoch, record.request) == (epoch, request):
                if last is not None:
                    parted = divergence(last, sent)
                    extends = f"they extend the {last.size:,} of the request before by {sent.size - last.size:,}"
                    yield Block("bytes", extends if parted is None else str(parted))
                return
            last = sent


def loss(row: Mapping[Any, Any]) -> Iterator[Block]:
    """A row of the frame ``cache_loss``: the cause, the differing bytes as they were recorded, and the evidence."""
    known: dict[str, Any] = {name: None if pd.isna(value) else value for name, value in row.items()}
    yield Block(
        "lost", lost_line(known["lost_tokens"], known["cause"], known["certainty"], known["fixable_by"], known["location"])
    )
    evidence = {} if known["evidence"] is None else decode(known["evidence"], dict[str, Any])
    if "was" in evidence and "now" in evidence:
        before = evidence.get("before", "")
        place = ", ".join(f"{name} {evidence[name]}" for name in ("byte", "token", "culprit", "how") if name in evidence)
        yield Block("differs", place)
        yield from (Block(name, f"{before}[{evidence[name]}]") for name in ("was", "now"))
    if evidence:
        lines = (f"{shown(name, 40)}: {shown(encode(value).decode(), 400)}" for name, value in evidence.items())
        yield Block("evidence", "\n".join(lines), folded=True)
