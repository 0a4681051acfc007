"""A real JupyterLab on loopback, and a notebook in it as a person sees it; started and ended by the tests.

Needs Debian's chromium; downloads nothing and asks nothing of any other machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "docmanager-extension/plugin": {"autosave": False},  # beside a test's own save it may ask which of the two is to stay
}
"So that JupyterLab asks nothing; no test answers a question."
PATIENCE = 30_000
"Milliseconds that anything may take on a busy machine."


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser with a profile of its own."""
    with sync_playwright() as playwright:
        with contextlib.closing(playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=ARGUMENTS)) as browser:
            yield browser


@dataclass
class Lab:
    """A running JupyterLab."""

    url: str
    token: str
    root: Path

    def api(self, method: str, path: str) -> list[dict[str, str]]:
        request = urllib.request.Request(f"{self.url}api/{path}?token={self.token}", method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            body = answer.read()
        return list(json.loads(body)) if body else []


@contextlib.contextmanager
def jupyterlab(directory: Path) -> Iterator[Lab]:
    """Start JupyterLab on a free port of 127.0.0.1 with a token and settings of its own; end it and its kernels."""
    root, runtime, settings = directory / "notebooks", directory / "runtime", directory / "settings"
    for made in (root, runtime):
        made.mkdir()
    for name, told in SETTINGS.items():
        file = settings / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(told))
    token = secrets.token_hex(16)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JUPYTER_TOKEN": token,
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTER_CONFIG_DIR": str(directory / "config"),
        "JUPYTER_DATA_DIR": str(directory / "data"),
        "JUPYTERLAB_SETTINGS_DIR": str(settings),
        "JUPYTERLAB_WORKSPACES_DIR": str(directory / "workspaces"),
        "IPYTHONDIR": str(directory / "ipython"),
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0"]
    command += ["--ServerApp.port_retries=0", f"--ServerApp.root_dir={root}", "--ServerApp.terminals_enabled=False"]
    command += ["--LabApp.news_url=", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    command += ["--LabApp.extension_manager=readonly"]
    with (directory / "lab.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            yield Lab(_address(process, runtime, token, directory / "lab.log"), token, root)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


def _address(process: subprocess.Popen[bytes], runtime: Path, token: str, log: Path) -> str:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()[-2000:]
        for file in runtime.glob("jpserver-*.json"):
            with contextlib.suppress(ValueError, OSError):  # it is being written, or does not listen yet
                url = str(json.loads(file.read_text())["url"])
                urllib.request.urlopen(f"{url}api/status?token={token}", timeout=2).close()
                return url
        time.sleep(0.05)  # nothing can be waited for: the file and the port come when they come
    raise AssertionError(log.read_text()[-2000:])


@dataclass
class Notebook:
    """A notebook open in the browser."""

    page: Page
    shots: Path
    errors: list[str] = field(default_factory=list)
    "What scripts of the page raised."
    outside: list[str] = field(default_factory=list)
    "Addresses asked for that are not of this machine."

    def open(self, lab: Lab, name: str, cells: list[str]) -> None:
        """Write a notebook of these cells, open it and wait for its kernel."""
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        made: list[dict[str, object]] = [
            {
                "cell_type": "code",
                "id": f"cell{at}",
                "metadata": {},
                "source": cell.strip(),
                "outputs": [],
                "execution_count": None,
            }
            for at, cell in enumerate(cells)
        ]
        book = {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
        (lab.root / name).write_text(json.dumps(book), encoding="utf-8")
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self._asked(request.url))
        self.page.goto(f"{lab.url}lab/tree/{name}?reset&token={lab.token}")
        self.ready()

    def _asked(self, url: str) -> None:
        if not url.startswith(("http://127.0.0.1", "http://localhost", "ws://127.0.0.1", "ws://localhost", "data:", "blob:")):
            self.outside.append(url)

    def ready(self) -> None:
        """Wait until the notebook is shown and its kernel idle.

        Until its session is there the kernel is called idle, too. A cell run then starts a second session beside the first, which
        JupyterLab ends: the command is lost, or "Error Starting Kernel" and "Select Kernel" stand before the page.
        """
        expect(self.page.locator(".jp-Notebook .jp-CodeCell").first).to_be_visible(timeout=PATIENCE)
        expect(self.page.locator(".jp-Toolbar-kernelName")).to_contain_text("Python 3", timeout=PATIENCE)
        idle = self.page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']")
        expect(idle.first).to_be_attached(timeout=PATIENCE)

    def cell(self, number: int) -> Locator:
        return self.page.locator(".jp-Notebook .jp-CodeCell").nth(number)

    def output(self, number: int) -> Locator:
        return self.cell(number).locator(".jp-OutputArea-output")

    def run(self, number: int, *, wait: bool = True) -> Locator:
        """Run a cell; gives its outputs."""
        prompt = self.cell(number).locator(".jp-InputPrompt")
        prompt.click()
        self.page.keyboard.press("Control+Enter")
        expect(prompt).not_to_have_text("[ ]:", timeout=PATIENCE)
        if wait:
            expect(prompt).not_to_have_text("[*]:", timeout=PATIENCE)
        return self.output(number)

    def button(self, name: str) -> Locator:
        return self.page.locator(".jp-OutputArea-output").get_by_role("button", name=name, exact=True)

    def shot(self, name: str) -> None:
        """Keep a picture of the page."""
        self.page.screenshot(path=self.shots / f"{name}.png")

    def save(self) -> None:
        """Write the notebook to its file, as a person does."""
        self.page.keyboard.press("Escape")
        self.page.keyboard.press("Control+s")
        expect(self.page.locator(".lm-TabBar-tab.jp-mod-dirty")).to_have_count(0, timeout=PATIENCE)

    def end_kernels(self, lab: Lab) -> None:
        """End every kernel, and with it the servers that it started."""
        for session in lab.api("GET", "sessions"):
            lab.api("DELETE", f"sessions/{session['id']}")
