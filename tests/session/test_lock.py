"""One writer: the second is refused, wherever it is, and the lock goes with its process."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from loopkit.errors import SessionClosed, SessionLocked
from loopkit.ids import SessionId
from loopkit.session.session import Session
from tests.session.build import create, digests, end, group

ID = SessionId("lima")
ROOT = Path(__file__).parents[2]
HOLD = """
import sys
from loopkit.session.session import Session
from loopkit.errors import SessionLocked
try:
    session = Session.open(sys.argv[1], "lima")
except SessionLocked as error:
    print("locked", error.pid)
else:
    print("open", flush=True)
    sys.stdin.read()
"""


def holder(home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


def test_a_second_session_in_this_process_is_refused(tmp_path: Path) -> None:
    with create(tmp_path) as session:
        with pytest.raises(SessionLocked, match=f"open for writing in process {os.getpid()}"):
            Session.open(tmp_path, ID)
        session.extend(group(session, "Hi."))
    with Session.open(tmp_path, ID) as session:
        assert len(session.records) == 4


def test_a_second_process_is_refused_and_told_who(tmp_path: Path) -> None:
    with create(tmp_path), holder(tmp_path) as other:
        assert other.communicate("")[0] == f"locked {os.getpid()}\n"


def test_a_process_that_was_killed_leaves_no_lock(tmp_path: Path) -> None:
    create(tmp_path).close()
    with holder(tmp_path) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(SessionLocked) as caught:
            Session.open(tmp_path, ID)
        assert caught.value.pid == other.pid
        other.send_signal(signal.SIGKILL)
        other.wait()
        Session.open(tmp_path, ID).close()


def test_a_forked_child_neither_writes_nor_keeps_the_lock(tmp_path: Path) -> None:
    session = create(tmp_path)
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            session.append(end())
        except SessionClosed as error:
            code = 0 if "forked" in str(error) else 2
        finally:
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            os._exit(code)
    os.read(ready[0], 1)
    before = digests(session.dir)
    with pytest.raises(SessionLocked):
        Session.open(tmp_path, ID)
    session.close()
    Session.open(tmp_path, ID).close()
    os.write(go[1], b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for fd in (*ready, *go):
        os.close(fd)
    assert digests(session.dir) == before


def test_a_session_that_nobody_holds_any_more_is_free(tmp_path: Path) -> None:
    create(tmp_path)
    gc.collect()
    with Session.open(tmp_path, ID) as session:
        assert (session.closed, len(session.records)) == ("", 1)


def test_a_refused_open_holds_nothing(tmp_path: Path) -> None:
    with create(tmp_path) as session:
        path = session.dir / "0.jsonl"
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    for _ in range(3):
        with pytest.raises(Exception, match="line feed"):
            Session.open(tmp_path, ID)
    path.write_bytes(data)
    Session.open(tmp_path, ID).close()


def test_of_many_threads_one_gets_it(tmp_path: Path) -> None:
    create(tmp_path).close()
    outcome: list[Session | None] = []
    start = threading.Barrier(16)

    def attempt() -> None:
        start.wait()
        try:
            outcome.append(Session.open(tmp_path, ID))
        except SessionLocked:
            outcome.append(None)

    threads = [threading.Thread(target=attempt) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [session for session in outcome if session is not None]
    winner.close()
