"""The client against a scripted server: every fault that a real one will not produce on demand."""

from __future__ import annotations

import email.utils
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest

from loopkit.errors import (
    ContextExceeded,
    LoopkitError,
    ServerError,
    ServerRefused,
    ServerTimeout,
    ServerUnreachable,
    StreamCut,
)
from loopkit.server.client import Server
from loopkit.server.completion.assembly import Completion
from loopkit.server.completion.deltas import Delta, TextDelta
from loopkit.server.detection import Detected
from loopkit.server.transport.connection import Wire
from loopkit.server.transport.faults import FAULTS
from tests.server.scripted import END, HANG, Scripted, Step, answer, head, make_request, sse, text

KEY = "sk-do-not-show-me"
EXCEEDED = '{"error":{"type":"exceed_context_size_error","n_prompt_tokens":9,"n_ctx":8}}'
DONE = sse(text("Do"), text("ne."), END, "[DONE]")


class Waits(list[float]):
    """Stands for `time.sleep`."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def server_at(url: str, **settings: Any) -> Server:
    return Server(Wire(url, api_key=KEY, **{"sleep": Waits(), "timeout": 30, **settings}), Detected())


def exchange(response: Sequence[Step], on_delta: Callable[[Delta], None] | None = None, **settings: Any) -> Completion:
    with Scripted([response]) as scripted, server_at(scripted.url, **settings) as server:
        return server.complete(make_request(), on_delta)


def test_the_bytes_built_are_the_bytes_sent() -> None:
    request = make_request("x" * 300_000)
    with Scripted([DONE]) as scripted, server_at(scripted.url + "/v1/") as server:
        server.complete(request)
    (received,) = scripted.requests
    assert received.body == request.body
    assert received.line == "POST /v1/chat/completions HTTP/1.1"
    assert received.headers["content-length"] == str(request.size)
    assert "transfer-encoding" not in received.headers
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert received.headers["content-type"] == "application/json"


def test_a_streamed_answer() -> None:
    deltas: list[Delta] = []
    completion = exchange(DONE, deltas.append)
    assert completion.content == "Done."
    assert deltas == [TextDelta("Do"), TextDelta("ne.")]
    assert completion.attempts == 1
    assert completion.usage.ttft_ms is not None
    assert 0 <= completion.usage.ttft_ms <= completion.elapsed_ms


def test_a_whole_answer_is_known_by_its_content_type() -> None:
    deltas: list[Delta] = []
    completion = exchange(answer('{"choices":[{"message":{"content":"Done."},"finish_reason":"stop"}]}'), deltas.append)
    assert (completion.content, completion.usage.ttft_ms, deltas) == ("Done.", None, [])


def test_reading_the_prompt_is_not_the_first_token() -> None:
    reading = '{"choices":[],"prompt_progress":{"total":9,"cache":4,"processed":6,"time_ms":3}}'
    assert exchange(sse(reading, END)).usage.ttft_ms is None


def test_a_connection_is_kept_until_the_server_is_closed() -> None:
    body = b'{"choices":[{"message":{"content":"x"}}]}'
    kept = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    with Scripted([[kept + body, HANG]]) as scripted, server_at(scripted.url) as server:
        server.complete(make_request())
        assert not scripted.requests[0].hung_up.is_set()
        server.close()
        assert scripted.requests[0].hung_up.wait(10)


HEAD = head()
TEXT = text("a\u2028b\u0085c").encode()
ONE = b"data: " + TEXT + b"\n\n"
FIN = b"data: " + END.encode() + b"\n\n"
LINES = b'data: {"choices":\ndata: [{"delta":{"content":"a\xe2\x80\xa8b\xc2\x85c"}}]}\n\n'


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([HEAD, b": keep-alive\n\n: another\n", ONE, FIN], id="comments"),
        pytest.param([HEAD, (ONE + FIN).replace(b"data: ", b"data:").replace(b"\n", b"\r\n")], id="no-space-and-crlf"),
        pytest.param([HEAD, b"id: 1\nevent: message\nretry: 5\n", ONE, b"\n\nid: 2\n\n", FIN], id="fields"),
        pytest.param([HEAD, *(bytes([byte]) for byte in ONE), FIN], id="byte-by-byte"),
        pytest.param([HEAD, LINES, FIN], id="over-two-data-lines"),
        pytest.param([HEAD, ONE, FIN[:-1]], id="no-empty-line-at-the-end"),
        pytest.param([HEAD, ONE, FIN, b'data: {"choi'], id="cut-after-the-finish-reason"),
        pytest.param([head(Content_Length="9999"), ONE, FIN], id="reset-after-the-finish-reason"),
        pytest.param([HEAD, ONE + FIN + b"data: [DONE]\n\ndata: x\n\n\xff", HANG], id="after-done"),
        pytest.param([head(kind="Text/Event-Stream; charset=latin-1"), ONE, FIN], id="charset"),
        pytest.param([HEAD, b"\xef\xbb\xbf" + ONE, FIN], id="byte-order-mark"),
    ],
)
def test_events_as_they_come(parts: list[Step]) -> None:
    assert exchange(parts).content == "a\u2028b\u0085c"


@pytest.mark.parametrize(
    ("response", "kind", "said"),
    [
        pytest.param(sse(text("x")), StreamCut, "ended without a finish_reason", id="end"),
        pytest.param([head(Content_Length="9999"), ONE], StreamCut, "(events received: 1): peer closed", id="reset"),
        pytest.param([HEAD, b"data: \xff\n\n"], StreamCut, "not UTF-8", id="not-utf-8"),
        pytest.param(sse(text("x"), "garbage"), StreamCut, "not part of a chat completion", id="garbage"),
        pytest.param(
            sse(text("x"), '{"error":{"message":"it broke","code":503}}'), ServerRefused, "HTTP 503: it broke", id="error"
        ),
        pytest.param([HEAD, b"event: error\ndata: it broke\n\n"], ServerRefused, "it broke", id="error-event"),
        pytest.param(answer('{"choices":[{"mess'), StreamCut, "not part of a chat completion", id="half-json"),
        pytest.param([head(kind="application/json", Content_Length="9999"), b"{"], StreamCut, "peer closed", id="cut-json"),
        pytest.param(answer("<p>Hello</p>", kind="text/html"), ServerRefused, "Check that this is the base URL", id="a-web-page"),
        pytest.param([head(Content_Encoding="gzip"), b"no gzip"], StreamCut, "decompress", id="not-gzip"),
        pytest.param([b""], ServerUnreachable, "without sending a response", id="no-answer"),
        pytest.param([b"SMTP ready\r\n\r\n"], ServerUnreachable, "illegal", id="not-http"),
        pytest.param(answer('{"error":{"message":"bad"}}', 400), ServerRefused, "HTTP 400: bad", id="400"),
        pytest.param(answer('{"error":{"message":"template: roles"}}', 500), ServerRefused, "template: roles", id="500"),
        pytest.param(answer("", 307, Location="http://elsewhere"), ServerRefused, "redirects to http://elsewhere", id="307"),
        pytest.param(
            answer(f'{{"error":"bad key {KEY}"}}', 401),
            ServerRefused,
            "bad key …. Check that `api_key=` is the right key",
            id="401",
        ),
        pytest.param(sse(f'{{"error":"bad key {KEY}"}}'), ServerRefused, "bad key …", id="key-in-mid-stream"),
        pytest.param(answer(f"bad {KEY}"), StreamCut, "bad …", id="key-in-garbage"),
        pytest.param(answer(EXCEEDED, 503), ContextExceeded, "9 tokens", id="context"),
    ],
)
def test_faults(response: list[Step], kind: type[ServerError], said: str) -> None:
    waits = Waits()
    with Scripted([response, DONE]) as scripted, server_at(scripted.url, sleep=waits) as server:
        with pytest.raises(kind) as caught:
            server.complete(make_request())
        assert server.complete(make_request()).content == "Done."  # nothing sticks
    assert said in str(caught.value)
    assert caught.value.url == scripted.url
    assert KEY not in repr(caught.value)
    assert waits == []  # none of these is tried again
    assert scripted.requests[0].body == scripted.requests[1].body


@pytest.mark.parametrize("steps", [[], [head()], [head(), ONE, b": still here\n\n"]], ids=["no-head", "no-event", "mid-stream"])
def test_silence_is_a_time_out(steps: list[Step]) -> None:
    with pytest.raises(ServerTimeout, match="timeout="):
        exchange([*steps, HANG], timeout=0.2)


def test_silence_after_the_finish_reason_is_the_end() -> None:
    assert exchange([*sse(text("x"), END), HANG], timeout=0.2).content == "x"


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_busy_servers_are_asked_again_with_the_same_bytes(status: int) -> None:
    waits = Waits()
    with (
        Scripted([answer("busy", status), answer("busy", status), DONE]) as scripted,
        server_at(scripted.url, sleep=waits) as server,
    ):
        completion = server.complete(make_request())
    assert completion.attempts == 3
    assert waits == [0.5, 1.0]
    assert len({received.body for received in scripted.requests}) == 1


def test_the_attempts_are_bounded() -> None:
    waits = Waits()
    with (
        Scripted([answer("busy", 503)] * 9) as scripted,
        server_at(scripted.url, sleep=waits) as server,
        pytest.raises(ServerRefused, match=r"HTTP 503: busy \(after 4 attempts\)"),
    ):
        server.complete(make_request())
    assert waits == [0.5, 1.0, 2.0]
    assert len(scripted.requests) == 4


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        ("7", 7, 7),
        ("86400", 60, 60),
        ("in 30 s", 20, 30),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0, 0),
        ("soon", 0.5, 0.5),
    ],
)
def test_retry_after(value: str, low: float, high: float) -> None:
    if value == "in 30 s":  # a date, from when the test runs
        value = email.utils.formatdate(time.time() + 30, usegmt=True)
    waits = Waits()
    with Scripted([answer("busy", 429, Retry_After=value), DONE]) as scripted, server_at(scripted.url, sleep=waits) as server:
        server.complete(make_request())
    assert len(waits) == 1
    assert low <= waits[0] <= high


@pytest.fixture
def closed_port() -> Iterator[socket.socket]:
    """A port that refuses connections until it listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield listener


