"""The proxy at raw sockets: bytes unchanged both ways, at once, and each side's hang-up passed on."""

from __future__ import annotations

import logging
import socket
import ssl
import struct
import subprocess
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopkit import record
from loopkit.errors import InvalidConfig, SessionIOError
from loopkit.record.proxy import Proxy
from tests.record.socket_peers import ANSWER, BODY, ScriptedServer, chunked, dial, port_of, post, read_all, read_until, recorded
from tests.server.scripted import NO_ADDRESSES

WHOLE = b"HTTP/1.1 200 OK\r\nSERVER: X\r\nContent-Length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
CHUNKED = b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked([ANSWER[:7], ANSWER[7:]])
ENDING = b"HTTP/1.1 200 OK\r\n\r\n" + ANSWER
POST = b"POST /v1/chat/completions?key=k HTTP/1.1\r\nhost:127.0.0.1:1\r\nX-a:  1 \r\nx-A: \xff\r\n"
LENGTH = POST + b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
IN_CHUNKS = POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunked([BODY[:1], BODY[1:30], BODY[30:]])
GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost:80\r\n\r\n"
CASES = {
    "a length": ([LENGTH], [WHOLE], 1),
    "chunks": ([IN_CHUNKS], [CHUNKED], 1),
    "an answer that ends with the connection": ([LENGTH], [ENDING], 1),
    "one after the other": ([LENGTH, GET, IN_CHUNKS], [WHOLE, b"HTTP/1.1 204 No\r\n\r\n", CHUNKED], 2),
    "no body though it says so": ([GET.replace(b"GET", b"HEAD"), LENGTH], [WHOLE[: -len(ANSWER)], WHOLE], 1),
    "on with it": (
        [POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY), BODY],
        [b"HTTP/1.1 100 Continue\r\n\r\n", WHOLE],
        1,
    ),
    "an upgrade": (
        [b"GET /x HTTP/1.1\r\nHost: [::1]\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n", b"\0\1 no HTTP\n"],
        [b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n", b"\r\n\r\n\xff"],
        0,
    ),
    "no HTTP": ([b"\x16\x03\x01\r\n\r\n"], [b"\xff\xfe"], 0),
    "HTTP/1.0": ([b"POST /completion HTTP/1.0\r\nContent-Length: 14\r\n\r\n" + b'{"prompt":"a"}'], [ENDING], 1),
    "not a completion": ([LENGTH.replace(b"chat/completions", b"embeddings")], [WHOLE], 0),
}


