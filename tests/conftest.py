"""What the tests of several rooms share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopkit.server.client import Server
from loopkit.server.opening import serve
from loopkit.session.verify import verify

# A shell starts background jobs with SIGINT ignored, and children inherit that: Ctrl-C would do nothing in the tests of it.
signal.signal(signal.SIGINT, signal.default_int_handler)

SENDING = {"loop", "record", "replay", "widgets"}
"Rooms whose tests make sessions by sending requests; elsewhere logs are written by hand, or damaged on purpose."


@pytest.fixture(scope="session")
def tiny() -> Iterator[Server]:
    """The embedded server with the tiny model: 2 slots of 4,096 tokens, one byte is one token."""
    with serve("tiny") as server:
        yield server


@pytest.fixture(autouse=True)
def every_session_verifies(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every session that such a test leaves is verified: each recorded hash is derived again from the log."""
    sends = request.path.parent.name in SENDING and request.path.name != "test_explorer.py"
    path: Path | None = request.getfixturevalue("tmp_path") if sends else None
    yield
    for home in {sessions.parent for sessions in path.rglob("sessions") if sessions.is_dir()} if path else ():
        verification = verify(home)
        assert verification.ok, [str(fault) for fault in verification.faults]
