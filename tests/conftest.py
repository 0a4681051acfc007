"""What the tests of several rooms share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loopkit.server.client import Server, serve


@pytest.fixture(scope="session")
def tiny() -> Iterator[Server]:
    """The embedded server with the tiny model: 2 slots of 4,096 tokens, one byte is one token."""
    with serve("tiny") as server:
        yield server
