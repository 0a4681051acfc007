"""The system refuses at every call of a session's life: an error that names the path, memory equal to disk, a sound log.

The module that makes a session's system calls gets an ``os`` of its own that counts the calls and fails at one of them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from loopkit.contract.records import Assistant, LogRecord, User
from loopkit.errors import SessionClosed, SessionIOError, SessionNotFound
from loopkit.ids import SessionId
from loopkit.session import disk
from loopkit.session.session import Session
from loopkit.session.verify import verify
from tests.session.build import BASELINE, create, end, filled, group, result

ID = SessionId("lima")
WATCHED = ("open", "mkdir", "chmod", "fchmod", "write", "fsync", "fdatasync", "ftruncate")


class Faulty:
    """The ``os`` module, failing at the calls that ``fails`` says: by name and count."""

    def __init__(self, fails: Callable[[str, int], str | None], watched: Sequence[str] = WATCHED) -> None:
        self.fails, self.watched = fails, watched
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in self.watched:
            return real

        def call(*args: Any, **options: Any) -> Any:
            self.calls.append(name)
            fault = self.fails(name, len(self.calls) - 1)
            if fault == "short":
                fd, data = args
                return real(fd, data[: max(1, len(data) // 3)])
            if fault == "short, then full":
                fd, data = args
                real(fd, data[: len(data) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if fault is not None:
                raise OSError(getattr(errno, fault), os.strerror(getattr(errno, fault)))
            return real(*args, **options)

        return call


def life(home: Path, acknowledged: list[str]) -> Session:
    """One of each thing that writes. What has returned is acknowledged."""
    session = create(home)
    acknowledged.append("create")
    session.extend(group(session, "One?", None, ids=["a", "b"], loss=4))
    acknowledged.append("extend")
    session.append(result(1, "a", "x" * 70_000))
    acknowledged.append("append")
    session.append(result(2, "b"))
    acknowledged.append("append")
    session.append(end())
    acknowledged.append("append")
    carried = [record for record in session.records if isinstance(record, (User, Assistant))][:1]
    session.next_epoch(BASELINE, carried)
    acknowledged.append("next_epoch")
    session.extend(group(session, None))
    acknowledged.append("extend")
    return session


def count_calls(home: Path) -> list[str]:
    counting = Faulty(lambda name, at: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "os", counting)
        life(home, []).close()
    return counting.calls


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names of all system calls of a whole life, in order."""
    made = count_calls(tmp_path_factory.mktemp("counting"))
    assert made.count("write") == 9
    assert made.count("fdatasync") == 5
    return made


FAULTS = {
    "open": ["EMFILE", "EACCES"],
    "mkdir": ["ENOSPC"],
    "chmod": ["EPERM"],
    "fchmod": ["EPERM"],
    "write": ["ENOSPC", "EIO", "short, then full"],
    "fsync": ["EIO"],
    "fdatasync": ["EIO", "ENOSPC"],
}


def check_after_fault(home: Path, acknowledged: list[str], session: Session | None) -> None:
    """What is on disk is sound, holds all that was acknowledged, and can be gone on with."""
    if "create" not in acknowledged:
        with pytest.raises(SessionNotFound):
            Session.open(home, ID)
        create(home).close()
        return
    if session is not None:
        assert [list(epoch.records) for epoch in Session.read(home, ID).epochs] == [
            list(epoch.records) for epoch in session.epochs
        ]
        session.close()
    assert verify(home).ok
    with Session.open(home, ID) as again:
        if again.pending:
            for call in again.pending:
                again.append(result(again.next_call(), call.id))
        if again.ended:
            again.next_epoch(BASELINE)
        again.extend(group(again, "Going on?"))
    assert verify(home).ok


def test_a_failure_of_any_call_is_named_and_leaves_a_sound_log(tmp_path: Path, calls: list[str]) -> None:
    for at, name in enumerate(calls):
        for number, fault in enumerate(FAULTS[name]):
            home = tmp_path / f"{at}-{number}"
            home.mkdir()
            faulty = Faulty(lambda _, count, at=at, fault=fault: fault if count == at else None)  # type: ignore[misc]
            acknowledged: list[str] = []
            made: list[Session] = []
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(disk, "os", faulty)
                real = Session.__init__

                def remember(self: Session, *args: Any, made: list[Session] = made, real: Any = real) -> None:
                    real(self, *args)
                    made.append(self)

                patch.setattr(Session, "__init__", remember)
                with pytest.raises(SessionIOError) as caught:
                    life(home, acknowledged)
            assert str(tmp_path) in str(caught.value), (at, name, fault)
            assert caught.value.path.startswith(str(home)) or str(home).startswith(caught.value.path), (at, name, fault)
            done = "create" in acknowledged
            if not done and made:
                made[0].close()
            if not done and Session.dir_for(home, ID).exists():
                # The session was made whole, and only its opening failed: it is there, and opens.
                assert verify(home).ok
                acknowledged.append("create")
            check_after_fault(home, acknowledged, made[0] if made and done else None)


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "os", Faulty(lambda name, at: "short" if name == "write" else None))
    with life(tmp_path, []) as session:
        assert list(Session.read(tmp_path, ID).records) == list(session.records)
    assert verify(tmp_path).ok


def test_a_write_of_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with create(tmp_path) as session:
        faulty = Faulty(lambda name, at: None)
        monkeypatch.setattr(disk, "os", faulty)
        faulty.__dict__["write"] = lambda fd, data: 0
        with pytest.raises(SessionIOError, match="wrote 0 bytes"):
            session.append(end())
        del faulty.__dict__["write"]
        session.append(end())


