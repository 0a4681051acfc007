"""The system calls of a session: new files, appends that are whole or undone, and the lock of the one writer.

Files are made with mode 0600 and directories with 0700, whatever the umask, and both are synced with the directory that names
them. Knows nothing of records: bytes go in, and a ``SessionIOError`` with the path comes out where the system refuses.
Linux in full, macOS as far as it goes; on Windows sessions can only be read.
"""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

from loopkit.errors import SessionExists, SessionIOError, SessionLocked, describe

if sys.platform != "win32":
    import fcntl

__all__ = [
    "AppendFile",
    "DirectoryLock",
    "create_file",
    "make_directory",
    "need_writing",
    "remove",
    "remove_file",
    "sync_directory",
]


@contextlib.contextmanager
def _naming(path: Path, doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SessionIOError(str(path), doing, describe(error)) from error


def need_writing(path: Path) -> None:
    """Refuse where sessions can only be read."""
    if sys.platform == "win32":
        raise SessionIOError(
            str(path), "open for writing", "on Windows sessions can only be read", "Use Session.read, or work in WSL"
        )


def _write_whole(fd: int, data: bytes) -> None:
    while data:
        written = os.write(fd, data)
        if written == 0:
            raise OSError(0, "the system wrote nothing and did not say why")
        data = data[written:]


def _sync_data(fd: int) -> None:
    if sys.platform == "darwin":  # has no fdatasync
        os.fsync(fd)
    else:
        os.fdatasync(fd)


def make_directory(path: Path) -> None:
    """Make a directory that must not exist, and those above it that do not.

    Raises
    ------
    SessionExists
        When something stands there.
    """
    for parent in reversed(path.parents):
        with _naming(parent, "make the directory"), contextlib.suppress(FileExistsError):
            if not parent.exists():
                _make_directory(parent)
    with _naming(path, "make the directory"):
        try:
            _make_directory(path)
        except FileExistsError:
            raise SessionExists(str(path)) from None


def _make_directory(path: Path) -> None:
    os.mkdir(path, 0o700)
    try:
        os.chmod(path, 0o700)
        _sync_path(path.parent)
    except BaseException:
        remove(path)
        raise


def _sync_path(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_directory(path: Path) -> None:
    """Make the names in a directory lasting."""
    with _naming(path, "sync the directory"):
        _sync_path(path)


def create_file(path: Path, data: bytes) -> None:
    """Write a file that must not exist, and sync it; where that fails, no file is left."""
    with _naming(path, "create"):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with _naming(path, "write"):
            os.fchmod(fd, 0o600)
            _write_whole(fd, data)
        with _naming(path, "sync"):
            os.fsync(fd)
    except BaseException:
        remove(path)
        raise
    finally:
        os.close(fd)


def remove(path: Path) -> None:
    """Take back a file or an empty directory of an attempt that failed: as far as it goes, for the failure is what counts."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            os.rmdir(path)
        else:
            os.unlink(path)


def remove_file(path: Path) -> None:
    """Remove a file that may not be there."""
    with _naming(path, "remove"), contextlib.suppress(FileNotFoundError):
        os.unlink(path)


class AppendFile:
    """A file that grows by whole appends.

    Parameters
    ----------
    path : Path
        The file.
    size : int
        Its bytes, as they were read and checked.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path, self._size = path, size
        self._fd = -1
        with _naming(path, "open for writing"):
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            found = os.fstat(self._fd).st_size
        if found != size:
            self.close()
            raise SessionIOError(str(path), "go on", f"it has {found} bytes, and {size} were read", "Something else writes to it")

    def look(self) -> None:
        """See that the file is there and ends where this process has left it.

        Raises
        ------
        SessionIOError
            When something else has removed or changed it; it was not touched.
        """
        try:
            found = os.fstat(self._fd)
        except OSError as error:
            raise SessionIOError(str(self.path), "append", describe(error)) from error
        if found.st_nlink == 0 or found.st_size != self._size:
            what = "it was removed" if found.st_nlink == 0 else f"it has {found.st_size} bytes, and {self._size} were written"
            raise SessionIOError(str(self.path), "go on", what, "Something else changes the session's files")

    def append(self, data: bytes) -> None:
        """Write and sync. After an error the file has to be cut back; after a failed sync nothing can be said of its end."""
        doing = "append"
        try:
            _write_whole(self._fd, data)
            doing = "sync"
            _sync_data(self._fd)
        except OSError as error:
            raise SessionIOError(str(self.path), doing, describe(error)) from error
        self._size += len(data)

    def cut(self, size: int) -> None:
        """Cut the file back to ``size`` bytes, where it is longer."""
        with _naming(self.path, "cut back to the last record"):
            if os.fstat(self._fd).st_size > size:
                os.ftruncate(self._fd, size)
                _sync_data(self._fd)
        self._size = size

    def close(self) -> None:
        """Close; a second time does nothing."""
        fd, self._fd = self._fd, -1  # first: an interrupt in between must not have another's file closed the second time
        if fd >= 0:
            os.close(fd)

    __del__ = close


class DirectoryLock:
    """The one writer's lock: the operating system's, on the directory's handle. It goes with the process, by SIGKILL too.

    A child made by ``fork`` gives its copy of the handle up, so that it neither holds the lock nor keeps it alive.

    Parameters
    ----------
    path : Path
        The directory.
    wait : bool
        Whether to wait for another writer to be done.

    Raises
    ------
    SessionLocked
        When another writer has it, in this process or another; with its process id where the system tells it.
    """

    def __init__(self, path: Path, *, wait: bool = False) -> None:
        self._fd = -1
        with _naming(path, "lock"):
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if sys.platform != "win32":
                    fcntl.flock(self._fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                stat = os.fstat(self._fd)
                self.release()
                raise SessionLocked(str(path), _holder(stat)) from None
            except BaseException:
                self.release()
                raise
        _held.add(self)

    @property
    def held(self) -> bool:
        """False once released, and in a forked child."""
        return self._fd >= 0

    def release(self) -> None:
        """Give the lock up; a second time does nothing."""
        fd, self._fd = self._fd, -1  # first: an interrupt in between must not have another's file closed the second time
        if fd >= 0:
            os.close(fd)

    __del__ = release


_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _release_in_child() -> None:
    for lock in list(_held):
        lock.release()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_release_in_child)


def _holder(stat: os.stat_result) -> int | None:
    """The process that holds a lock on a directory, from the system's table of locks."""
    name = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    try:
        with open("/proc/locks") as table:
            rows = [line.split() for line in table]
    except OSError:
        return None
    pids = [int(row[4]) for row in rows if len(row) > 5 and row[1] == "FLOCK" and row[5] == name]
    return next((pid for pid in pids if pid > 0), None)
