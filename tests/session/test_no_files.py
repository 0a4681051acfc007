"""Where a log or a baseline should be there is something else: it is named, and nothing waits for it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loopkit.errors import BaselineError, LogError, SessionIOError, SessionNotFound
from loopkit.ids import SessionId
from loopkit.logs.loading import load
from loopkit.session.salvage import salvage
from loopkit.session.session import Session
from loopkit.session.verify import verify
from tests.session.build import create, group

ID = SessionId("lima")


@pytest.fixture
def session(tmp_path: Path) -> Path:
    with create(tmp_path) as session:
        session.extend(group(session, "Is it light in Lima?"))
        return session.dir


def a_socket(path: Path) -> None:
    """Bound by a short name, for the system's limit is about 100 bytes."""
    with socket.socket(socket.AF_UNIX) as made:
        here = os.getcwd()
        os.chdir(path.parent)
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


KINDS: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a directory": os.mkdir,
    "a socket": a_socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("name", ["0.jsonl", "0.baseline.json"])
def test_what_is_no_regular_file_is_refused(session: Path, make: Callable[[Path], object], name: str) -> None:
    path = session / name
    path.unlink()
    make(path)
    refusing: list[Callable[[], object]] = [
        lambda: Session.open(session.parents[1], ID),
        lambda: Session.read(session.parents[1], ID),
        lambda: salvage(session, SessionId("new")),
    ]
    if name == "0.jsonl":
        refusing.append(lambda: load(session.parents[1]))
    for refused in refusing:
        with pytest.raises((SessionIOError, BaselineError), match="it is not a regular file") as caught:
            refused()
        assert str(path) in str(caught.value)
    (fault,) = verify(session.parents[1]).faults
    assert (fault.path, fault.why.endswith("it is not a regular file")) == (str(path), True)


@pytest.mark.parametrize("target", ["nowhere", "0.jsonl"])
def test_a_link_that_leads_nowhere_is_named(session: Path, target: str) -> None:
    path = session / "0.jsonl"
    path.unlink()
    path.symlink_to(target)
    for refused in (lambda: Session.read(session.parents[1], ID), lambda: load(session.parents[1]), lambda: load(session)):
        with pytest.raises(SessionIOError) as caught:
            refused()
        assert caught.value.path == str(path)
    assert [fault.path for fault in verify(session.parents[1]).faults] == [str(path)]


@pytest.mark.parametrize("name", ["\u0662.jsonl", "\u0660.jsonl", "00.jsonl", "01.jsonl", "-1.jsonl", "1.jsonl~"])
def test_a_name_that_is_no_epochs_is_passed_over(session: Path, name: str) -> None:
    (session / name).write_bytes(b"notes")
    assert len(Session.read(session.parents[1], ID).epochs) == 1
    assert verify(session.parents[1]).ok
    assert len(load(session.parents[1]).epochs) == 1
    with pytest.raises(LogError, match="the format is unknown"):
        load(session / name)


@pytest.mark.parametrize("path", ["a\0b", "a\0*/b", "\ud800", "\ud800*"])
def test_a_path_that_no_system_holds_is_not_there(path: str) -> None:
    with pytest.raises(LogError, match="the path does not exist"):
        load(path)
    with pytest.raises(SessionNotFound):
        verify(path)


def test_a_name_too_long_is_refused_with_it() -> None:
    for refuse in (load, verify):
        with pytest.raises(SessionIOError, match="name too long") as caught:
            refuse("n" * 300)
        assert caught.value.path == "n" * 300


def test_a_home_of_somebody_else_is_refused_with_its_path(session: Path) -> None:
    home = session.parents[1]
    for locked in (home, home / "sessions"):
        with unreadable(locked):
            for refuse in (load, verify):
                with pytest.raises(SessionIOError, match="Permission denied") as caught:
                    refuse(home)
                assert caught.value.path.startswith(str(home))


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """As a user who may not look into it; the superuser may always."""
    user, mode = os.geteuid(), path.stat().st_mode
    path.chmod(0o000)
    try:
        if user == 0:
            os.seteuid(65534)
        yield
    finally:
        os.seteuid(user)
        path.chmod(mode)


def test_directories_that_hold_no_session_are_named_and_left_out(session: Path) -> None:
    home = session.parents[1]
    (session.parent / ".ipynb_checkpoints").mkdir()
    (session.parent / ".DS_Store").touch()
    (session.parent / "left").mkdir()
    with pytest.warns(UserWarning) as warned:
        assert len(load(home).usage) == 1
    assert [str(warning.message).removeprefix(f"{session.parent}/").split(",")[0] for warning in warned] == [
        ".ipynb_checkpoints: its name is not a session id",
        "left: it contains no 0.jsonl",
    ]
    assert {warning.filename for warning in warned} == {__file__}
    (fault,) = verify(home).faults
    assert fault.path == str(session.parent / "left")
