"""Ctrl-C at every bytecode of the transport: each connection is closed, and not left to the garbage collector."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import loopkit.server.transport as transport
from loopkit.server.client import Server
from loopkit.server.transport.cancellation import Cancellation
from tests.server.scripted import KeepAlive, make_request
from tests.server.transport.test_pool import as_llama, server_at

OURS = str(Path(transport.__file__).parent)
REQUEST, CANCELLATION = make_request(), Cancellation()

Act = Callable[[Server], object]


def complete(server: Server) -> None:
    server.complete(REQUEST, cancellation=CANCELLATION)


def complete_cold(server: Server) -> None:
    server.wire._pool.close()
    server.complete(REQUEST, cancellation=CANCELLATION)


def close(server: Server) -> None:
    server.slots()
    server.wire._pool.close()


class Interrupt:
    """Raises KeyboardInterrupt at the n-th bytecode of the transport."""

    def __init__(self, at: int) -> None:
        self.at, self.count, self.place = at, 0, ""

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(OURS) or code.co_flags & inspect.CO_GENERATOR:
            return None  # Python swallows what is raised where a generator is dropped
        if code.co_name in ("trace", "_connected"):
            return None  # until these have seen a new socket, only httpcore has it
        if frame.f_back is not None and frame.f_back.f_code.co_filename == weakref.__file__:
            return None  # and in a finalizer
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.count += 1
            if self.count == self.at:
                sys.settrace(None)
                self.place = f"{Path(code.co_filename).name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self.trace

    def __enter__(self) -> Interrupt:
        self.before = sys.gettrace()
        sys.settrace(self.trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)


def open_sockets() -> int:
    """Return how many sockets this process has open; 0 on systems without /proc."""
    count = 0
    for descriptor in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(OSError):
            count += os.readlink(descriptor).startswith("socket:")
    return count


@pytest.fixture
def lost() -> Any:
    """The resource warnings of a test, whose garbage is collected fast."""
    gc.collect()
    gc.freeze()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        yield lambda: [str(each.message) for each in caught if each.category is ResourceWarning]
    gc.unfreeze()


@pytest.mark.parametrize("act", [complete, complete_cold, Server.slots, close])
def test_an_interrupt_loses_no_connection(act: Act, lost: Callable[[], list[str]]) -> None:
    with KeepAlive(as_llama) as listener:
        before = open_sockets()
        server, at, finished = server_at(listener), 0, threading.Event()

        def interrupted() -> None:
            with contextlib.suppress(KeyboardInterrupt), interrupt:
                act(server)
                finished.set()

        while not finished.is_set():
            at += 1
            interrupt = Interrupt(at)
            thread = threading.Thread(target=interrupted)  # the exceptions that a trace function raises stay on its stack
            thread.start()
            thread.join(20)
            gc.collect()
            assert lost() == [], interrupt.place
        assert at > 50
        server.close()
        deadline = time.monotonic() + 10
        while open_sockets() > before and time.monotonic() < deadline:
            time.sleep(0.01)  # the listener's threads close their ends
        assert open_sockets() == before


def test_a_server_that_is_dropped_closes_its_connections(lost: Callable[[], list[str]]) -> None:
    with KeepAlive(as_llama) as listener:
        server = server_at(listener)
        server.slots()
        del server
        gc.collect()
        assert lost() == []


def test_a_connection_closes_again_after_an_interrupted_close() -> None:
    with KeepAlive(as_llama) as listener, server_at(listener) as server:
        server.slots()
        (channel,) = server.wire._pool._idle
        channel.client._state = type(channel.client._state).CLOSED  # as an interrupt leaves it, before anything is closed
        channel.close()
        channel.close()
        assert [each.fileno() for each in channel._sockets] == [-1]