def named(sent: bytes, upstream: str) -> bytes:
    """The bytes that the server must get: the very ones, but for the name of the host."""
    name = upstream.removeprefix("http://").encode()
    for host in (b"127.0.0.1:1\r", b"localhost:80\r", b"[::1]\r"):
        sent = sent.replace(host, name + b"\r", 1) if sent.lower().count(b"host:") == 1 else sent.replace(host, name + b"\r")
    return sent


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_unchanged_both_ways(name: str, tmp_path: Path) -> None:
    asked, answers, completions = CASES[name]
    expected: list[bytes] = []
    script = []
    with ScriptedServer() as nobody:
        size_of_name = len(nobody.url.removeprefix("http://"))
    for sent, answer in zip(asked, answers, strict=True):
        expected.append(named(sent, "http://" + "x" * size_of_name))
        script.append((sum(map(len, expected)), [answer]))
    with ScriptedServer(*script) as server, record.proxy(server.url, tmp_path) as proxy, dial(proxy.url) as client:
        received = b""
        for index, sent in enumerate(asked):
            client.sendall(sent)
            if index + 1 < len(asked):
                received += read_until(client, answers[index])
        received += read_all(client)
        assert received == b"".join(answers)
        assert bytes(server.received[0]) == named(b"".join(asked), server.url)
        proxy.close()
        assert (proxy.recorded, proxy.missed) == (completions, 0)
        if completions:
            assert [each.ended for each in recorded(proxy.path)] == ["whole"] * completions
            assert recorded(proxy.path)[0].body in (BODY.decode(), '{"prompt":"a"}')


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_however_the_bytes_are_cut(data: st.DataObject, tmp_path: Path) -> None:
    """Requests sent at once, in any pieces, and answers likewise."""
    requests = data.draw(st.lists(st.sampled_from([LENGTH, IN_CHUNKS, GET]), min_size=1, max_size=4))
    answers = [data.draw(st.sampled_from([WHOLE, CHUNKED])) for _ in requests]
    asked, answered = b"".join(requests), b"".join(answers)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(asked)), max_size=6)))
    back = sorted(data.draw(st.lists(st.integers(0, len(answered)), max_size=6)))
    pieces = [asked[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
    replies = [answered[a:b] for a, b in zip([0, *back], [*back, None], strict=True)]
    with ScriptedServer() as nobody:
        size = len(b"".join(named(each, nobody.url) for each in requests))
    with ScriptedServer((size, replies)) as server, record.proxy(server.url, tmp_path) as proxy, dial(proxy.url) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            client.sendall(piece)
        assert read_all(client) == answered
        assert bytes(server.received[0]) == b"".join(named(each, server.url) for each in requests)
        proxy.close()
        assert proxy.recorded == len(requests) - requests.count(GET)


def test_the_first_byte_arrives_before_the_last_is_written(tmp_path: Path) -> None:
    begun = threading.Event()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    event = b'data: {"choices":[{"delta":{"content":"Y"}}]}\n\n'
    last = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":4}}\n\ndata: [DONE]\n\n'
    first = head + chunked([event]).removesuffix(b"0\r\n\r\n")
    with (
        ScriptedServer((1, [first, lambda: begun.wait(30), chunked([last])])) as server,
        record.proxy(server.url, tmp_path) as proxy,
    ):
        with dial(proxy.url) as client:
            client.sendall(post(port_of(proxy.url)))
            assert read_until(client, event + b"\r\n") == first  # the server has not gone on
            begun.set()
            assert read_all(client) == chunked([last])
        proxy.close()
        (one,) = recorded(proxy.path)
        assert one.usage.prompt_tokens == 4
        assert one.usage.ttft_ms is not None
        assert one.usage.ttft_ms < one.elapsed_ms


def test_a_request_is_handed_on_as_it_comes(tmp_path: Path) -> None:
    got = threading.Event()
    with ScriptedServer((200, [got.set]), (300, [WHOLE])) as server, record.proxy(server.url, tmp_path) as proxy:
        with dial(proxy.url) as client:
            whole = post(port_of(proxy.url), "/v1/chat/completions", b'{"prompt":"' + b"a" * 200 + b'"}')
            client.sendall(whole[:250])
            assert got.wait(30)
            client.sendall(whole[250:])
            assert read_all(client) == WHOLE


@pytest.mark.parametrize("framing", [b"", b"Transfer-Encoding: chunked\r\n"])
def test_a_client_that_hangs_up_is_seen_by_the_server(framing: bytes, tmp_path: Path) -> None:
    begin = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + framing + b"\r\n9\r\ndata: {}\n\n"
    with ScriptedServer((1, [begin]), close=False) as server, record.proxy(server.url, tmp_path) as proxy:
        with dial(proxy.url) as client:
            client.sendall(post(port_of(proxy.url)))
            read_until(client, b"\n\n")
        assert server.ended.wait(30)
        latest = time.monotonic() + 30
        while not proxy.recorded:  # it is, as soon as the server has hung up too
            assert time.monotonic() < latest
        assert [each.ended for each in recorded(proxy.path)] == ["hung_up"]


@pytest.mark.parametrize("reset", [False, True])
def test_a_server_that_breaks_off_is_seen_by_the_client(reset: bool, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with record.proxy(url, tmp_path) as proxy, dial(proxy.url) as client:
            client.sendall(post(port_of(proxy.url)))
            connection, _ = listener.accept()
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf")
            assert read_until(client, b"half").endswith(b"half")
            if reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            if reset:
                with pytest.raises(ConnectionResetError):
                    client.recv(1)
            else:
                assert client.recv(1) == b""
            proxy.close()
            assert [(each.status, each.ended) for each in recorded(proxy.path)] == [(200, "cut")]


def test_several_at_once_each_get_their_own(tmp_path: Path) -> None:
    together = threading.Barrier(6)
    with ScriptedServer((300, [lambda: together.wait(30), WHOLE])) as server, record.proxy(server.url, tmp_path) as proxy:

        def ask(number: int) -> None:
            with dial(proxy.url) as client:
                client.sendall(post(port_of(proxy.url), "/completion", b'{"prompt":"%b"}' % (b"%d" % number * 300)))
                got.append(read_all(client))

        got: list[bytes] = []
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert got == [WHOLE] * 6
        proxy.close()
        assert {each.body[11] for each in recorded(proxy.path)} == set("012345")
        assert [each.request for each in recorded(proxy.path)] == [1, 2, 3, 4, 5, 6]


def test_a_server_over_tls_is_reached_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(make, cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    got: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            connection, _ = listener.accept()
            with context.wrap_socket(connection, server_side=True) as secure:
                got.append(read_until(secure, BODY))
                secure.sendall(WHOLE)
                got.append(secure.recv(1))

        thread = threading.Thread(target=answer)
        thread.start()
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        with record.proxy(f"https://localhost:{port}/api/v1", tmp_path) as proxy, dial(proxy.url) as client:
            assert proxy.url.endswith("/api/v1")
            client.sendall(LENGTH)
            assert read_until(client, ANSWER) == WHOLE
            client.close()
            thread.join(30)  # it has seen the hang-up
            proxy.close()
            assert got == [LENGTH.replace(b"127.0.0.1:1", f"localhost:{port}".encode()), b""]
            assert proxy.recorded == 1


def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedServer((1, [b"no TLS"])) as server, record.proxy(server.url.replace("http", "https"), tmp_path) as proxy:
        with dial(proxy.url) as client:
            client.sendall(LENGTH)
            assert read_all(client).startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
    assert "Cannot connect to" in caplog.text


def test_a_server_that_is_not_there_is_a_502(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedServer() as gone:
        pass
    with record.proxy(gone.url, tmp_path) as proxy, dial(proxy.url) as client:
        client.sendall(LENGTH)
        answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
    assert f"loopkit record: Cannot connect to {gone.url}: ".encode() in answer
    assert "Cannot connect to" in caplog.text
    assert list((tmp_path / "recordings").iterdir()) == []


@pytest.mark.parametrize("host", ["evil.example:80", "127.0.0.1.evil.example", "localhost@evil"])
def test_a_page_that_has_made_its_name_point_here_is_refused(host: str, tmp_path: Path) -> None:
    with ScriptedServer(close=False) as server, record.proxy(server.url, tmp_path) as proxy, dial(proxy.url) as client:
        client.sendall(LENGTH.replace(b"127.0.0.1:1", host.encode()))
        assert read_all(client).startswith(b"HTTP/1.1 421 Misdirected Request\r\n")
        assert server.ended.wait(30)
        assert server.received == [b""]


def test_nothing_listens_beyond_loopback(tmp_path: Path) -> None:
    with record.proxy("http://localhost:1", tmp_path) as proxy:
        port = port_of(proxy.url)
        listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        where = [row[1].split(":")[0] for row in listening if row[3] == "0A" and int(row[1].split(":")[1], 16) == port]
        assert where == ["0100007F"]
        with pytest.raises(InvalidConfig, match=f"port: cannot listen on 127.0.0.1:{port}: Address already in use"):
            record.proxy("http://localhost:1", tmp_path, port=port)


@pytest.mark.parametrize(
    "url", [*NO_ADDRESSES, "ftp://host", "host:8080", "http://", "http://ann:secret@host", "http://host?key=secret"]
)
def test_an_address_that_is_none_is_refused_without_repeating_it(url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig) as caught:
        record.proxy(url, tmp_path)
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "recordings").exists()


@pytest.mark.parametrize("home", [5, None, b"runs", "\0"])
def test_a_home_that_is_no_path_is_named(home: Any) -> None:
    for begin in (record.transport, partial(record.proxy, "http://localhost:1")):
        with pytest.raises(InvalidConfig, match=r"home: expected a path; got "):
            begin(home)


@pytest.mark.parametrize("port", ["80", None, -1, 1 << 16])
def test_a_port_that_is_none_is_named(port: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="port: "):
        record.proxy("http://localhost:1", tmp_path, port=port)


def test_a_home_that_takes_nothing_is_known_before_anything_passes(tmp_path: Path) -> None:
    (tmp_path / "recordings").touch()
    with pytest.raises(SessionIOError, match="recordings: cannot make the directory: File exists"):
        record.proxy("http://localhost:1", tmp_path)
    with pytest.raises(SessionIOError, match="recordings: cannot make the directory: File exists"):
        record.transport(tmp_path)


def ask(proxy: Proxy, request: bytes) -> bytes:
    with dial(proxy.url) as client:
        client.sendall(request)
        return read_all(client)


def test_keys_are_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secrets = [f"Authorization: Bearer {'s3cr3t'}", "X-Api-Key: s3cr3t", "Cookie: a=s3cr3t", "Proxy-Authorization: s3cr3t"]
    refused = b'HTTP/1.1 401 No\r\nSet-Cookie: s3cr3t\r\nContent-Length: 28\r\n\r\n{"error":{"message":"s3cr3t"}}'[:-2]
    with ScriptedServer((1, [refused])) as server, record.proxy(server.url, tmp_path) as proxy:
        port = port_of(proxy.url)
        ask(proxy, post(port, "/v1/chat/completions?api-key=s3cr3t", BODY, *secrets))
        ask(proxy, post(port, "/v1/chat/completions?api-key=s3cr3t", b"no JSON", *secrets))
        proxy.close()
        shown = repr(proxy) + proxy._repr_html_() + caplog.text
        (one,) = recorded(proxy.path)
    assert (one.path, one.status) == ("/v1/chat/completions", 401)
    assert "was passed on but not recorded" in caplog.text
    assert "s3cr3t" not in shown
    assert all(b"s3cr3t" not in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


@pytest.mark.parametrize("answer", [WHOLE, CHUNKED, ENDING])
def test_a_repr_counts_a_complete_response_as_recorded_at_once(answer: bytes, tmp_path: Path) -> None:
    gate = threading.Event()
    with ScriptedServer((1, [lambda: gate.wait(30), answer])) as server, record.proxy(server.url, tmp_path) as proxy:
        for number in range(1, 11):
            gate.clear()
            with dial(proxy.url) as client:
                client.sendall(post(port_of(proxy.url)))
                latest = time.monotonic() + 30
                while ", in progress 1" not in repr(proxy):
                    assert time.monotonic() < latest
                gate.set()
                assert read_until(client, answer[-5:]).endswith(answer[-5:])
                if answer is ENDING:
                    assert read_all(client) == b""
                assert repr(proxy).endswith(f"recorded {number}")
