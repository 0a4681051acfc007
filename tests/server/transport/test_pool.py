"""Kept connections: how many a request takes, and what happens when they are closed, cancelled or forked."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from pathlib import Path

import httpx
import pytest

from loopkit.errors import InvalidConfig, ServerRefused, ServerUnreachable
from loopkit.server.client import Server
from loopkit.server.detection import Detected
from loopkit.server.opening import connect
from loopkit.server.transport.cancellation import Cancellation
from loopkit.server.transport.connection import Wire
from tests.loop.scripted_loops import begin
from tests.server.scripted import END, KeepAlive, Received, Scripted, answer, kept, kept_sse, make_request, text

DONE = kept_sse(text("Done."), END, "[DONE]")
SLOTS = kept('[{"id":0,"is_processing":false,"n_prompt_tokens":7}]')


def as_llama(request: Received) -> bytes:
    path = request.line.split()[1]
    if path.endswith("/chat/completions"):
        return DONE
    return {"/slots": SLOTS, "/metrics": kept("llamacpp:prompt_tokens_total 7\n")}.get(path, kept("{}", 404))


def server_at(listener: KeepAlive) -> Server:
    return Server(Wire(listener.url, timeout=30), Detected("llama.cpp", None, "m", 4096, 1))


def test_one_ask_takes_one_connection(tmp_path: Path) -> None:
    with KeepAlive(as_llama) as listener, server_at(listener) as server, begin(server, tmp_path) as loop:
        for _ in range(3):
            asked = len(listener.requests)
            assert loop.ask("Hello.").text == "Done."
            paths = [request.line.split()[1] for request in listener.requests[asked:]]
            assert paths == ["/slots", "/metrics", "/v1/chat/completions", "/slots", "/metrics"]
        assert listener.connections == 1


def test_connecting_takes_one_connection() -> None:
    with KeepAlive(as_llama) as listener, connect(listener.url, model="m") as server:
        assert server.complete(make_request()).content == "Done."
        assert listener.connections == 1


def test_requests_at_the_same_time_have_connections_of_their_own() -> None:
    both = threading.Barrier(2)

    def together(request: Received) -> bytes:
        both.wait(10)
        return SLOTS

    with KeepAlive(together) as listener, server_at(listener) as server:
        for _ in range(3):
            threads = [threading.Thread(target=server.slots) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10)
        assert (listener.connections, len(listener.requests)) == (2, 6)


def test_a_connection_that_the_server_closed_is_replaced() -> None:
    closing = iter([SLOTS, None, SLOTS, DONE, None, DONE])
    with KeepAlive(lambda _: next(closing)) as listener, server_at(listener) as server:
        assert len(server.slots()) == len(server.slots()) == 1
        assert [server.complete(make_request()).attempts for _ in range(2)] == [1, 1]
        assert listener.connections == 3
        assert len({request.body for request in listener.requests[3:]}) == 1


def test_a_new_connection_without_an_answer_is_an_error() -> None:
    with KeepAlive(lambda _: None) as listener, server_at(listener) as server:
        with pytest.raises(ServerUnreachable):
            server.slots()
        assert listener.connections == 1


def test_a_kept_connection_can_be_cancelled() -> None:
    cancellation, waiting, end = Cancellation(), threading.Event(), threading.Event()

    def second_waits(request: Received) -> bytes:
        if len(listener.requests) == 2:
            waiting.set()
            end.wait(10)
        return DONE

    def cancel() -> None:
        waiting.wait(10)
        cancellation.set()

    with KeepAlive(second_waits) as listener, server_at(listener) as server:
        server.complete(make_request(), cancellation=cancellation)
        thread = threading.Thread(target=cancel)
        thread.start()
        with pytest.raises(ServerUnreachable):
            server.complete(make_request(), cancellation=cancellation)
        end.set()
        thread.join()
        cancellation.clear()
        assert len(listener.requests) == 2
        assert server.complete(make_request(), cancellation=cancellation).content == "Done."
        assert listener.connections == 2


def test_a_connection_of_a_finished_request_is_not_cancelled() -> None:
    cancellation = Cancellation()
    with KeepAlive(as_llama) as listener, server_at(listener) as server:
        server.complete(make_request(), cancellation=cancellation)
        cancellation.set()
        assert len(server.slots()) == 1
        assert listener.connections == 1


def test_a_fork_opens_its_own_connections() -> None:
    with KeepAlive(as_llama) as listener, server_at(listener) as server:
        assert len(server.slots()) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads; the child only sends a request
            child = os.fork()
        if child == 0:
            try:
                signal.alarm(20)
                os._exit(0 if len(server.slots()) == len(server.slots()) == 1 else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert listener.connections == 2
        assert len(server.slots()) == 1
        assert listener.connections == 2


def test_headers_are_sent_with_each_request_and_hidden() -> None:
    secret = "do-not-show-me"
    refusal = answer(f'{{"error":"bad {secret}"}}', 400)
    headers = {"X-Api-Key": secret, "X-Team": "lima"}
    with Scripted([answer("{}", 404), answer("{}", 404), refusal]) as scripted:
        with connect(scripted.url, headers=headers) as server, pytest.raises(ServerRefused, match="bad …") as caught:
            server.complete(make_request())
    assert secret not in repr(caught.value)
    assert [request.headers["x-api-key"] for request in scripted.requests] == [secret] * 3
    assert [request.headers["x-team"] for request in scripted.requests] == ["lima"] * 3


@pytest.mark.parametrize("headers", [{"X": "a\r\nB: c"}, {"é": "x"}, {"Authorization": "Bearer a"}])
def test_headers_that_cannot_be_sent(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig):
        connect("http://127.0.0.1:9", headers=headers, api_key="key")


def test_a_transport_is_used_by_all_requests_and_closed_once() -> None:
    closed: list[int] = []

    class Mock(httpx.MockTransport):
        def close(self) -> None:
            closed.append(1)

    mock = Mock(lambda request: httpx.Response(200, text="[]" if request.url.path == "/slots" else "{}"))
    with connect("http://host", model="m", transport=mock) as server:
        assert server.slots() == server.slots() == []
        assert not closed
    assert closed == [1]


def test_the_old_time_outs_are_renamed() -> None:
    with KeepAlive(as_llama) as listener, pytest.warns(DeprecationWarning, match="timeout=httpx.Timeout"):
        server = connect(listener.url, model="m", read_timeout=7.0)  # type: ignore[call-arg]
    with server:
        assert (server.wire.timeout.read, server.wire.timeout.connect) == (7.0, 10.0)
