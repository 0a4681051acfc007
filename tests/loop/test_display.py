"""What streams to a terminal is text: nothing that a model, a tool or its arguments say is obeyed."""

from __future__ import annotations

import pytest

from loopkit.loop.display import show
from loopkit.loop.events import ToolCalled
from loopkit.server.completion.deltas import TextDelta
from tests.logs.make import result

OBEYED = ["\x1b[2J", "\x1b]52;c;eA==\x07", "\x9b1A", "\x00", "\b\b\b", "\r", chr(0x202E), chr(0x2066)]
"Clears the screen, fills the clipboard, goes up a line, goes back, turns the writing round."


@pytest.mark.parametrize("text", OBEYED)
def test_nothing_of_it_is_obeyed(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(TextDelta(f"a{text}\n\tb"))
    show(ToolCalled(1, "now_in", text))
    show(result(1, 1, "a", text))
    said = capsys.readouterr().out
    assert said.startswith("a·")
    assert "\n\tb" in said
    assert said.translate({ord("\n"): None, ord("\t"): None}).isprintable()
