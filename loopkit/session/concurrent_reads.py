"""Reading a log while another process writes it.

A writer appends whole record groups, but a reader may open the file when only a part of a group has been written.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from loopkit.errors import TornLog

__all__ = ["is_locked", "retry_unfinished", "wait_for_file"]

if sys.platform != "win32":
    import fcntl

T = TypeVar("T")

PAUSES = (0.005, 0.01, 0.02, 0.04)
"Seconds before each retry. Writing a megabyte takes less than the first."


def is_locked(directory: Path) -> bool:
    """Return True if a writer has the session open.

    Call this only for an unfinished log: the test takes a shared lock for an instant, and could turn a new writer away.
    """
    if sys.platform == "win32":
        return False
    try:
        handle = os.open(directory, os.O_RDONLY)
    except OSError:  # it was removed, or belongs to another user; the error of reading the log says more
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def wait_for_file(path: Path) -> bool:
    """Return True if a file exists or appears within 75 ms: a session's directory is created before its first log."""
    for pause in PAUSES:
        if os.path.lexists(path):
            return True
        time.sleep(pause)
    return os.path.lexists(path)


def retry_unfinished(directory: Path, read: Callable[[], T]) -> T:
    """Read a log, and retry a few times while its end is unfinished.

    Parameters
    ----------
    directory : Path
        Directory of the log.
    read : callable
        Reads the log from its start.

    Returns
    -------
    Any
        The result of ``read``.

    Raises
    ------
    TornLog
        If a fault is not at the end, if no writer has the lock, or if the end is still unfinished after the last retry.
    """
    free = 0
    for pause in PAUSES:
        try:
            return read()
        except TornLog as torn:
            if not torn.at_end:
                raise
            free += not is_locked(directory)
            if free == 2:  # once is not enough: the writer may have finished and exited after the read
                raise
        time.sleep(pause)
    return read()
