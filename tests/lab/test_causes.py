"""One round of the laboratory: every injection is named right by a process that cannot see it, and nothing is invented."""

from __future__ import annotations

import pytest

from tests.lab.causes import run


@pytest.mark.server
@pytest.mark.slow
def test_every_injected_cause_is_named_by_another_process() -> None:
    result = run(rounds=1, seed=20)
    assert result.faults == []
    assert result.done >= 24
    assert (result.right, result.invented) == (result.done, 0)
