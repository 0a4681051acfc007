"""The slots of an embedded server that are in use, across this process and its forks.

The processes share an unnamed file with one byte per slot. A process that uses a slot holds a lock on its byte. A fork does not
inherit these locks, and the operating system releases them when their process ends.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
import weakref

__all__ = ["SlotPool"]


class SlotPool:
    """The slots of one server. Each can be reserved by one session at a time; `take` prefers the least recently used one.

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
        self._order = list(range(count))  # the least recently used slot of this process first
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
            Number of the slot. By default the least recently used free slot.

        Returns
        -------
        int or None
            Number of the reserved slot. None if that slot is in use or does not exist, or if no slot is free.
        """
        with self._mutex:
            self._after_fork()
            candidates = self._order if slot is None else [each for each in self._order if each == slot]
            taken = next((each for each in candidates if each not in self._in_use and self._lock(each)), None)
            if taken is not None:
                self._in_use.add(taken)
            return taken

    def release(self, slot: int | None) -> None:
        """Release a slot.

        Parameters
        ----------
        slot : int or None
            Number of the slot. The call does nothing for None, or for a slot that this process did not reserve.
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
        except (BlockingIOError, PermissionError):  # operating systems differ in which one they raise
            return False
        return True
