"""The log explorer as a plain object: pages, choosing, losses with their bytes, several epochs, and what its widgets hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from ipywidgets import Button

from loopkit import replay
from loopkit.errors import InvalidConfig, LogError, TornLog
from loopkit.logs.loading import load
from loopkit.server.client import Server
from loopkit.widgets.log_explorer import LogExplorer
from tests.logs.make import end, kept, start, user, write_session
from tests.loop.scripted_loops import begin
from tests.widgets.open_comms import count_open


def now_in(city: str) -> str:
    """The time of day in a city."""
    return f"In {city} it is 16:20."


def displayed(explorer: LogExplorer) -> LogExplorer:
    assert explorer._repr_mimebundle_()
    return explorer


def at(explorer: LogExplorer) -> tuple[str | None, int | None]:
    return explorer.session, explorer.epoch


def buttons(explorer: LogExplorer) -> dict[str, Button]:
    return {each.description: each for each in explorer._widgets if isinstance(each, Button)}


def size(explorer: LogExplorer) -> int:
    return sum(len(str(each.get_state())) for each in explorer._widgets)


def test_what_cannot_be_read_is_named_and_hides_nothing(tmp_path: Path) -> None:
    damaged = Path(__file__).parents[2] / "data" / "foreign" / "claude_code" / "damaged.jsonl"
    with pytest.raises(TornLog, match="--errors report"):
        LogExplorer(damaged)
    reported, given = LogExplorer(damaged, errors="report"), LogExplorer(load(damaged, errors="report"))
    assert str(reported) == str(given)
    assert "problems" in str(given)
    given.reload()
    assert given.logs is given.home


def test_what_is_printed_leaves_no_fact_out() -> None:
    explorer = LogExplorer(load(Path(__file__).parents[2] / "data" / "foreign" / "codex", errors="report"))
    assert repr(explorer).endswith(" more"), "one line has not the room"
    assert str(explorer).splitlines()[0] == str(explorer.logs).replace("Logs:", "LogExplorer:")
    explorer.open("new")
    assert "page 1 of 1, 1 row\n" in str(explorer)


def test_a_page_holds_its_rows_however_many_there_are(tmp_path: Path) -> None:
    write_session(tmp_path / "small", "s", [start("s"), *kept(30)])
    write_session(tmp_path / "large", "s", [start("s"), *kept(3000, new=1, loses=frozenset([1500]))])
    small, large = (displayed(LogExplorer(tmp_path / name)) for name in ("small", "large"))
    for explorer in (small, large):
        explorer.open("s")
        explorer._plot.value = b""
        assert len(explorer._table_box.children) == 13
    assert (small.pages, large.pages) == (3, 250)
    assert size(large) < size(small) * 1.2
    large.turn_to(125)
    first, *rows = [line.description.replace("\xa0", " ").split() for line in large._lines]
    assert first == ["request", "turn", "prompt", "reused", "processed", "lost", "cause"]
    assert rows[-1] == ["1,500", "1,500", "2,499", "0", "2,499", "2,498", "slot_taken"]
    assert len(rows) == 12
    large.turn_to(10**6)
    assert large.page == 250
    large.turn_to(-1)
    assert large.page == 1


def test_clicking_goes_down_to_a_request_and_up_again(tmp_path: Path) -> None:
    write_session(tmp_path, "a", [start("a"), *kept(3), end(9)], [start("a", 1, at=10), *kept(2, at=10)])
    write_session(tmp_path, "b", [start("b"), *kept(14, loses=frozenset([13]))])
    opened = count_open()
    with displayed(LogExplorer(tmp_path)) as explorer:
        assert [line.split()[0] for line in str(explorer).splitlines()[2:5]] == ["session", "a", "b"]
        plot = bytes(explorer._plot.value)
        assert plot.startswith(b"\x89PNG")
        explorer._lines[2].click()
        assert at(explorer) == ("b", 0)
        assert explorer._plot.value != plot
        buttons(explorer)["›"].click()
        explorer._lines[1].click()
        assert explorer.request == 13
        assert explorer.page == 2
        assert [line.button_style for line in explorer._lines[:3]] == ["", "info", ""]
        why = "because another request used the slot in between (slot_taken, confirmed, fixable by server, at slot 0)"
        assert f"2,100 tokens lost {why}" in explorer._below.value
        assert "taken_by: &quot;b&quot;" in explorer._below.value
        buttons(explorer)["Up"].click()
        assert explorer.session is None
        explorer._lines[1].click()
        assert at(explorer) == ("a", None)
        explorer._lines[2].click()
        assert at(explorer) == ("a", 1)
        buttons(explorer)["Up"].click()
        assert at(explorer) == ("a", None)
        assert explorer.error is None
        write_session(tmp_path, "c", [start("c"), *kept(1)])
        buttons(explorer)["Refresh"].click()
        assert len(str(explorer).splitlines()) == 6
        assert len(explorer._table_box.children) == 4
    assert count_open() == opened


@pytest.mark.server
def test_a_request_shows_what_it_added_and_an_epoch_what_it_began_with(tiny: Server, tmp_path: Path) -> None:
    with begin(tiny, tmp_path, tools=[now_in]) as loop:
        loop.ask("What is the time?")
        loop.end_epoch()
        loop.ask("Thank you.")
    explorer = LogExplorer(tmp_path)
    explorer.open("s", 0, 1)
    lines = str(explorer).splitlines()
    assert "added: system prompt: Be brief." in lines
    assert "added: tools: now_in, find_tool, call_tool, clock" in lines
    assert "added: you: What is the time?" in lines
    assert 'response: calls now_in: {"city": "."}' in lines
    explorer.open("s", 0, 2)
    lines = str(explorer).splitlines()
    assert lines[lines.index("added: tool now_in → ok:") + 2] == "  → In . it is 16:20."
    assert "response: model: Done." in lines
    assert any(line.startswith("bytes: ") and " appended to the " in line for line in lines)
    assert not any("system prompt" in line for line in lines)


@pytest.mark.server
def test_a_loss_shows_its_cause_and_the_differing_bytes(tiny: Server, tmp_path: Path) -> None:
    with begin(tiny, tmp_path) as loop:
        for number in range(3):
            loop.ask(f"Question {number}.")
    broken = replay.run(loop.session, tiny, "clock_in_system")
    explorer = LogExplorer(tmp_path)
    name = broken.sessions["session"].iloc[0]
    explorer.open(name, 0, 2)
    said = str(explorer)
    assert "(system_changed, confirmed, fixable by client, at messages[0].content)" in said
    was, now = (next(line for line in said.splitlines() if line.startswith(f"{name}: ")) for name in ("was", "now"))
    same = was.index("[")
    assert was[5:same] == now[5:same]
    assert "The time is 20" in was[:same]
    assert was[same + 1] != now[same + 1]


def test_of_a_new_epoch_the_bytes_that_changed_are_shown(tmp_path: Path) -> None:
    write_session(tmp_path, "a", [start("a"), *kept(3), end(9)], [start("a", 1, at=10), user(11), *list(kept(1, at=11))[1:]])
    directory = tmp_path / "sessions" / "a"
    explorer = LogExplorer(directory)
    explorer.open("a", 1, 1)
    assert "messages[3]: messages_removed" in str(explorer) or "bytes: " in str(explorer)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    write_session(tmp_path, "a", [start("a"), *kept(3)])
    explorer = LogExplorer(tmp_path)
    with pytest.raises(InvalidConfig, match="the logs have no session 'b'"):
        explorer.open("b")
    with pytest.raises(InvalidConfig, match="no epoch 7"):
        explorer.open("a", 7)
    with pytest.raises(InvalidConfig, match="no request 9"):
        explorer.open("a", 0, 9)
    with pytest.raises(InvalidConfig, match="rows"):
        LogExplorer(tmp_path, rows=0)
    with pytest.raises(LogError):
        LogExplorer(tmp_path / "nowhere")


def test_a_damaged_log_is_an_error_in_the_panel_and_an_odd_directory_a_note(tmp_path: Path) -> None:
    write_session(tmp_path, "a", [start("a"), *kept(3)])
    (tmp_path / "sessions" / "no session at all").mkdir()
    with displayed(LogExplorer(tmp_path)) as explorer:
        assert "its name is not a session id" in explorer._above.value
        log = tmp_path / "sessions" / "a" / "0.jsonl"
        log.write_bytes(log.read_bytes()[:-9])
        buttons(explorer)["Refresh"].click()
        assert "0.jsonl" in explorer._below.value
        assert "error: " in str(explorer)


def test_one_damaged_log_of_many_hides_no_other_where_that_is_asked_for(tmp_path: Path) -> None:
    for name in "abc":
        write_session(tmp_path, name, [start(name), *kept(3)])
    log = tmp_path / "sessions" / "b" / "0.jsonl"
    log.write_bytes(log.read_bytes()[:-9])
    with pytest.raises(TornLog):
        LogExplorer(tmp_path)
    with displayed(LogExplorer(tmp_path, errors="report")) as explorer:
        assert [line.split()[0] for line in str(explorer).splitlines()[4:]] == ["a", "b", "c"]
        assert "1; see logs.problems" in explorer._above.value
        explorer.open("c", 0, 3)
        assert "request 3: epoch 0 of c" in str(explorer)
        explorer.open("b")
        explorer._lines[1].click()
        assert "0.jsonl" in explorer._below.value


def test_an_empty_home_has_a_table_without_rows(tmp_path: Path) -> None:
    (tmp_path / "sessions").mkdir()
    with displayed(LogExplorer(tmp_path)) as explorer:
        assert str(explorer).splitlines()[1:] == [
            "sessions: page 1 of 1, 0 rows",
            "session  source  variant  epochs  requests  prompt  processed  lost",
        ]
        assert len(explorer._table_box.children) == 1
