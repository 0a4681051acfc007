"""The log explorer as a person uses it: down to a request, its differing bytes, pages, and up again."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.lab import PATIENCE, Lab, Notebook

pytestmark = [pytest.mark.server, pytest.mark.browser]

START = """
import tempfile
import loopkit as lk
home = tempfile.mkdtemp()
with lk.serve("tiny") as server:
    with lk.start(server, system="Be brief.", home=home, id="kept", memory="") as loop:
        loop.on_event = None
        for number in range(30):
            loop.ask(f"Question {number}.")
    lk.replay.run(loop.session, server, "clock_in_system")
explorer = lk.widgets.LogExplorer(home)
explorer
"""


def test_choose_a_request_and_see_the_differing_bytes(lab: Lab, notebook: Notebook) -> None:
    notebook.open(lab, "explorer.ipynb", [START, "explorer.close()\nexplorer"])
    panel = notebook.run(0).first
    expect(panel.get_by_role("button", name="clock_in_system")).to_be_visible(timeout=PATIENCE)
    notebook.shot("explorer-1-sessions")
    panel.get_by_role("button", name="clock_in_system").click()
    expect(panel).to_contain_text("page 1 of 3, 30 rows")
    notebook.button("›").click()
    expect(panel).to_contain_text("page 2 of 3, 30 rows")
    panel.get_by_role("button", name="system_changed").nth(2).click()
    expect(panel).to_contain_text("(system_changed, confirmed, fixable by client, at messages[0].content)")
    expect(panel).to_contain_text("differs: byte")
    expect(panel).to_contain_text("The time is 20")
    panel.get_by_text("evidence", exact=True).click()
    expect(panel.get_by_text('culprit: "time"')).to_be_visible()
    panel.get_by_text("evidence", exact=True).scroll_into_view_if_needed()
    notebook.shot("explorer-2-loss")
    notebook.button("Up").click()
    panel.get_by_role("button", name="loopkit").click()
    panel.get_by_role("button", name="12 12 470").click()
    expect(panel).to_contain_text("appended to the")
    notebook.shot("explorer-3-kept")
    static = notebook.run(1)
    expect(static).to_contain_text("LogExplorer")
    expect(static.locator("table").nth(1)).to_contain_text("request")
    notebook.shot("explorer-4-static")
    assert notebook.errors == []
    assert notebook.outside == []
