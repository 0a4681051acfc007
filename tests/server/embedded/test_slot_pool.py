"""Slots are held by one at a time, over processes that were forked, too."""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from loopkit import sweep
from loopkit.logs.loading import load
from loopkit.loop.opening import start
from loopkit.server.client import Server
from loopkit.server.embedded.slot_pool import SlotPool

FORK = multiprocessing.get_context("fork")


def _hold(slots: SlotPool, taken: Connection) -> None:
    taken.send([slots.take(), slots.take(), slots.take()])
    signal.pause()


def test_what_another_process_holds_is_free_once_it_has_ended() -> None:
    slots = SlotPool(3)
    assert slots.take() == 0
    ours, theirs = FORK.Pipe()
    child = FORK.Process(target=_hold, args=(slots, theirs))
    child.start()
    assert ours.recv() == [1, 2, None]  # not what was held here when it was forked
    assert (slots.take(), slots.take(1)) == (None, None)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert (slots.take(), slots.take(), slots.take()) == (1, 2, None)


def _release(slots: SlotPool, slot: int, taken: Connection) -> None:
    slots.release(slot)
    taken.send(slots.take(slot))


def test_a_forked_process_gives_back_nothing_that_it_does_not_hold() -> None:
    slots = SlotPool(1)
    assert slots.take() == 0
    ours, theirs = FORK.Pipe()
    child = FORK.Process(target=_release, args=(slots, 0, theirs))
    child.start()
    assert ours.recv() is None
    child.join()
    slots.release(0)
    assert slots.take() == 0


SERVER: Server | None = None
MEET = FORK.Barrier(2)


def _talk(run: sweep.Run, system: str) -> dict[str, Any]:
    assert SERVER is not None
    with start(SERVER, system=system, home=run.home, id=run.session, memory="") as loop:
        loop.on_event = None
        MEET.wait(60)
        for _ in range(3):
            loop.ask("Hello.")
        MEET.wait(60)
        return {"slot": loop.session.start.slot}


@pytest.mark.server
# Python warns of a fork beside threads; Linux' default until 3.13, and what a notebook's user gets
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_points_in_forked_processes_have_a_slot_each(tiny: Server, tmp_path: Path) -> None:
    globals()["SERVER"] = tiny  # as a server at the top of a module is
    with ProcessPoolExecutor(2, FORK) as pool:
        frame = sweep.run(_talk, {"system": ["Be brief. " * 9, "Be long. " * 9]}, tmp_path, "both", pool, progress=False)
    assert sorted(frame["slot"]) == [0, 1]
    assert load(tmp_path).usage["lost_tokens"].tolist() == [0] * 6
