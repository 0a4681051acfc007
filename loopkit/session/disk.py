"""System calls of a session: create, append, sync, remove, and the lock of the single writer.

Files get mode 0600 and directories 0700, whatever the umask. After a file or directory was created, its parent directory is
synced, so that the new name survives a power failure. Errors of the operating system become a ``SessionIOError`` with the path.
Linux is fully supported. macOS is supported as far as its system calls allow. On Windows sessions can only be read.
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
    "remove",
    "remove_file",
    "require_writable",
    "sync_directory",
]


@contextlib.contextmanager
def _naming(path: Path, doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SessionIOError(str(path), doing, describe(error)) from error


def require_writable(path: Path) -> None:
    """Raise ``SessionIOError`` on Windows, where sessions can only be read."""
    if sys.platform == "win32":
        raise SessionIOError(
            str(path), "open for writing", "on Windows sessions can only be read", "Use Session.read, or work in WSL"
        )


def _write_whole(fd: int, data: bytes) -> None:
    while data:
        written = os.write(fd, data)
        if written == 0:
            raise OSError(0, "the system wrote 0 bytes without an error")
        data = data[written:]


def _sync_data(fd: int) -> None:
    if sys.platform == "darwin":  # macOS has no fdatasync
        os.fsync(fd)
    else:
        os.fdatasync(fd)


def make_directory(path: Path) -> None:
    """Create a new directory, and its missing parents.

    Raises
    ------
    SessionExists
        If the path already exists.
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
    """Sync a directory, so that new names in it survive a power failure."""
    with _naming(path, "sync the directory"):
        _sync_path(path)


def create_file(path: Path, data: bytes) -> None:
    """Create a new file with this content, and sync it. If this fails, no file remains. An existing file is an error."""
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
    """Remove a file or an empty directory after a failure. Errors are ignored, because the first failure is reported."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            os.rmdir(path)
        else:
            os.unlink(path)


def remove_file(path: Path) -> None:
    """Remove a file if it exists."""
    with _naming(path, "remove"), contextlib.suppress(FileNotFoundError):
        os.unlink(path)


class AppendFile:
    """A file, open for appending. It keeps track of the size, to notice when another program changes the file.

    Parameters
    ----------
    path : Path
        An existing file.
    size : int
        Size of the file in bytes when its content was read and checked.

    Raises
    ------
    SessionIOError
        If the file cannot be opened, or has another size now.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path, self._size = path, size
        self._fd = -1
        with _naming(path, "open for writing"):
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            found = os.fstat(self._fd).st_size
        if found != size:
            self.close()
            why = f"it has {found} bytes, but {size} bytes were read"
            raise SessionIOError(
                str(path), "append", why, "Another program writes to the file: stop it, then open the session again"
            )

    def check_unchanged(self) -> None:
        """Check that the file still exists and has the size that it had after the last write of this process.

        Raises
        ------
        SessionIOError
            If another program removed or changed the file.
        """
        try:
            found = os.fstat(self._fd)
        except OSError as error:
            raise SessionIOError(str(self.path), "append", describe(error)) from error
        if found.st_nlink == 0 or found.st_size != self._size:
            why = "it was removed" if found.st_nlink == 0 else f"it has {found.st_size} bytes, but {self._size} were written"
            raise SessionIOError(str(self.path), "append", why, "Another program changes the session's files")

    def append(self, data: bytes) -> None:
        """Append bytes and sync the file.

        After an error, call :meth:`cut` to remove a partial write. If the sync failed, the content on disk is unknown.
        """
        doing = "append"
        try:
            _write_whole(self._fd, data)
            doing = "sync"
            _sync_data(self._fd)
        except OSError as error:
            raise SessionIOError(str(self.path), doing, describe(error)) from error
        self._size += len(data)

    def cut(self, size: int) -> None:
        """Truncate the file to ``size`` bytes if it is longer."""
        with _naming(self.path, "cut back to the last record"):
            if os.fstat(self._fd).st_size > size:
                os.ftruncate(self._fd, size)
                _sync_data(self._fd)
        self._size = size

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        fd, self._fd = self._fd, -1  # first, so that an interrupt cannot make a second call close another file's descriptor
        if fd >= 0:
            os.close(fd)

    __del__ = close


class DirectoryLock:
    """The lock of the single writer: an operating-system lock on the session's directory.

    The operating system releases the lock when the process ends, also after SIGKILL. A forked child closes its copy of the file
    descriptor, so only the parent has the lock.

    Parameters
    ----------
    path : Path
        The directory.
    wait : bool
        If another writer has the lock, wait until it is released. By default, raise an error.

    Raises
    ------
    SessionLocked
        If another writer has the lock, in this or another process. The error contains the process id if the system reports it.
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
        """True while this object has the lock. False after :meth:`release`, and in a forked child."""
        return self._fd >= 0

    def release(self) -> None:
        """Release the lock. Safe to call twice."""
        fd, self._fd = self._fd, -1  # first, so that an interrupt cannot make a second call close another file's descriptor
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
    """Return the id of the process that has locked a directory, from ``/proc/locks``; None if it is not listed."""
    name = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    try:
        with open("/proc/locks") as table:
            rows = [line.split() for line in table]
    except OSError:
        return None
    pids = [int(row[4]) for row in rows if len(row) > 5 and row[1] == "FLOCK" and row[5] == name]
    return next((pid for pid in pids if pid > 0), None)
