"""The laboratory itself: JupyterLab asks nothing, and loses no command, on a machine that is slow."""

from __future__ import annotations

import pytest
from playwright.sync_api import Route, expect

from tests.browser.lab import Lab, Notebook

pytestmark = pytest.mark.browser

LATE = 2000
"Milliseconds by which each answer about sessions is late."


def test_a_cell_is_run_in_the_only_session_however_late_that_comes(lab: Lab, notebook: Notebook) -> None:
    begun = list[str]()

    def late(route: Route) -> None:
        if route.request.method == "POST":
            begun.append(route.request.url)
        notebook.page.wait_for_timeout(LATE)
        route.continue_()

    notebook.page.route("**/api/sessions*", late)
    notebook.open(lab, "slow.ipynb", ["print(6 * 7)"])
    expect(notebook.run(0)).to_have_text("42")
    notebook.page.unroute_all(behavior="ignoreErrors")
    assert len(begun) == 1
    assert notebook.page.locator(".jp-Dialog").count() == 0
