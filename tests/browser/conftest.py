"""One JupyterLab and one browser for all tests of this folder; each test has a page and a kernel of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser.lab import CHROMIUM, Lab, Notebook, chromium, jupyterlab


@pytest.fixture(scope="package")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if CHROMIUM is None:
        pytest.skip("no chromium is installed")
    with jupyterlab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture(scope="package")
def browser(lab: Lab) -> Iterator[Browser]:
    # not of the session: while it is open its event loop counts as running in this thread, and other tests start their own
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="package")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the pictures go: a folder of the test's output, or the one that ``LOOPKIT_SHOTS`` names."""
    named = os.environ.get("LOOPKIT_SHOTS")
    if named is None:
        return tmp_path_factory.mktemp("screenshots")
    Path(named).mkdir(parents=True, exist_ok=True)
    return Path(named)


@pytest.fixture
def notebook(lab: Lab, browser: Browser, shots: Path, request: pytest.FixtureRequest) -> Iterator[Notebook]:
    with browser.new_context(viewport={"width": 1400, "height": 1000}) as context:
        notebook = Notebook(context.new_page(), shots)
        yield notebook
        notebook.shot(f"{request.node.name}-at-the-end")
        print("JupyterLab asks:", notebook.page.locator(".jp-Dialog").all_inner_texts())
    notebook.end_kernels(lab)
