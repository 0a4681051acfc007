"""What a cell shows of all that it may end with: text and HTML from one source, the same on every machine and every run."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import loopkit as lk
from loopkit import memory
from loopkit.cache import Prices, cost, diagnose, divergence, observations, template_matrix
from loopkit.replay.variants import applied, variant_of
from tests.reading_html import Read, bare

pytestmark = pytest.mark.server

MORE_IN_HTML = {"Doctor", "Verification"}
"""Their text says what matters in one line, their HTML has every row."""
ELSEWHERE = {"Proxy", "Salvaged", "Panel"}
"""Proxy and Salvaged name the address or the files that one asked for them to learn; Panel is what the panels have in common."""


NODE = memory.MemoryNode.of(
    memory.Level.L1,
    memory.ProjectId("peru"),
    memory.QueryId("light"),
    memory.RunId("r1"),
    1,
    "It is <b>light</b>\nuntil six. " * 9,
    (),
)


class Shown(NamedTuple):
    text: str
    html: str

    @classmethod
    def of(cls, each: Any) -> Shown:
        return cls(repr(each), each._repr_html_())


def now_in(city: str) -> str:
    """The time of day in a city."""
    return f"In {city} it is late."


def made(home: Path) -> dict[str, Shown]:
    """One of each, all of the same small session."""
    with lk.serve("tiny") as server, lk.start(server, system="Be brief.", tools=[now_in], home=home, id="s", memory="") as loop:
        loop.on_event = None
        turn = loop.ask("What is the time?")
        bodies = [request.body for request in loop.session.requests()]
        changed = applied(variant_of("live_system"), bodies[0], 1, "")
        logs = lk.load(loop.session)
        objects: list[Any] = [server, loop, loop.session, loop.tools, turn, loop.park(), loop.session.baseline, logs]
        objects += [lk.verify(home), server.doctor(), template_matrix(server), divergence(bodies[0], changed)]
        objects += [
            diagnose(observations(loop.session)),
            cost(logs.usage, Prices(uncached=1, cached=0.5, cache_write=None, output=2)),
            memory.open(home),
            NODE,
        ]
        panels = [lk.widgets.ChatPanel(loop), lk.widgets.LogExplorer(loop.session), lk.widgets.Replay(loop.session, server)]
        return {type(each).__name__: Shown.of(each) for each in [*objects, *panels]}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shown]:
    return made(tmp_path_factory.mktemp("here"))


def test_every_class_with_html_is_among_them(here: dict[str, Shown]) -> None:
    names = set()
    for module in pkgutil.walk_packages(lk.__path__, "loopkit."):
        for name, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if kind.__module__.startswith("loopkit") and hasattr(kind, "_repr_html_"):
                names.add(name)
    assert names - ELSEWHERE == set(here)


def test_text_is_one_line_and_html_is_text_alone_with_the_same_words(here: dict[str, Shown]) -> None:
    for name, shown in here.items():
        assert shown.text.isprintable(), name
        assert len(shown.text) <= 110, name
        words = bare(Read(shown.html).text)
        facts = re.split(", |: ", re.sub(r", … \d+ more$", "", shown.text))
        assert [fact for fact in facts if bare(fact.removesuffix("…")) not in words] == [] or name in MORE_IN_HTML, name


def test_neither_has_an_address_a_time_a_path_or_an_id_that_another_run_would_not_have(
    here: dict[str, Shown], tmp_path: Path
) -> None:
    assert made(tmp_path) == here
    for name, shown in here.items():
        for form in shown:
            assert not re.search(r"0x[0-9a-f]{6}|127\.0\.0\.1|\d\d:\d\d|[0-9a-f]{16}|/\w+/", re.sub("</?[a-z]+", "", form)), name
