"""Details of one request as page blocks: the messages it added, the response, and the cause of a cache loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from loopkit.cache.losses.cause_texts import advice
from loopkit.cache.prefixes.divergence import divergence
from loopkit.contract.records import Assistant, LogRecord, ToolResult, UsageRecord, User
from loopkit.contract.request import replayed
from loopkit.encoding import decode, encode
from loopkit.reprs import shown
from loopkit.session.session import Session
from loopkit.session.store import Epoch
from loopkit.widgets.rendering import PageBlock
from loopkit.widgets.transcript import ChatTranscript, lost_line

__all__ = ["conversation", "loss"]


def conversation(session: Session, epoch: int, request: int) -> Iterator[PageBlock]:
    """Yield blocks for the messages that a request added, its response, and how its body differs from the previous body.

    Parameters
    ----------
    session : Session
        The session. A session opened with :meth:`Session.read` is sufficient.
    epoch, request : int
        Numbers of the epoch (from 0) and of the request (from 1).
    """
    place = session.epochs[epoch]
    added, answer = _records(place, request)
    if request == 1:
        yield PageBlock("added: system prompt", place.baseline.system, folded=True)
        if place.baseline.tools:
            yield PageBlock("added: tools", ", ".join(tool.function.name for tool in place.baseline.tools))
    yield from (block._replace(head=f"added: {block.head}") for block in _blocks(added))
    yield from (block._replace(head=f"response: {block.head}") for block in _blocks(answer))
    yield from _bytes(session, epoch, request)


def _records(epoch: Epoch, request: int) -> tuple[list[LogRecord], list[LogRecord]]:
    """Return the messages that a request added and its response. The added messages start with the previous response."""
    messages: list[LogRecord] = []
    since = 0
    for record in epoch.records:
        if isinstance(record, User | Assistant | ToolResult):
            messages.append(record)
        elif isinstance(record, UsageRecord) and record.request == request:
            break
        elif isinstance(record, UsageRecord):
            since = len(messages) - 1
    return messages[since:-1], messages[-1:]


def _blocks(records: list[LogRecord]) -> list[PageBlock]:
    blocks = ChatTranscript(records).blocks()[0]
    calls = [call for record in records[-1:] if isinstance(record, Assistant) for call in record.calls()]
    return [*blocks, *(PageBlock(f"calls {call.function.name}", call.function.arguments) for call in calls)]


def _bytes(session: Session, epoch: int, request: int) -> Iterator[PageBlock]:
    last = None
    for part in session.epochs[max(0, epoch - 1) : epoch + 1]:
        for _, record, sent in replayed(part.start, part.baseline, part.records):
            if (part.start.epoch, record.request) == (epoch, request):
                if last is not None:
                    parted = divergence(last, sent)
                    extends = f"{sent.size - last.size:,} appended to the {last.size:,} of the previous request"
                    yield PageBlock("bytes", extends if parted is None else str(parted))
                return
            last = sent


def loss(row: Mapping[Any, Any]) -> Iterator[PageBlock]:
    """Yield blocks for a row of ``logs.cache_loss``: the cause, what to do, the bytes that differ, and the evidence."""
    known: dict[str, Any] = {name: None if pd.isna(value) else value for name, value in row.items()}
    yield PageBlock(
        "lost", lost_line(known["lost_tokens"], known["cause"], known["certainty"], known["fixable_by"], known["location"])
    )
    if todo := advice(known["cause"]):
        yield PageBlock("what to do", todo)
    evidence = {} if known["evidence"] is None else decode(known["evidence"], dict[str, Any])
    if "was" in evidence and "now" in evidence:
        before = evidence.get("before", "")
        place = ", ".join(f"{name} {evidence[name]}" for name in ("byte", "token", "culprit", "how") if name in evidence)
        yield PageBlock("differs", place)
        yield from (PageBlock(name, f"{before}[{evidence[name]}]") for name in ("was", "now"))
    if evidence:
        lines = (f"{shown(name, 40)}: {shown(encode(value).decode(), 400)}" for name, value in evidence.items())
        yield PageBlock("evidence", "\n".join(lines), folded=True)
