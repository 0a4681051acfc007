"""The demo on the real server, as the README promises it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from loopkit import demo
from loopkit.session.verify import verify
from tests.check_demo import main as check


@pytest.mark.server
def test_the_demo_writes_what_it_promises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "demo"
    summary = demo.run(out, model="tiny")
    check(out)
    assert verify(out).ok
    said = capsys.readouterr().out
    read, wasted = summary.kept["read_tokens"], summary.broken["read_tokens"]
    assert read
    assert wasted
    assert f"{wasted / read:.1f} times as many" in said
    usage = pd.read_csv(out / "usage.csv")
    assert len(usage) == 16
    assert usage["read_tokens"].sum() == read + wasted
    assert len(pd.read_csv(out / "cache_loss.csv")) == 7
    assert len(pd.read_csv(out / "epochs.csv")) == 2
    assert (summary.model, summary.engine, summary.verified) == ("tiny", "llama.cpp", True)


@pytest.mark.server
def test_the_number_of_turns_is_free_and_a_second_demo_stands_beside_the_first(tmp_path: Path) -> None:
    for _ in range(2):
        assert demo.run(tmp_path, model="tiny", turns=2).kept["requests"] == 2
