"""Every session that a test of the loop makes is verified when it ends: each recorded hash is derived again from the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loopkit.session.verify import verify


@pytest.fixture(autouse=True)
def every_session_verifies(tmp_path: Path) -> Iterator[None]:
    yield
    for home in {sessions.parent for sessions in tmp_path.rglob("sessions") if sessions.is_dir()}:
        verification = verify(home)
        assert verification.ok, [str(fault) for fault in verification.faults]
