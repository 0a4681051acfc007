"""The replay panel as a person uses it: choose variants, run, watch the comparison fill in, stop."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.lab import PATIENCE, Lab, Notebook

pytestmark = [pytest.mark.server, pytest.mark.browser]

START = """
import tempfile
import loopkit as lk
server = lk.serve("tiny")
with lk.start(server, system="Be brief. " * 20, home=tempfile.mkdtemp(), id="s", memory="") as loop:
    loop.on_event = None
    for number in range(25):
        loop.ask(f"Question {number}.")
panel = lk.widgets.Replay(loop.session, server)
panel
"""


def test_run_a_comparison_and_watch_it_fill_in(lab: Lab, notebook: Notebook) -> None:
    notebook.open(lab, "replay.ipynb", [START, "print(panel.running, len(panel.frame))"])
    panel = notebook.run(0).first
    panel.get_by_role("listbox").select_option(["live_system", "clock_in_system"])
    notebook.shot("replay-1-chosen")
    notebook.button("Run").click()
    rows = panel.locator("table tr")
    expect(rows).to_have_count(2, timeout=PATIENCE)
    expect(panel).to_contain_text("running: ")
    expect(rows.nth(1)).to_contain_text("unchanged")
    notebook.shot("replay-2-filling-in")
    expect(rows).to_have_count(4, timeout=PATIENCE)
    expect(panel).to_contain_text("done: 75 of 75 requests")
    expect(rows.nth(3)).to_contain_text("clock_in_system")
    expect(rows.nth(3)).to_contain_text("system_changed")
    notebook.shot("replay-3-done")
    expect(notebook.run(1)).to_have_text("False 75")
    notebook.button("Run").click()
    expect(panel).to_contain_text("running: ")
    expect(rows).to_have_count(2, timeout=PATIENCE)
    notebook.button("Stop").click()
    expect(panel).to_contain_text("stopped: ", timeout=PATIENCE)
    notebook.shot("replay-4-stopped")
    assert notebook.errors == []
    assert notebook.outside == []
