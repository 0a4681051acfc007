"""The chat panel as a plain object: asking, stopping, going on elsewhere, errors, and what is left when it is closed."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from loopkit.errors import InvalidConfig, LoopBusy, NothingToGoOn, SessionNotFound, StreamCut
from loopkit.server.client import Server
from loopkit.session.verify import verify
from loopkit.widgets import base
from loopkit.widgets.chat_panel import ChatPanel
from loopkit.widgets.log_explorer import LogExplorer
from tests.loop.scripted_loops import OPTIONS, begin, calling, ctrl_c, done, log, reasoned, scripted, threads_of_ours
from tests.server.scripted import HANG, sse, text
from tests.widgets.open_comms import count_open

LIMA = '{"city":"Lima"}'


def now_in(city: str) -> str:
    """The time of day in a city."""
    return f"In {city} it is 16:20."


def displayed(panel: ChatPanel) -> ChatPanel:
    assert "application/vnd.jupyter.widget-view+json" in panel._repr_mimebundle_()
    return panel


@pytest.mark.server
def test_asking_streams_counts_and_folds_a_tool_call(tiny: Server, tmp_path: Path) -> None:
    with begin(tiny, tmp_path, tools=[now_in]) as loop, displayed(ChatPanel(loop)) as panel:
        panel.ask("What is the time in Lima?")
        panel.wait()
        assert panel.turn is not None
        assert panel.turn.stop == "done"
        said = str(panel)
        reused = sum(record.usage.cached_tokens or 0 for record in panel.turn.requests)
        read = sum(record.usage.read_tokens or 0 for record in panel.turn.requests)
        assert repr(
            panel
        ) == f"ChatPanel on session s: state idle, requests 2, reused {reused:,}, processed {read:,}, written " + (
            f"{panel.turn.usage.completion_tokens}, lost 0"
        )
        assert "you: What is the time in Lima?" in said
        assert "model: Done." in said
        first, second = panel.turn.requests
        assert f"request 1: reused {first.usage.cached_tokens:,}, processed {first.usage.read_tokens:,}," in said
        assert f"request 2: reused {second.usage.cached_tokens:,}, processed {second.usage.read_tokens:,}," in said
        assert "<summary>tool now_in → ok</summary>" in panel._past.value
        assert panel._now.value == ""
        assert (panel._send.disabled, panel._stop.disabled) == (False, True)


def test_the_page_streams_while_the_turn_runs_and_stop_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    reached = threading.Event()
    with scripted([*sse(text("Do")), reached.set, HANG], done(30, 0, 6)) as (server, script), begin(server, tmp_path) as loop:
        before, opened = log(loop), count_open()
        panel = displayed(ChatPanel(loop))
        streamed = threading.Event()
        panel._now.observe(lambda change: streamed.set() if "Do" in change["new"] else None, "value")
        panel._text.value = "One."
        panel._send.click()
        assert reached.wait(5)
        assert streamed.wait(5)
        assert panel.running
        assert panel._send.disabled
        panel._stop.click()
        assert threads_of_ours() == []
        assert script.requests[0].hung_up.wait(5)
        assert log(loop) == before
        assert panel.turn is not None
        assert (panel.turn.stop, panel.turn.text) == ("interrupted", "Do")
        assert "stopped: interrupted; the unfinished response was not logged" in str(panel)
        panel._text.value = "One."
        panel._send.click()
        panel.wait()
        assert script.requests[1].body == script.requests[0].body
        panel.close()
        panel.close()
        assert count_open() == opened
        assert verify(loop.session.dir).ok


def test_close_ends_a_running_turn_and_leaves_nothing_open(tmp_path: Path) -> None:
    reached = threading.Event()
    opened = count_open()
    with scripted([reached.set, HANG]) as (server, script), begin(server, tmp_path) as loop:
        with displayed(ChatPanel(loop)) as panel:
            assert count_open() > opened
            panel.ask("One.")
            assert reached.wait(5)
        assert script.requests[0].hung_up.wait(5)
        assert count_open() == opened
        assert panel._repr_mimebundle_() == {}
        assert "stopped: interrupted" in str(panel)


def test_a_panel_that_cannot_be_builded_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> NoReturn:
        raise PermissionError

    opened = count_open()
    with scripted() as (server, _), begin(server, tmp_path) as loop:
        for panel, fails in ((ChatPanel(loop), "sessions"), (LogExplorer(loop.session), "_picture")):
            monkeypatch.setattr(panel, fails, refused)
            with pytest.raises(PermissionError):
                panel._repr_mimebundle_()
            assert count_open() == opened


def test_stop_just_when_a_turn_is_begun_stops_it(tmp_path: Path) -> None:
    with scripted(*[[*sse(text("Do")), HANG]] * 20) as (server, _), begin(server, tmp_path) as loop:
        panel = ChatPanel(loop)
        for _ in range(20):
            panel.ask("One.")
            assert panel.stop()
            assert panel.turn is not None
            assert panel.turn.stop == "interrupted"


def test_a_tool_that_runs_is_waited_for_but_not_for_ever(tmp_path: Path) -> None:
    running, enough = threading.Event(), threading.Event()

    def slow(city: str) -> str:
        """Take time."""
        running.set()
        enough.wait(10)
        return "It is late."

    with scripted(calling(("a", "slow", LIMA))) as (server, _), begin(server, tmp_path, tools=[slow]) as loop:
        with displayed(ChatPanel(loop)) as panel:
            panel.ask("Go?")
            assert running.wait(5)
            assert not panel.stop(0.1)
            assert panel.running
            enough.set()
            assert panel.stop()
            assert panel.turn is not None
            assert [result.status for result in panel.turn.tool_calls] == ["ok"]
            assert "tool slow → ok" in str(panel)


def test_ctrl_c_while_it_is_waited_for_stops_the_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(seconds: float) -> None:
        monkeypatch.undo()
        ctrl_c()
        time.sleep(10)

    reached = threading.Event()
    with scripted([*sse(text("Do")), reached.set, HANG]) as (server, script), begin(server, tmp_path) as loop:
        panel = ChatPanel(loop)
        panel.ask("One.")
        assert reached.wait(5)
        monkeypatch.setattr(base, "time", SimpleNamespace(sleep=interrupted))
        with pytest.raises(KeyboardInterrupt):
            panel.wait()
        assert threads_of_ours() == []
        assert script.requests[0].hung_up.wait(5)
        assert "stopped: interrupted" in str(panel)


def test_an_error_of_the_turn_is_shown_and_raised_where_it_is_waited_for(tmp_path: Path) -> None:
    with scripted(sse(text("Do")), done(30, 0, 6)) as (server, _), begin(server, tmp_path) as loop:
        with displayed(ChatPanel(loop)) as panel:
            panel.ask("One.")
            with pytest.raises(StreamCut) as caught:
                panel.wait()
            assert panel.error is caught.value
            assert repr(panel).startswith("ChatPanel on session s: state failed, requests 0")
            assert f"error: {caught.value}" in str(panel)
            assert "model: Do" in str(panel)
            assert str(caught.value).split(":")[0] in panel._now.value
            panel.ask("Two.")
            panel.wait()
            assert repr(panel).startswith("ChatPanel on session s: state idle, requests 1")
            assert "error" not in str(panel)


def test_what_was_refused_or_not_answered_is_gone_with_the_next_turn(tmp_path: Path) -> None:
    """It is not in the log: the model never saw it, and never said the half that came."""
    reached = threading.Event()
    answers = [[*sse(text("Do")), reached.set, HANG], sse(text("Half")), done(30, 0, 6)]
    with scripted(*answers) as (server, _), begin(server, tmp_path) as loop:
        first, second = ChatPanel(loop), ChatPanel(loop)
        first.ask("One.")
        assert reached.wait(5)
        second.ask("Refused.")
        with pytest.raises(LoopBusy):
            second.wait()
        assert "you: Refused." in str(second)
        first.stop()
        second.ask("Cut.")
        with pytest.raises(StreamCut):
            second.wait()
        assert "model: Half" in str(second)
        second.ask("Answered.")
        second.wait()
        assert [line for line in str(second).splitlines() if line.startswith(("you", "model"))] == [
            "you: Answered.",
            "model: Done.",
        ]


def test_a_wrong_button_shows_why_and_a_wrong_call_raises(tmp_path: Path) -> None:
    reached = threading.Event()
    with scripted([reached.set, HANG]) as (server, _), begin(server, tmp_path) as loop, displayed(ChatPanel(loop)) as panel:
        panel._go_on.click()
        with pytest.raises(NothingToGoOn):
            panel.wait()
        assert "no turn in the middle" in panel._now.value or str(panel.error) in panel._now.value
        panel.ask("One.")
        assert reached.wait(5)
        with pytest.raises(LoopBusy):
            panel.ask("Two.")
        with pytest.raises(LoopBusy):
            panel.resume("s")
        panel._send.click()
        assert isinstance(panel.error, LoopBusy)
        assert panel.running
    with pytest.raises(InvalidConfig, match="str is not a Loop"):
        ChatPanel("s")  # type: ignore[arg-type]


def test_another_session_is_taken_up_with_the_same_tools_and_permission(tmp_path: Path) -> None:
    asked: list[str] = []

    def allow(name: str, arguments: object) -> bool:
        asked.append(name)
        return False

    answers = [done(30, 0, 6), calling(("a", "now_in", LIMA)), done(90, None, 6)]
    with scripted(*answers) as (server, _):
        with begin(server, tmp_path, "a", tools=[now_in]) as first:
            first.ask("Hello.")
        loop = begin(server, tmp_path, "b", tools=[now_in], allow=allow)
        with displayed(ChatPanel(loop)) as panel:
            assert panel.sessions() == ["b", "a"]
            assert panel._list.options == ("b", "a")
            panel._list.value = "a"
            panel._resume.click()
            assert panel.error is None
            assert panel.loop.session.id == "a"
            assert loop.session.closed
            assert str(panel).splitlines()[1:3] == ["you: Hello.", "model: Done."]
            panel.ask("And now?")
            panel.wait()
            assert asked == ["now_in"]
            assert "tool now_in → denied" in str(panel)
            panel.loop.close()


def test_a_session_that_cannot_be_taken_up_leaves_the_panel_with_its_own(tmp_path: Path) -> None:
    with scripted(done(30, 0, 6)) as (server, _), begin(server, tmp_path, "a") as loop, displayed(ChatPanel(loop)) as panel:
        with pytest.raises(SessionNotFound):
            panel.resume("nobody")
        panel.ask("Hello.")
        panel.wait()
        assert panel.loop.session.id == "a"
        panel.loop.close()


def test_what_was_asked_in_a_cell_is_shown_with_the_next_turn(tmp_path: Path) -> None:
    thought = reasoned("Let me ", "see.", then=done(60, None, 6)[1:])
    with scripted(done(30, 0, 6), thought) as (server, _), begin(server, tmp_path) as loop:
        panel = ChatPanel(loop)
        loop.ask("In a cell.")
        panel.ask("In the panel.")
        panel.wait()
        lines = str(panel).splitlines()
        assert [line for line in lines if line.startswith("you")] == ["you: In a cell.", "you: In the panel."]
        assert "thought: Let me see." in lines


def test_warnings_of_a_resume_are_shown(tmp_path: Path) -> None:
    with scripted(done(30, 0, 6)) as (server, _):
        begin(server, tmp_path, "a", tools=[now_in]).close()

        def now_in_(city: str) -> str:
            """Another description."""
            return city

        now_in_.__name__ = "now_in"
        with ChatPanel(begin(server, tmp_path, "b", tools=[now_in_], options=OPTIONS)) as panel:
            panel.resume("a")
            assert "note: " in str(panel)
            assert "now_in" in str(panel)
            panel.loop.close()
