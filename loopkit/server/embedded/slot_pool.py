"""Which slots of an embedded server are held, over all processes that use it: this one, and those forked from it.

A held slot is a locked byte of a file without a name, which the processes share. Such a lock is its process's own: a fork does
not inherit it, and the end of the process lets go of it. Knows nothing of what a slot holds.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
import weakref

__all__ = ["Handout"]


class Handout:
    """Hands slots out, the least recently used first, each to one holder at a time.

    Examples
    --------
    >>> slots = Handout(2)
    >>> slots.take(), slots.take(), slots.take()
    (0, 1, None)
    >>> slots.release(1)
    >>> slots.take()
    1
    """

    def __init__(self, count: int) -> None:
        self._order = list(range(count))  # as far as this process knows
        self._held: set[int] = set()
        self._owner = os.getpid()
        self._mutex = threading.Lock()
        with tempfile.TemporaryFile() as file:
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)

    def take(self, slot: int | None = None) -> int | None:
        """Take the least recently used free slot, or a given one; None where there is none."""
        with self._mutex:
            self._after_fork()
            wanted = self._order if slot is None else [each for each in self._order if each == slot]
            taken = next((each for each in wanted if each not in self._held and self._lock(each)), None)
            if taken is not None:
                self._held.add(taken)
            return taken

    def release(self, slot: int | None) -> None:
        """Give a slot back; one that this process does not hold is left as it is."""
        with self._mutex:
            self._after_fork()
            if slot is not None and slot in self._held:
                self._held.remove(slot)
                self._order.remove(slot)
                self._order.append(slot)
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, slot)

    def _after_fork(self) -> None:
        if os.getpid() != self._owner:
            self._owner, self._held = os.getpid(), set()

    def _lock(self, slot: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
        except (BlockingIOError, PermissionError):  # systems say it in either way
            return False
        return True
