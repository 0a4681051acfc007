"""A process that writes a session until it is killed, and reports each record once it is acknowledged.

Run as ``python -m tests.reliability.writing HOME ID SEED`` (reports on standard output), or forked.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from loopkit.contract.baseline import Baseline
from loopkit.contract.records import Assistant, ToolResult, User
from loopkit.ids import SessionId
from loopkit.session.session import Session
from tests.session.build import TOOL, create, end, group, result


def write_for_ever(home: Path, id: SessionId, report: int, seed: int) -> None:
    """Create or resume the session, and write: groups, results big and small, rolls."""
    chance = random.Random(seed)

    def acknowledge(session: Session) -> None:
        os.write(report, f"{session.epoch} {len(session.records)}\n".encode())

    session = Session.open(home, id) if Session.dir_for(home, id).exists() else create(home, id)
    acknowledge(session)
    while True:
        for call in session.pending:
            content = "y" * chance.choice([10, 5_000, 70_000])
            session.append(result(session.next_call(), call.id, content))
            acknowledge(session)
        if not session.ended and (chance.random() > 0.15 or len(session.records) < 5):
            ids = [f"c{number}" for number in range(chance.choice([0, 0, 1, 3]))]
            session.extend(group(session, "é" * chance.choice([5, 500, 30_000]), ids=ids, loss=chance.choice([None, 3])))
        elif not session.ended:
            session.append(end())
        else:
            kinds = (User, Assistant, ToolResult)
            last = [record for record in session.records[-8:] if isinstance(record, kinds)]
            first = next((at for at, record in enumerate(last) if isinstance(record, User)), len(last))
            baseline = Baseline(f"Be brief in epoch {session.epoch + 1}.", (TOOL,))
            session.next_epoch(baseline, last[first:])
        acknowledge(session)


if __name__ == "__main__":
    write_for_ever(Path(sys.argv[1]), SessionId(sys.argv[2]), sys.stdout.fileno(), int(sys.argv[3]))
