"""What others do to an open session's files and to the working directory, and what the session does then."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from loopkit.errors import SessionClosed, SessionIOError
from loopkit.session.disk import AppendFile, DirectoryLock
from tests.session.build import create, end, group


def appended(log: Path) -> None:
    with log.open("ab") as file:
        file.write(b"another's\n")


CHANGES: list[tuple[str, Callable[[Path], object]]] = [
    ("removed with its directory", lambda log: shutil.rmtree(log.parent)),
    ("removed", lambda log: log.unlink()),
    ("cut", lambda log: os.truncate(log, 10)),
    ("longer", appended),
]


@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_a_log_that_something_else_changed_takes_no_more_records_and_is_left_alone(
    name: str, change: Callable[[Path], object], tmp_path: Path
) -> None:
    session = create(tmp_path)
    session.extend(group(session, "One."))
    log, more = session.dir / "0.jsonl", group(session, "Two.")
    change(log)
    after = log.read_bytes() if log.exists() else None
    with pytest.raises(SessionIOError, match="Another program changes the session's files"):
        session.extend(more)
    assert (log.read_bytes() if log.exists() else None) == after, name
    with pytest.raises(SessionClosed, match="another program changed its log"):
        session.extend(more)
    session.close()


def test_a_relative_home_stays_where_it_was_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    monkeypatch.chdir(one)
    with create(Path("runs")) as session:
        monkeypatch.chdir(two)
        with create(Path("runs")) as other:
            session.append(end())
            session.next_epoch(session.baseline)
            assert sorted(path.name for path in other.dir.iterdir()) == ["0.baseline.json", "0.jsonl"]
    assert sorted(path.name for path in (one / "runs" / "sessions" / "lima").glob("*.jsonl")) == ["0.jsonl", "1.jsonl"]


@pytest.mark.parametrize("kind", ["file", "lock"])
def test_a_close_that_is_interrupted_and_called_again_closes_nothing_of_others(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"")
    held: AppendFile | DirectoryLock = AppendFile(path, 0) if kind == "file" else DirectoryLock(tmp_path)
    close = held.close if isinstance(held, AppendFile) else held.release
    real = os.close

    def interrupted(fd: int) -> None:
        real(fd)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("loopkit.session.disk.os.close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            close()
    another = os.open(path, os.O_RDONLY)  # gets the number that was given back
    close()
    os.fstat(another)
    os.close(another)
