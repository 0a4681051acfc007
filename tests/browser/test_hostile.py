"""What a model, a person, a tool or a log says stays text: in the live page, after a reload, and without the kernel."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, TimeoutError

from tests.browser.lab import PATIENCE, Lab, Notebook

pytestmark = [pytest.mark.server, pytest.mark.browser]

START = """
import tempfile
from pathlib import Path
from IPython.display import display
import loopkit as lk
from tests.browser import hostile
server, home = lk.serve("tiny"), Path(tempfile.mkdtemp())
hostile.call(server, home)
hostile.write_logs(home)
panel = lk.widgets.ChatPanel(hostile.speak(server, home))
panel
"""
CALLED = """
called = lk.widgets.ChatPanel(lk.resume(server, "calls", tools=[hostile.now_in], home=home))
called
"""
EXPLORE = """
explorer = lk.widgets.LogExplorer(home)
explorer.open("log", 0, 2)
explorer
"""
STATIC = """
from IPython.display import HTML
replayed = lk.widgets.LogExplorer(home)
replayed.open("replayed", 0, 2)
for each in (panel, called, explorer, replayed):
    display(HTML(each._repr_html_()))
    print(each)
"""
CARDS = """
from loopkit.cache import divergence
bodies = [('{"messages":[{"content":"' + text + '"}]}').encode() for text in (hostile.WHAT + "a", hostile.WHAT + "b")]
logs = lk.load(home)
session = lk.Session.read(home, "log")
for each in (panel.loop, panel.turn, logs, session, session.baseline, server, divergence(*bodies), lk.verify(home)):
    display(each)
"""

INSIDE = """() => {
    const outputs = [...document.querySelectorAll('.jp-OutputArea-output')];
    const all = outputs.flatMap(output => [...output.querySelectorAll('*')]);
    return {
        canary: typeof window.canary,
        scripts: document.querySelectorAll('script').length,
        active: all.filter(each => each.matches('script, iframe, style, link, base, object, embed, a')).length,
        images: all.filter(each => each.tagName === 'IMG' && !each.src.startsWith('blob:')).length,
        handlers: all.flatMap(each => [...each.attributes]).filter(each => each.name.startsWith('on')).length,
        hrefs: all.filter(each => (each.getAttribute('href') || '').startsWith('javascript')).length,
        formulas: document.querySelectorAll('mjx-container, .MathJax').length,
        size: outputs.reduce((sum, output) => sum + output.innerHTML.length, 0),
    };
}"""


def comes(locator: Locator, text: str) -> None:
    """Wait for a text; what stands there instead is not said, for it holds control tags."""
    try:
        locator.filter(has_text=text).first.wait_for(timeout=PATIENCE)
    except TimeoutError:
        raise AssertionError(f"this does not come: {text}") from None


def only_text(notebook: Notebook, scripts: int) -> None:
    found = notebook.page.evaluate(INSIDE)
    assert found.pop("size") < 600_000
    assert found == {
        "canary": "undefined",
        "scripts": scripts,
        **dict.fromkeys(("active", "images", "handlers", "hrefs", "formulas"), 0),
    }
    assert notebook.outside == []
    assert notebook.errors == []


def test_nothing_but_text_comes_into_the_page(lab: Lab, notebook: Notebook) -> None:
    notebook.open(lab, "hostile.ipynb", [START, CALLED, EXPLORE, STATIC, CARDS])
    scripts = notebook.page.locator("script").count()
    panel = notebook.run(0).first
    panel.locator("textarea").fill("<script>window.canary = 1</script>")
    notebook.button("Send").click()
    comes(panel, "request 1: reused")
    comes(panel, "model: <script>window.canary = 1</script><img src=x onerror=")
    notebook.shot("hostile-1-said")
    only_text(notebook, scripts)
    panel = notebook.run(1).first
    panel.get_by_text("tool now_in → ok").click()
    comes(panel, "it costs $5 and $6")
    notebook.shot("hostile-2-called")
    explorer = notebook.run(2).first
    comes(explorer, "1,000 tokens lost because of `<b onclick='window.canary = 1'>$5</b>`")
    explorer.get_by_text("evidence", exact=True).click()
    explorer.get_by_text("evidence", exact=True).scroll_into_view_if_needed()
    notebook.shot("hostile-3-explored")
    explorer.get_by_role("button", name="Up").click()
    comes(explorer, "page 1 of 1, 4 rows")
    notebook.shot("hostile-4-sessions")
    explorer.get_by_role("button", name="replayed").click()
    comes(explorer, "page 1 of 1, 3 rows")
    explorer.get_by_role("button", name="onclick").first.click()
    comes(explorer, "was: <b onclick=")
    notebook.run(3)
    comes(notebook.output(3).last, "LogExplorer")
    notebook.shot("hostile-5-static")
    notebook.run(4)
    comes(notebook.output(4).last, "erified")
    notebook.output(4).last.scroll_into_view_if_needed()
    notebook.shot("hostile-6-cards")
    only_text(notebook, scripts)
    notebook.save()
    notebook.page.reload()
    notebook.ready()
    comes(notebook.output(0).first, "ChatPanel on session says")
    comes(notebook.output(4).last, "erified")
    only_text(notebook, scripts)
    notebook.end_kernels(lab)
    notebook.page.reload()
    notebook.ready()
    comes(notebook.cell(3), "more characters]")
    notebook.shot("hostile-7-without-its-kernel")
    only_text(notebook, scripts)
