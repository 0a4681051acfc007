"""A session that another process writes while it is read: whether its lock is held, and reading once more an end that moves.

A writer appends whole groups, but a reader may come while the system has taken in only a part of one. Knows nothing of what a
log says.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from loopkit.errors import TornLog

__all__ = ["appears", "is_locked", "settled"]

if sys.platform != "win32":
    import fcntl

T = TypeVar("T")

PAUSES = (0.005, 0.01, 0.02, 0.04)
"Seconds before each further reading: a write of a megabyte takes less than the first."


def is_locked(directory: Path) -> bool:
    """Whether a writer has the session. Asked only of an unfinished end: asking could turn a writer away who comes just then."""
    if sys.platform == "win32":
        return False
    try:
        handle = os.open(directory, os.O_RDONLY)
    except OSError:  # it is gone, or somebody else's: then what was read says what is wrong
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def appears(path: Path) -> bool:
    """Whether a file is there, or comes in a moment: a session's directory is made before its first log."""
    for pause in PAUSES:
        if os.path.lexists(path):
            return True
        time.sleep(pause)
    return os.path.lexists(path)


def settled(directory: Path, read: Callable[[], T]) -> T:
    """Read a log; where only its end is unfinished, read again a few times.

    Parameters
    ----------
    directory : Path
        Where the log lies.
    read : callable
        Reads it from its start.

    Raises
    ------
    TornLog
        At a fault that is not at the end; at one that is, where no writer has the lock any more, or it stays as it is.
    """
    free = 0
    for pause in PAUSES:
        try:
            return read()
        except TornLog as torn:
            if not torn.at_end:
                raise
            free += not is_locked(directory)
            if free == 2:  # once is not enough: the writer may have finished and gone since the reading
                raise
        time.sleep(pause)
    return read()
