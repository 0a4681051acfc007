"""When a progress bar is shown."""

from __future__ import annotations

import sys

import pytest

from loopkit import progress as progress_module
from loopkit.progress import progress_bar


def shown(progress: bool | None, capsys: pytest.CaptureFixture[str]) -> bool:
    with progress_bar(progress=progress, total=2, unit="step", label="work") as bar:
        bar.update(1)
        bar.update(1)
    out, err = capsys.readouterr()
    assert out == ""
    return "work: 100%" in err


def test_true_and_false_decide(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(True, capsys)
    assert not shown(False, capsys)


def test_by_default_it_takes_a_terminal_and_a_while(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setattr(progress_module, "DELAY", 0.0)
    assert not shown(None, capsys), "standard error is a file here"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert shown(None, capsys)
    monkeypatch.setattr(progress_module, "DELAY", 60.0)
    assert not shown(None, capsys), "short work shows no bar"