def test_a_cookie_that_routes_to_one_replica_is_sent_again() -> None:
    routed = [head(Set_Cookie="replica=a"), *DONE[1:]]
    with Scripted([routed, DONE, DONE]) as scripted, server_at(scripted.url) as server:
        for _ in range(3):
            server.complete(make_request())
        assert [request.headers.get("cookie") for request in scripted.requests] == [None, "replica=a", "replica=a"]


def test_a_refused_connection_is_tried_again(closed_port: socket.socket) -> None:
    waits = Waits()
    with server_at(f"http://127.0.0.1:{closed_port.getsockname()[1]}", sleep=waits) as server:
        with pytest.raises(ServerUnreachable, match=r"4 attempts: .*refused") as caught:
            server.complete(make_request())
        assert caught.value.attempts == 4
        assert waits == [0.5, 1.0, 2.0]

        def listen(seconds: float) -> None:
            waits.append(seconds)
            closed_port.listen()

        server.wire._sleep = listen
        server.wire.timeout = httpx.Timeout(0.1)
        with pytest.raises(ServerTimeout):  # it is connected now; nobody answers
            server.complete(make_request())
        assert waits == [0.5, 1.0, 2.0, 0.5]


def test_a_server_that_is_gone_is_not_asked_again(closed_port: socket.socket) -> None:
    waits = Waits()
    with (
        server_at(
            f"http://127.0.0.1:{closed_port.getsockname()[1]}", sleep=waits, ended=lambda: "its process has ended"
        ) as server,
        pytest.raises(ServerUnreachable, match="its process has ended"),
    ):
        server.complete(make_request())
    assert waits == []


