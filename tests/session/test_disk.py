"""What the system's calls leave on the disk, and in which order; what they may never touch."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loopkit.errors import SessionIOError
from loopkit.ids import SessionId
from loopkit.session import disk
from loopkit.session.line_file import LineFile
from loopkit.session.salvage import salvage
from loopkit.session.session import Session
from tests.session.build import BASELINE, create, digests, end, group

ID = SessionId("lima")


def test_a_record_is_on_disk_before_it_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory: list[int] = []
    sync = disk._sync_data

    def synced(fd: int) -> None:
        in_memory.append(len(session.records))
        sync(fd)
        in_memory.append(len(session.records))

    with create(tmp_path) as session:
        monkeypatch.setattr(disk, "_sync_data", synced)
        for number in range(3):
            session.extend(group(session, f"{number}?"))
            assert list(Session.read(tmp_path, ID).records) == list(session.records)
    assert in_memory == [1, 1, 4, 4, 7, 7]


def test_what_is_made_is_synced_and_so_is_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose directory was never synced may be gone after a power cut, however well its bytes were."""
    paths: dict[int, Path] = {}
    made: list[Path] = []
    bytes_of, names_in = set[Path](), set[Path]()

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
            fd = os.open(path, flags, mode)
            paths[fd] = path
            if flags & os.O_CREAT:
                self.new(path)
                bytes_of.add(path)
            return fd

        def mkdir(self, path: Path, mode: int) -> None:
            os.mkdir(path, mode)
            self.new(path)

        def new(self, path: Path) -> None:
            made.append(path)
            names_in.add(path.parent)

        def fsync(self, fd: int) -> None:
            os.fsync(fd)
            bytes_of.discard(paths[fd])
            names_in.discard(paths[fd])

    monkeypatch.setattr(disk, "os", Watched())
    with create(tmp_path / "home") as session:
        assert (len(made), bytes_of, names_in) == (5, set(), set())
        session.append(end())
        session.next_epoch(BASELINE)
        assert (len(made), bytes_of, names_in) == (7, set(), set())


def test_a_log_that_stands_where_the_next_epochs_belongs_is_left_alone(tmp_path: Path) -> None:
    """Nothing is overwritten, and what a failed attempt takes back is only what it made."""
    with create(tmp_path) as session:
        session.append(end())
        strange = session.dir / "1.jsonl"
        strange.write_bytes(b"somebody's")
        before = digests(session.dir)
        with pytest.raises(SessionIOError, match=r"1\.jsonl: cannot begin the epoch: the file already exists\. Another program"):
            session.next_epoch(BASELINE)
        assert digests(session.dir) == before
        strange.unlink()
        session.next_epoch(BASELINE)
    assert len(Session.read(tmp_path, ID).epochs) == 2


def test_a_new_file_never_replaces_another(tmp_path: Path) -> None:
    path = tmp_path / "0.jsonl"
    path.write_bytes(b"somebody's")
    with pytest.raises(SessionIOError, match="cannot create: File exists"):
        disk.create_file(path, b"")
    assert path.read_bytes() == b"somebody's"


def test_a_home_that_is_made_for_another_log_is_its_owners_alone(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        LineFile(tmp_path / "home/replays/x.jsonl").write(b'{"kind":"replay"}')
    finally:
        os.umask(umask)
    made = sorted((tmp_path / "home").rglob("*"))
    assert [oct(path.stat().st_mode & 0o777) for path in (tmp_path / "home", *made)] == ["0o700", "0o700", "0o600"]


def test_on_windows_a_session_can_only_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(tmp_path).close()
    monkeypatch.setattr(disk, "sys", SimpleNamespace(platform="win32"))
    session = Session.read(tmp_path, ID)
    assert len(session.records) == 1
    for write in (
        lambda: Session.open(tmp_path, ID),
        lambda: create(tmp_path, "other"),
        lambda: session.fork(0, SessionId("other")),
        lambda: salvage(session.dir, SessionId("other")),
    ):
        with pytest.raises(SessionIOError, match=r"on Windows sessions can only be read\. Use Session\.read, or work in WSL"):
            write()
    assert [path.name for path in session.dir.parent.iterdir()] == [ID]
