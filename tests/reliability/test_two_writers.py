"""Two writers of one session: the second is refused, always, and not one record is spliced."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from loopkit.errors import OutOfOrder, SessionLocked
from loopkit.ids import SessionId
from loopkit.session.session import Session
from loopkit.session.verify import verify
from tests.session.build import create, group

ID = SessionId("lima")
RACE = """
import sys
from loopkit.errors import SessionLocked
from loopkit.session.session import Session
from tests.session.build import group
written = refused = 0
while written < 10:
    try:
        session = Session.open(sys.argv[1], "lima")
    except SessionLocked:
        refused += 1
        continue
    with session:
        session.extend(group(session, sys.argv[2]))
        written += 1
print(written, refused)
"""


def test_processes_that_race_for_a_session_take_turns(tmp_path: Path) -> None:
    create(tmp_path).close()
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(tmp_path), f"racer {number}"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for number in range(3)
    ]
    outcomes = [racer.communicate()[0].split() for racer in racers]
    assert [outcome[0] for outcome in outcomes] == ["10", "10", "10"]
    assert len(Session.read(tmp_path, ID).records) == 91
    assert verify(tmp_path).ok


def test_threads_that_race_for_a_session_take_turns(tmp_path: Path) -> None:
    create(tmp_path).close()
    holders: list[int | None] = []

    def race() -> None:
        written = 0
        while written < 5:
            try:
                session = Session.open(tmp_path, ID)
            except SessionLocked as error:
                holders.append(error.pid)
                continue
            with session:
                session.extend(group(session, "Mine."))
                written += 1

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {os.getpid(), None}.issuperset(holders)
    assert len(Session.read(tmp_path, ID).records) == 61
    assert verify(tmp_path).ok


def test_threads_that_share_a_session_write_whole_groups(tmp_path: Path) -> None:
    """One session used from several threads: each extend is whole, or refused because another one came first."""
    with create(tmp_path) as session:
        ready = threading.Barrier(4)

        def write() -> None:
            for _ in range(20):
                ready.wait()
                try:
                    session.extend(group(session, "Mine."))
                except OutOfOrder as error:
                    errors.append(error)

        errors: list[OutOfOrder] = []
        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all("the next request is" in str(error) for error in errors)
        assert len(session.records) == 1 + 3 * (80 - len(errors))
        assert list(Session.read(tmp_path, ID).records) == list(session.records)
