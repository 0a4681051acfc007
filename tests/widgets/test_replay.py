"""The replay panel as a plain object: the comparison fills in, can be stopped in a request, and its errors are shown."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from loopkit import replay
from loopkit.contract.records import ReplayRecord
from loopkit.errors import InvalidConfig, LoopBusy, StreamCut
from loopkit.logs.loading import load
from loopkit.server.client import Server
from loopkit.session.session import Session
from loopkit.widgets.replay_panel import CHOICE, Replay
from tests.loop.scripted_loops import begin, done, scripted
from tests.server.scripted import HANG, sse, text
from tests.widgets.open_comms import count_open

VARIANTS = ["live_system", "summarised"]


@pytest.fixture
def session(tiny: Server, tmp_path: Path) -> Session:
    with begin(tiny, tmp_path) as loop:
        for number in range(6):
            loop.ask(f"Question {number}.")
    return loop.session


@pytest.mark.server
def test_the_comparison_fills_in_run_by_run(session: Session, tiny: Server) -> None:
    opened = count_open()
    with Replay(session, tiny) as panel:
        assert panel._repr_mimebundle_()
        filled: list[list[str]] = []
        panel._below.observe(lambda change: filled.append([name for name in CHOICE if f">{name}</td>" in change["new"]]), "value")
        assert "variants: live_system, clock_in_system" in str(panel)
        panel._choice.value = VARIANTS
        panel._repeats.value = 2
        panel._start.click()
        panel.wait()
        assert panel.error is None
        assert (panel._done, panel._total, panel._bar.value, panel._bar.max) == (36, 36, 36, 36)
        assert [] in filled
        assert ["live_system"] in filled
        assert filled[-1] == VARIANTS
        assert panel.frame is not None
        rows = replay.summary(panel.frame)
        assert rows["repeats"].tolist() == [2, 2, 2]
        assert int(rows["lost_tokens"]["unchanged"]) == 0
        lost, read = int(rows["lost_tokens"]["live_system"]), int(rows["read_tokens"]["live_system"])
        assert lost > 0
        assert f"<th>live_system</th><td>{read:,} processed, {lost:,} lost</td>" in panel._repr_html_()
        assert f">{read:,}</td>" in panel._below.value
        assert "system_changed" in str(panel)
        assert (panel._start.disabled, panel._stop.disabled) == (False, True)
    assert count_open() == opened


@pytest.mark.filterwarnings("ignore:A run may find prompts")
def test_stop_cuts_the_request_under_way_and_keeps_what_was_measured(tmp_path: Path) -> None:
    reached = threading.Event()
    answers = [done(30, 0, 6), done(30, 0, 6), [*sse(text("Do")), reached.set, HANG]]
    with scripted(*answers) as (server, script), begin(server, tmp_path) as loop:
        loop.ask("One.")
        with Replay(loop.session, server) as panel:
            panel._repr_mimebundle_()
            panel.run(["live_system"])
            assert reached.wait(5)
            with pytest.raises(LoopBusy):
                panel.run(["live_system"])
            panel._stop.click()
            assert script.requests[2].hung_up.wait(5)
            panel.wait()
            assert repr(panel).startswith("Replay of session s: state stopped, requests 1 of 2, unchanged 30 processed")
            assert not panel.running
        assert load(tmp_path).sessions["source"].tolist() == ["loopkit", "replay"]


@pytest.mark.filterwarnings("ignore:A run may find prompts")
def test_an_error_is_shown_and_raised_where_it_is_waited_for(tmp_path: Path) -> None:
    with scripted(done(30, 0, 6), sse(text("Do"))) as (server, _), begin(server, tmp_path) as loop:
        loop.ask("One.")
        with Replay(loop.session, server) as panel:
            panel._repr_mimebundle_()
            panel.run(["live_system"])
            with pytest.raises(StreamCut):
                panel.wait()
            assert "state failed" in repr(panel)
            assert "error: " in str(panel)
            assert "error:" in panel._below.value
            panel.run(["tools_shuffled"])
            with pytest.raises(InvalidConfig, match="changes none"):
                panel.wait()


@pytest.mark.filterwarnings("ignore:A run may find prompts")
def test_a_comparison_that_cannot_be_made_leaves_the_last_one(tmp_path: Path) -> None:
    with scripted(*[done(30, 0, 6)] * 5) as (server, _), begin(server, tmp_path) as loop:
        loop.ask("One.")
        with Replay(loop.session, server) as panel:
            panel._repr_mimebundle_()
            panel.run("live_system")
            panel.wait()
            assert (panel._done, panel._total) == (2, 2), "a name by itself is one variant"
            good, said = panel.frame, repr(panel)
            assert good is not None
            with pytest.raises(InvalidConfig, match="unknown variant 'live'"):
                panel.run(["live"])
            assert panel.frame is good
            assert repr(panel) == said
            panel.run(["tools_shuffled"])
            with pytest.raises(InvalidConfig, match="changes none"):
                panel.wait()
            assert panel.frame is good
            panel.run(["clock_in_system"])
            panel.wait()
            assert panel.frame is not None
            assert set(panel.frame["variant"]) == {"unchanged", "clock_in_system"}


def test_a_replay_is_of_a_session() -> None:
    with scripted() as (server, _), pytest.raises(InvalidConfig, match="a str is not a Session"):
        Replay("s", server)  # type: ignore[arg-type]


@pytest.mark.server
def test_compare_tells_of_each_request_and_of_each_run(session: Session, tiny: Server) -> None:
    requests: list[ReplayRecord] = []
    runs: list[int] = []
    frame = replay.compare(
        session, tiny, ["live_system"], progress=False, on_request=requests.append, on_run=lambda rows: runs.append(len(rows))
    )
    assert [record.request for record in requests] == [1, 2, 3, 4, 5, 6] * 2
    assert runs == [6, 12]
    assert len(frame) == 12
