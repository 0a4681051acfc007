"""The slots in use of an embedded server, across this process and its forks.

A slot in use is a locked byte of an unnamed file that the processes share. A fork does not inherit such a lock, and the end of a
process releases it.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
import weakref

__all__ = ["SlotPool"]


class SlotPool:
    """The slots of a server, each for one user at a time. The least recently used free slot is next.

    Parameters
    ----------
    count : int
        Number of slots.

    Examples
    --------
    >>> slots = SlotPool(2)
    >>> slots.take(), slots.take(), slots.take()
    (0, 1, None)
    >>> slots.release(1)
    >>> slots.take()
    1
    """

    def __init__(self, count: int) -> None:
        self._order = list(range(count))  # by last use in this process
        self._in_use: set[int] = set()
        self._owner = os.getpid()
        self._mutex = threading.Lock()
        with tempfile.TemporaryFile() as file:
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)

    def take(self, slot: int | None = None) -> int | None:
        """Reserve a slot.

        Parameters
        ----------
        slot : int, optional
            The slot. By default the least recently used free one.

        Returns
        -------
        int or None
            The slot; None if it is in use, or if no slot is free.
        """
        with self._mutex:
            self._after_fork()
            candidates = self._order if slot is None else [each for each in self._order if each == slot]
            taken = next((each for each in candidates if each not in self._in_use and self._lock(each)), None)
            if taken is not None:
                self._in_use.add(taken)
            return taken

    def release(self, slot: int | None) -> None:
        """Make a slot free again. Ignore a slot that this process did not reserve.

        Parameters
        ----------
        slot : int or None
            The slot.
        """
        with self._mutex:
            self._after_fork()
            if slot is not None and slot in self._in_use:
                self._in_use.remove(slot)
                self._order.remove(slot)
                self._order.append(slot)
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, slot)

    def _after_fork(self) -> None:
        if os.getpid() != self._owner:
            self._owner, self._in_use = os.getpid(), set()

    def _lock(self, slot: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
        except (BlockingIOError, PermissionError):  # which of them depends on the system
            return False
        return True
