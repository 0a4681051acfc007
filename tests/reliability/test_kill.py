"""SIGKILL at random moments: no acknowledged record lost, nothing opens wrong, a torn tail holds only what was not acknowledged.

``LOOPKIT_KILLS`` sets how many (200); a tenth are fresh processes, the rest forks. What is torn is salvaged and written on.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loopkit.contract.records import ToolResult, UsageRecord
from loopkit.errors import SessionNotFound, TornLog
from loopkit.ids import SessionId
from loopkit.session.salvage import salvage
from loopkit.session.session import Session
from loopkit.session.verify import verify
from tests.reliability.writing import write_for_ever

KILLS = int(os.environ.get("LOOPKIT_KILLS", "200"))
ROOT = Path(__file__).parents[2]


def killed_fork(home: Path, id: SessionId, seed: int, seconds: float) -> str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            write_for_ever(home, id, writer, seed)
        finally:
            os._exit(3)
    os.close(writer)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with os.fdopen(reader) as reports:
        return reports.read()


def killed_process(home: Path, id: SessionId, seed: int, seconds: float) -> str:
    command = [sys.executable, "-m", "tests.reliability.writing", str(home), id, str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdout is not None
        first = child.stdout.readline()
        time.sleep(seconds)
        child.kill()
        rest = child.stdout.read()
    assert child.returncode == -signal.SIGKILL
    return first + rest


def check(home: Path, id: SessionId, acknowledged: dict[int, int]) -> SessionId | None:
    """Hold the disk against what was acknowledged; gives the session to go on with, None where none was made."""
    torn: TornLog | None = None
    try:
        session = Session.read(home, id)
    except SessionNotFound:
        if acknowledged:
            raise
        return None
    except TornLog as error:
        torn = error
    if torn is not None:
        epoch = int(Path(torn.path).name.partition(".")[0])
        assert epoch >= max(acknowledged, default=0)
        assert torn.line > acknowledged.get(epoch, 0), str(torn)[:300]
        if not acknowledged:
            return None
        id = salvage(Session.dir_for(home, id), SessionId.new()).id
        session = Session.read(home, id)
    counts = {number: len(epoch.records) for number, epoch in enumerate(session.epochs)}
    for number, count in acknowledged.items():
        assert counts[number] >= count
    result = verify(session)
    assert result.ok, result.faults
    calls = [
        record.call
        for epoch in session.epochs
        for record in epoch.records[1 + (epoch.start.carried.records if epoch.start.carried else 0) :]
        if isinstance(record, ToolResult)
    ]
    assert calls == sorted(set(calls))
    acknowledged.clear()
    acknowledged.update(counts)
    return id


@pytest.mark.slow
def test_no_acknowledged_record_is_lost(tmp_path: Path) -> None:
    chance = random.Random(KILLS)
    id, acknowledged = SessionId.new(), dict[int, int]()
    torn = made = requests = 0
    for number in range(KILLS):
        kill = killed_process if number % 10 == 9 else killed_fork
        for line in kill(tmp_path, id, number, chance.expovariate(1 / 0.04)).splitlines():
            epoch, count = map(int, line.split())
            acknowledged[epoch] = max(count, acknowledged.get(epoch, 0))
        going_on = check(tmp_path, id, acknowledged)
        torn += going_on is not None and going_on != id
        if going_on is None or number % 25 == 24:  # begin anew: creating is killed too
            if going_on is not None:
                epochs = Session.read(tmp_path, going_on).epochs
                requests += sum(isinstance(record, UsageRecord) for epoch in epochs for record in epoch.records)
            id = SessionId.new()
            acknowledged.clear()
            made += 1
        else:
            id = going_on
    print(f"{KILLS} kills, {made} sessions, {torn} torn and salvaged, {requests} requests")
