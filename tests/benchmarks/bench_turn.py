"""A turn's own cost: build, check, encode, hash; without the sync, and without handing bytes to the socket."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from unittest import mock

from loopkit.contract.baseline import Baseline
from loopkit.contract.neutralise import DEFAULT
from loopkit.contract.records import Assistant, LogRecord, ServerFacts, TagsFacts, Usage, UsageRecord, User
from loopkit.contract.request import RequestEncoder
from loopkit.ids import SessionId, Timestamp
from loopkit.loop.limits import Limits
from loopkit.loop.loop import Loop
from loopkit.loop.state import State
from loopkit.loop.tools.execution import PythonPort
from loopkit.loop.tools.registry import Registry
from loopkit.server.client import Server
from loopkit.server.completion.assembly import Completion
from loopkit.session.session import Session
from tests.benchmarks.table import Row, seconds

TEXT = "What the page says about the matter, in a few plain words. " * 7  # about 450 bytes a message, as in the specification


class Answering:
    """Answers at once: what is measured is the loop's own work."""

    embedded, engine, model, context_size = False, None, "m", None

    def complete(
        self, request: object, on_delta: object = None, *, first_call: int = 1, cancellation: object = None
    ) -> Completion:
        return Completion(
            content=TEXT, usage=Usage(prompt_tokens=100, cached_tokens=99, completion_tokens=10), finish_reason="stop"
        )

    def release_slot(self, slot: int | None) -> None:
        pass


@contextmanager
def conversation(messages: int) -> Iterator[Loop]:
    """A loop whose session holds this many messages."""
    with tempfile.TemporaryDirectory() as home, mock.patch("loopkit.session.disk._sync_data"):
        session = Session.create(
            Path(home),
            SessionId("bench"),
            Baseline("Be brief.", ()),
            slot=None,
            options={"model": "m"},
            server=ServerFacts(engine="llama.cpp"),
            tags=TagsFacts(id="default-1"),
        )
        encoder = RequestEncoder(session.baseline, session.options, None)
        records: list[LogRecord] = []
        for number in range(1, messages // 2 + 1):
            now = Timestamp.now()
            records.append(User(time=now, content=TEXT))
            request = encoder.request([session.start, *records]) if number == messages // 2 else None
            usage = UsageRecord(
                time=now,
                request=number,
                request_sha256=request.sha256 if request else "0" * 64,
                request_bytes=request.size if request else 1,
                usage=Usage(prompt_tokens=100, cached_tokens=99, completion_tokens=10),
                finish_reason="stop",
                response_id=None,
                attempts=1,
                elapsed_ms=1.0,
            )
            records += [Assistant(time=now, content=TEXT), usage]
        session.extend(records)
        state = State(
            session=session,
            server=cast(Server, cast(Any, Answering())),
            encoder=RequestEncoder.resume(session.start, session.baseline, session.records),
            port=PythonPort(Registry()),
            limits=Limits(),
            tags=DEFAULT,
            next_baseline=lambda: session.baseline,
        )
        with Loop(state, Registry()) as loop:
            loop.on_event = None
            yield loop


def measure(*, small: bool) -> list[Row]:
    """Medians over turns that are taken in turn from a long and a short conversation."""
    rounds = 50 if small else 300
    with conversation(10_000) as long, conversation(1_000) as short:
        for loop in (long, short):
            loop.ask(TEXT)
        pairs = [(seconds(lambda: long.ask(TEXT)), seconds(lambda: short.ask(TEXT))) for _ in range(rounds)]
    slow, fast = (statistics.median(pair[side] for pair in pairs) * 1000 for side in (0, 1))
    return [
        Row("turn's own cost, 10,000 messages against 1,000", f"{slow:.2f} ms", f"{fast:.2f} ms", slow / fast, 1.5),
        Row("turn's own cost, 10,000 messages, in ms", f"{slow:.2f} ms", "2 ms", slow, 2.0),
    ]