def test_an_unknown_host_is_not_tried_again() -> None:
    waits = Waits()
    with server_at("http://nowhere.invalid", sleep=waits) as server, pytest.raises(ServerUnreachable, match="1 attempt"):
        server.complete(make_request())
    assert waits == []


def test_control_c_in_mid_stream_hangs_up_and_comes_out() -> None:
    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with Scripted([[*sse(text("x")), interrupt, HANG]]) as scripted, server_at(scripted.url) as server:
        with pytest.raises(KeyboardInterrupt):
            server.complete(make_request())
        assert scripted.requests[0].hung_up.wait(10)


def test_what_on_delta_raises_hangs_up_and_comes_out() -> None:
    class Enough(Exception):
        pass

    def stop(delta: Delta) -> None:
        raise Enough

    with Scripted([[*sse(text("x")), HANG]]) as scripted, server_at(scripted.url) as server:
        with pytest.raises(Enough):
            server.complete(make_request(), stop)
        assert scripted.requests[0].hung_up.wait(10)


def tree(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for each in kind.__subclasses__():
        yield from tree(each)


def made(kind: type[Exception]) -> Exception:
    if issubclass(kind, httpx.HTTPStatusError):
        return kind("", request=httpx.Request("GET", "http://host"), response=httpx.Response(500))
    if issubclass(kind, httpx.StreamError) and kind is not httpx.StreamError:
        return kind()  # type: ignore[call-arg]  # each of them words itself
    return kind("")


def test_every_fault_of_httpx_is_in_the_table() -> None:
    public = [value for value in vars(httpx).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert public
    assert [kind for kind in public if not issubclass(kind, FAULTS)] == []


@pytest.mark.parametrize("kind", [each for root in FAULTS for each in tree(root) if each.__module__.startswith("httpx")])
@pytest.mark.parametrize("began", [False, True])
def test_every_fault_of_httpx_is_one_of_ours(kind: type[Exception], began: bool) -> None:
    class Broken(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield ONE
            raise made(kind)

    def handler(request: httpx.Request) -> httpx.Response:
        if began:
            return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Broken())
        raise made(kind)

    with server_at("http://host", transport=httpx.MockTransport(handler)) as server:
        with pytest.raises(LoopkitError) as caught:
            server.complete(make_request())
        with pytest.raises(LoopkitError):
            server.metrics()
    assert not str(caught.value).endswith((": ", "None"))
    if began and issubclass(kind, (httpx.NetworkError, httpx.ProtocolError)):
        assert isinstance(caught.value, StreamCut)


def test_a_closed_server_says_so() -> None:
    server = server_at("http://127.0.0.1:9")
    server.close()
    server.close()
    with pytest.raises(ServerUnreachable, match=r"^\S+: this Server was closed. Call serve or connect again$"):
        server.complete(make_request())
    with pytest.raises(ServerUnreachable, match=r"^\S+: this Server was closed. Call serve or connect again$"):
        server.slots()
