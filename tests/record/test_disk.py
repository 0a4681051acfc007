"""A disk that refuses: the traffic goes on, the person is logged, and the recording ends behind a whole line."""

from __future__ import annotations

import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from loopkit import record
from loopkit.session.verify import verify
from tests.record.socket_peers import ANSWER, ScriptedServer, dial, port_of, post, read_all, recorded

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)


@contextmanager
def full(size: int) -> Iterator[None]:
    """The limit of a file's size stands for the disk's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_full_disk_does_not_stop_the_proxy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def ask(connection: socket.socket) -> None:
        with connection:
            connection.sendall(post(port_of(proxy.url)))
            assert read_all(connection) == WHOLE

    with ScriptedServer((1, [WHOLE])) as server, record.proxy(server.url, tmp_path) as proxy:
        ask(dial(proxy.url))
        proxy._recorder._writer.submit(lambda: None).result()
        with full(proxy.path.stat().st_size + 100):
            ask(dial(proxy.url))
            ask(dial(proxy.url))
            proxy._recorder._writer.submit(lambda: None).result()
        ask(dial(proxy.url))
        proxy.close()
        assert repr(proxy).endswith("recorded 2, not recorded 2")
        assert [each.request for each in recorded(proxy.path)] == [1, 4]
    logged = [message for message in caplog.messages if "was passed on but not recorded" in message]
    assert [message.split(" (")[0] for message in logged] == ["Request 2", "Request 3"]
    assert all(f"{proxy.path}: cannot append: File too large" in message for message in logged)
    assert verify(tmp_path).ok


def test_a_home_that_goes_away_does_not_stop_the_transport(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    transport = record.transport(tmp_path / "home", httpx.MockTransport(lambda _: httpx.Response(200, content=ANSWER)))
    with httpx.Client(transport=transport) as client:
        (tmp_path / "home" / "recordings").rmdir()
        (tmp_path / "home" / "recordings").touch()
        assert client.post("http://host/v1/messages", json={"messages": []}).content == ANSWER
        assert "recordings: cannot make the directory: File exists" in caplog.text
        (tmp_path / "home" / "recordings").unlink()
        assert client.post("http://host/v1/messages", json={"messages": []}).content == ANSWER
    assert [each.request for each in recorded(transport.path)] == [2]


def test_after_a_failed_sync_the_recording_goes_on_in_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = record.transport(tmp_path, httpx.MockTransport(lambda _: httpx.Response(200, content=ANSWER)))
    with httpx.Client(transport=transport) as client:
        client.post("http://host/v1/messages", json={"messages": []})
        before = transport.path
        with monkeypatch.context() as broken:
            broken.setattr("os.fdatasync", lambda _: (_ for _ in ()).throw(OSError(5, "Input/output error")))
            client.post("http://host/v1/messages", json={"messages": []})
        client.post("http://host/v1/messages", json={"messages": []})
    assert [each.request for each in recorded(transport.path)] == [3]
    assert transport.path != before
    assert verify(tmp_path).ok


def test_verify_sees_a_changed_byte_of_a_recording(tmp_path: Path) -> None:
    transport = record.transport(tmp_path, httpx.MockTransport(lambda _: httpx.Response(200, content=ANSWER)))
    with httpx.Client(transport=transport) as client:
        client.post("http://host/v1/messages", json={"messages": []})
    assert verify(tmp_path).ok
    transport.path.write_bytes(transport.path.read_bytes().replace(b"messages", b"massages", 1))
    (fault,) = verify(tmp_path).faults
    assert (fault.path, fault.line) == (str(transport.path), 1)
