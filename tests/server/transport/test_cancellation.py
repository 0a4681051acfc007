"""Leaving an answer from another thread, wherever it is."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from loopkit.errors import ServerError, ServerRefused, ServerUnreachable, StreamCut
from loopkit.server.client import Server
from loopkit.server.detection import Detected
from loopkit.server.transport.cancellation import Cancellation
from loopkit.server.transport.connection import Wire
from tests.server.scripted import HANG, Scripted, Step, answer, head, make_request, sse, text

BUSY = answer('{"error":{"message":"busy"}}', 429, Retry_After="50")
PLACES: list[tuple[str, list[Step], type[ServerError]]] = [
    ("before the head", [HANG], ServerUnreachable),
    ("before the first event", [head(), HANG], StreamCut),
    ("in the stream", [*sse(text("Do")), HANG], StreamCut),
    ("in a body", [head(kind="application/json", Content_Length="50"), b'{"choices"', HANG], StreamCut),
    ("between two attempts", BUSY, ServerRefused),
]


@pytest.mark.parametrize(("name", "steps", "kind"), PLACES, ids=[name for name, *_ in PLACES])
def test_hanging_up_wakes_whoever_waits(name: str, steps: list[Step], kind: type[ServerError]) -> None:
    cancellation, reached = Cancellation(), threading.Event()
    begun: list[Step] = [step for step in steps if step is not HANG]
    script: list[Step] = [*begun, reached.set, *([HANG] if HANG in steps else [])]

    def leave() -> None:
        reached.wait()
        cancellation.set()

    with (
        Scripted([script, sse(text("Done."), "[DONE]")]) as scripted,
        Server(Wire(scripted.url, timeout=30), Detected()) as server,
    ):
        threading.Thread(target=leave, daemon=True).start()
        with pytest.raises(kind):
            server.complete(make_request(), cancellation=cancellation)
        assert len(scripted.requests) == 1
        if HANG in steps:
            assert scripted.requests[0].hung_up.wait(5)
        cancellation.clear()
        assert server.complete(make_request(), cancellation=cancellation).text == "Done."


def test_what_was_hung_up_before_is_not_waited_for() -> None:
    cancellation = Cancellation()
    cancellation.set()
    with (
        Scripted([[HANG]]) as scripted,
        Server(Wire(scripted.url, timeout=30), Detected()) as server,
        pytest.raises(ServerUnreachable),
    ):
        server.complete(make_request(), cancellation=cancellation)


def test_a_completion_that_was_whole_already_is_kept() -> None:
    cancellation = Cancellation()
    finish: Callable[[], None] = cancellation.set
    end = '{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
    with (
        Scripted([[*sse(text("Done."), end), finish, HANG]]) as scripted,
        Server(Wire(scripted.url, timeout=30), Detected()) as server,
    ):
        assert server.complete(make_request(), cancellation=cancellation).text == "Done."


def test_hanging_up_when_all_is_over_does_nothing() -> None:
    cancellation = Cancellation()
    with Scripted([sse(text("Done."), "[DONE]")]) as scripted, Server(Wire(scripted.url, timeout=30), Detected()) as server:
        assert server.complete(make_request(), cancellation=cancellation).text == "Done."
        cancellation.set()