def test_after_a_failed_write_the_session_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with create(tmp_path) as session:
        records = group(session, "One?")
        with monkeypatch.context() as patch:
            patch.setattr(disk, "os", Faulty(lambda name, at: "short, then full" if name == "write" else None))
            with pytest.raises(SessionIOError, match=r"0\.jsonl: cannot append: No space left on device"):
                session.extend(records)
        assert len(session.records) == 1
        session.extend(records)
    assert len(Session.read(tmp_path, ID).records) == 4


def test_after_a_failed_sync_the_session_must_be_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = create(tmp_path)
    faulty = Faulty(lambda name, at: "EIO" if name == "fdatasync" and at == 1 else None)
    with monkeypatch.context() as patch:
        patch.setattr(disk, "os", faulty)
        with pytest.raises(SessionIOError, match=r"0\.jsonl: cannot sync"):
            session.append(end())
        assert faulty.calls == ["write", "fdatasync", "ftruncate", "fdatasync"]
    with pytest.raises(SessionClosed, match="a sync failed"):
        session.append(end())
    assert len(session.records) == 1
    with Session.open(tmp_path, ID) as again:
        assert len(again.records) == 1
        again.append(end())


def test_where_the_log_cannot_be_cut_back_the_session_refuses_further_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = create(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(disk, "os", Faulty(lambda name, at: {"write": "short, then full", "ftruncate": "EIO"}.get(name)))
        with pytest.raises(SessionIOError, match="cannot append"):
            session.append(end())
    for _ in range(2):
        with pytest.raises(SessionClosed, match="could not be cut back"):
            session.append(end())
    assert len(session.records) == 1
    with pytest.raises(Exception, match="does not end in a line feed"):
        Session.open(tmp_path, ID)
    with pytest.raises(SessionClosed):
        session.next_epoch(BASELINE)


def test_a_log_that_something_else_made_longer_is_not_gone_on_with(tmp_path: Path) -> None:
    """Nothing of it is cut away: what stands there is not ours."""
    create(tmp_path).close()
    path = Session.dir_for(tmp_path, ID) / "0.jsonl"
    size = path.stat().st_size
    with pytest.raises(SessionIOError, match="Another program writes to the file"):
        disk.AppendFile(path, size - 1)
    assert path.stat().st_size == size


@pytest.mark.parametrize("call", ["write", "fdatasync"])
@pytest.mark.parametrize("before", [True, False])
def test_an_interrupt_in_a_write_leaves_memory_equal_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, *, before: bool
) -> None:
    """Ctrl-C raises between any two steps; the record is then in both places or in neither, and the session goes on."""
    session = create(tmp_path)
    interrupted = False

    class Interrupting(Faulty):
        def __getattr__(self, name: str) -> Any:
            real = getattr(os, name)

            def step(*args: Any) -> Any:
                nonlocal interrupted
                if name == call and not interrupted:
                    interrupted = True
                    if not before:
                        real(*args)
                    raise KeyboardInterrupt
                return real(*args)

            return step if name == call else real

    with monkeypatch.context() as patch:
        patch.setattr(disk, "os", Interrupting(lambda name, at: None))
        with pytest.raises(KeyboardInterrupt):
            session.extend(group(session, "One?"))
        assert list(Session.read(tmp_path, ID).records) == list(session.records)
    session.extend(group(session, "Two?"))
    session.close()
    assert verify(tmp_path).ok
    assert len(Session.read(tmp_path, ID).records) == 4


def test_an_interrupt_while_memory_is_written_takes_the_record_back(tmp_path: Path) -> None:
    class Interrupted(list[LogRecord]):
        def extend(self, items: Iterable[LogRecord]) -> None:
            super().extend(items)
            raise KeyboardInterrupt

    session = create(tmp_path)
    writer = session._writer
    plain = writer.state.records
    writer.state = writer.state._replace(records=Interrupted(plain))
    with pytest.raises(KeyboardInterrupt):
        session.append(end())
    assert len(writer.state.records) == 1
    writer.state = writer.state._replace(records=plain)
    session.append(end())
    session.close()
    assert len(Session.read(tmp_path, ID).records) == 2


def test_an_interrupt_of_the_undoing_is_undone_by_the_next_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = create(tmp_path)

    def fails(name: str, at: int) -> str | None:
        if name == "ftruncate":
            raise KeyboardInterrupt
        return "short, then full" if name == "write" else None

    with monkeypatch.context() as patch:
        patch.setattr(disk, "os", Faulty(fails))
        with pytest.raises(KeyboardInterrupt):
            session.append(end())
    session.append(end())
    session.close()
    assert len(Session.read(tmp_path, ID).records) == 2


def test_a_copy_of_many_epochs_is_no_session_until_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ``0.jsonl`` there is no session, so that file comes last: a crash before it leaves nothing that opens."""
    made: list[str] = []

    class Watching(Faulty):
        def __getattr__(self, name: str) -> Any:
            real = getattr(os, name)

            def call(path: Path, flags: int, *mode: int) -> int:
                if flags & os.O_CREAT:
                    made.append(path.name)
                return int(real(path, flags, *mode))

            return call if name == "open" else real

    with filled(tmp_path) as session:
        monkeypatch.setattr(disk, "os", Watching(lambda name, at: None))
        session.fork(1, SessionId("fork")).close()
    assert made == ["1.baseline.json", "1.jsonl", "0.baseline.json", "0.jsonl"]
