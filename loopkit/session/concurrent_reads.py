"""Reading a log while another process writes it.

A writer appends whole groups of records (a request and its response), but a reader may see a group that is only partly written.
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
"Seconds to wait before each retry. Writing a megabyte takes less time than the first wait."


def is_locked(directory: Path) -> bool:
    """Return True if a writer has the session open.

    Call this only for an unfinished log. The test takes a shared lock for an instant, so a writer that opens the session in that
    instant would fail.
    """
    if sys.platform == "win32":
        return False
    try:
        handle = os.open(directory, os.O_RDONLY)
    except OSError:  # The directory was removed or belongs to another user. Reading the log then gives a better error.
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def wait_for_file(path: Path) -> bool:
    """Return True if a file exists or appears within 75 ms. A new session has a directory first and a log shortly after."""
    for pause in PAUSES:
        if os.path.lexists(path):
            return True
        time.sleep(pause)
    return os.path.lexists(path)


def retry_unfinished(directory: Path, read: Callable[[], T]) -> T:
    """Read a log. If its end is unfinished, try again a few times, because a writer may be about to finish it.

    Parameters
    ----------
    directory : Path
        Directory of the log.
    read : callable
        Function that reads the log from its start and returns the result.

    Returns
    -------
    Any
        The result of ``read``.

    Raises
    ------
    TornLog
        If the log has a fault before its end. Also if the end is unfinished and no process is writing the log, or the end is
        still unfinished after the last retry.
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
