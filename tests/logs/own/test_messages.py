"""What is read of a log a second time: messages, requests, causes, and traces without text."""

from __future__ import annotations

import dataclasses
import pickle
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from msgspec import structs

from loopkit import cache
from loopkit.cache.prefixes.prompt_parts import Prompt
from loopkit.contract.records import LogRecord
from loopkit.encoding import decode, sha256
from loopkit.errors import BaselineError, BaselineMismatch, InvalidConfig, LogError, TornLog
from loopkit.logs.collection import Logs
from loopkit.logs.loading import load
from loopkit.logs.problems import Errors
from loopkit.loop.opening import start as begin
from loopkit.server.opening import connect, serve
from loopkit.session.journal import close_line
from tests.logs.make import assistant, end, kept, loss, replay, stamp, start, usage, user, write, write_session
from tests.logs.test_load import TOOLS, column

ERRORS: tuple[Errors, ...] = ("raise", "report")
GOLDEN = Path(__file__).parents[3] / "data" / "golden"


def test_messages(tmp_path: Path) -> None:
    write_session(tmp_path, "a", TOOLS)
    made = load(tmp_path).messages
    assert column(made, "position") == [0, 1, 2, 3, 4, 5, 6]
    assert column(made, "role") == ["system", "user", "assistant", "tool", "assistant", "user", "assistant"]
    assert column(made, "turn") == [None, 1, 1, 1, 1, 2, 2]
    assert column(made, "tool") == [None, None, None, "now_in", None, None, None]
    assert column(made, "truncated") == [None, None, None, False, None, None, None]
    assert column(made, "neutralised") == [None, 0, None, 0, None, 0, None]
    assert "content" not in made
    assert set(made["session"]) == {"a"}
    with_text = load(tmp_path, content=True).messages
    assert column(with_text, "content")[:4] == ["Be brief.", "What is the time in Lima?", "It is nine.", "09:00"]
    pd.testing.assert_frame_equal(with_text.drop(columns="content"), made)


@pytest.mark.server
def test_two_processes_in_one_slot_are_named_by_both_logs(tmp_path: Path) -> None:
    """Each sees of the other only what the slot holds: live that looks like a shifted context or a missing checkpoint."""
    with serve("tiny", slots=1, cache_ram_mib=0) as server:

        def talk(name: str) -> None:
            with connect(server.url, api_key=server.api_key) as other:
                with begin(other, system=f"You are {name}. " * 20, slot=0, home=tmp_path, id=name, memory="") as loop:
                    loop.on_event = None
                    for _ in range(8):
                        loop.ask("Hello.")

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(talk, ("a", "another")))
    logs = load(tmp_path)
    assert len(logs.cache_loss)
    sure = logs.cache_loss[logs.cache_loss["certainty"] == "confirmed"]
    assert set(sure["cause"]) <= {"slot_taken"}
    assert {loss.diagnosis.cause for loss in logs.diagnose().losses} == {"slot_taken"}


def test_a_message_has_the_bytes_that_were_sent(tmp_path: Path) -> None:
    """Joined by commas they are the request's messages."""
    write_session(tmp_path, "a", TOOLS)
    logs = load(tmp_path)
    last = list(logs.requests())[-1]
    assert last.body is not None
    sent = decode(last.body)["messages"]
    made = logs.messages.iloc[: len(sent)]
    assert made["bytes"].sum() + len(sent) - 1 == len(last.body.split(b'"messages":[', 1)[1]) - len(b"]}")
    hashes = [sha256(b'{"role":"user","content":"What is the time in Lima?"}')] * 2
    assert made["sha256"][made["role"] == "user"].tolist() == hashes


def test_a_log_that_is_shorter_than_when_it_was_loaded_is_not_asked_for_more(tmp_path: Path) -> None:
    write_session(tmp_path, "a", TOOLS)
    logs = load(tmp_path)
    write_session(tmp_path, "a", [start("a"), *kept(2)])
    with pytest.raises(LogError, match="the log has changed since it was loaded"):
        _ = logs.messages
    with pytest.raises(LogError, match="the log has changed since it was loaded"):
        list(logs.requests())
    write_session(tmp_path, "a", TOOLS)
    assert len(logs.messages) == 7


def test_carried_messages_are_of_no_turn(tmp_path: Path) -> None:
    second: list[LogRecord] = [start("a", 1, at=5, carried=2), user(1), assistant(2), assistant(7)]
    write_session(tmp_path, "a", [start("a"), *kept(1), end(4)], [*second, usage(7, 1, 300, 0)])
    made = load(tmp_path).messages
    assert column(made[made["epoch"] == 1], "turn") == [None, None, None, 1]


def test_messages_are_those_of_the_loading_and_not_of_later(tmp_path: Path) -> None:
    write_session(tmp_path, "a", [start("a"), *kept(2)])
    logs = load(tmp_path)
    write_session(tmp_path, "a", [start("a"), *kept(5)])
    assert len(logs.messages) == 5
    assert len(list(logs.requests())) == len(logs.usage) == 2
    again = pickle.loads(pickle.dumps(load(tmp_path)))
    assert len(again.messages) == 11


def test_a_message_that_is_none_is_named_when_it_is_asked_for(tmp_path: Path) -> None:
    """Messages are not decoded for the other frames."""
    path = write_session(tmp_path, "a", [start("a"), *kept(2)]) / "0.jsonl"
    bodies = [line[:-19] for line in path.read_bytes().splitlines(keepends=True)]
    bodies[1] = bodies[1].replace(b'"content"', b'"contant"')
    crc, made = 0, b""
    for body in bodies:
        line, crc = close_line(body, crc)
        made += line
    path.write_bytes(made)
    logs = load(tmp_path)
    assert len(logs.usage) == 2
    with pytest.raises(TornLog, match=r"0\.jsonl:2: "):
        _ = logs.messages


def test_requests_are_the_bodies_that_were_sent(tmp_path: Path) -> None:
    logs = load(GOLDEN)
    sent = list(logs.requests())
    assert [sha256(prompt.body or b"") for prompt in sent] == logs.usage["request_sha256"].tolist()
    assert {prompt.session for prompt in sent} == {"format-1"}
    assert cache.reuse(sent).equals(cache.reuse(logs))
    write(tmp_path / "replays/r.jsonl", replay(None, 3))
    assert list(load(tmp_path).requests()) == [], "a replay's log holds no bodies"


def test_diagnose_says_what_the_frame_of_losses_says_and_its_coverage(tmp_path: Path) -> None:
    write_session(tmp_path, "a", TOOLS)
    write_session(tmp_path, "b", [start("b", at=100), user(101), assistant(102), usage(102, 1, 25, None)])
    write(tmp_path / "replays/r.jsonl", replay("live_system", 4, broken=True))
    logs = load(tmp_path)
    found = logs.diagnose()
    assert found.requests == 4, "replays apart"
    [lost] = found.losses
    assert (lost.observation.session, lost.observation.request, lost.lost_tokens, lost.reusable_tokens) == ("a", 3, 504, 1104)
    assert lost.diagnosis == ("slot_taken", "confirmed", "server", "slot 0", {"slot": 0, "taken_by": "b"})
    assert found.coverage == (0.75, 0.5, 1.0)
    assert repr(found) == (
        "1 loss in 4 requests: slot_taken 504 tokens, with usage 75%, rendered exactly 50%, lost with a cause 100%"
    )
    replays = load(tmp_path / "replays/r.jsonl").diagnose()
    assert [each.first for each in replays.losses] == [True, False, False], "one event"
    assert load([]).diagnose().coverage == (None, None, None)


def test_what_had_no_cause_live_is_judged_again_beside_the_other_sessions(tmp_path: Path) -> None:
    """While it was written, nobody here knew of the other session at the same slot."""
    unexplained = structs.replace(loss(20, 2, expected=1004, cached=0, cause="unexplained"), certainty="unexplained", evidence={})
    first: list[LogRecord] = [start("a"), user(1), assistant(2), usage(2, 1, 1000, 0)]
    write_session(tmp_path, "a", [*first, user(19), assistant(20), usage(20, 2, 1100, 0, expected=1004), unexplained])
    assert [each.diagnosis.cause for each in load(tmp_path).diagnose().losses] == ["unexplained"]
    write_session(tmp_path, "b", [start("b"), user(9), assistant(10), usage(10, 1, 3000, 0)])
    [lost] = load(tmp_path).diagnose().losses
    assert (lost.diagnosis.cause, lost.lost_tokens) == ("slot_taken", 1004)
    write_session(tmp_path, "b", [start("b", model="another"), user(9), assistant(10), usage(10, 1, 3000, 0)])
    assert [each.diagnosis.cause for each in load(tmp_path).diagnose().losses] == ["unexplained"], "another model's cache"
    (tmp_path / "sessions/a/0.baseline.json").unlink()
    assert [each.diagnosis.cause for each in load(tmp_path).diagnose().losses] == ["unexplained"]
    with pytest.raises(BaselineError, match="cannot be read"):
        list(load(tmp_path).requests())


def test_a_trace_holds_prefixes_and_no_text(tmp_path: Path) -> None:
    write_session(tmp_path, "a", TOOLS)
    write_session(tmp_path, "b", [start("b"), *kept(2)])
    logs = load(tmp_path)
    assert logs.export_trace(tmp_path / "trace.jsonl", b"salt" * 4, block=16) == 5
    rows = [decode(line) for line in (tmp_path / "trace.jsonl").read_bytes().splitlines()]
    first, second = rows[0]["hash_ids"], rows[1]["hash_ids"]
    whole = rows[0]["input_length"] // 16
    assert len(first) == -(-rows[0]["input_length"] // 16)
    assert second[:whole] == first[:whole]
    assert second[whole] != first[-1]
    assert rows[3]["hash_ids"][:whole] == first[:whole], "of another session, too"
    assert rows[0]["timestamp"] == 2000
    assert (rows[0]["prompt_tokens"], rows[0]["cached_tokens"], rows[0]["output_length"]) == (1000, 0, 5)
    assert rows[0]["session"] == rows[1]["session"] != rows[3]["session"]
    text = (tmp_path / "trace.jsonl").read_text()
    assert "Lima" not in text
    assert '"a"' not in text
    logs.export_trace(tmp_path / "fine.jsonl", b"salt" * 4, block=1)
    fine = decode((tmp_path / "fine.jsonl").read_bytes().splitlines()[1])["hash_ids"]
    assert len(set(fine)) == len(fine), "a block's number stands for all before it, so none comes twice"
    logs.export_trace(tmp_path / "other.jsonl", b"SALT" * 4, block=16)
    other = [decode(line) for line in (tmp_path / "other.jsonl").read_bytes().splitlines()]
    assert not {*first}.intersection(other[0]["hash_ids"])
    with pytest.raises(InvalidConfig, match="salt: it must have at least 16 bytes; got 4"):
        logs.export_trace(tmp_path / "short.jsonl", b"salt")
    with pytest.raises(LogError, match="nothing is overwritten"):
        logs.export_trace(tmp_path / "trace.jsonl", b"salt" * 4)


def test_what_cannot_be_read_to_the_end_leaves_no_half_file(tmp_path: Path) -> None:
    write_session(tmp_path, "a", TOOLS)
    write_session(tmp_path, "b", [start("b"), *kept(2)])
    logs, log = load(tmp_path), tmp_path / "sessions/b/0.jsonl"
    log.write_bytes(log.read_bytes().replace(b"Lima", b"Rome"))
    writing: dict[str, Callable[[Path], Any]] = {
        "trace.jsonl": lambda path: logs.export_trace(path, bytes(16)),
        "csv": logs.to_csv,
        "parquet": logs.to_parquet,
    }
    (tmp_path / "out").mkdir()
    for name, write_to in writing.items():
        with pytest.raises(TornLog):
            write_to(tmp_path / "out" / name)
    assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(LogError, match="cannot be written: No such file or directory"):
        load(tmp_path / "sessions/a").export_trace(tmp_path / "no" / "trace.jsonl", bytes(16))


def test_a_trace_never_takes_the_place_of_what_came_while_it_was_written(tmp_path: Path) -> None:
    write_session(tmp_path, "a", [start("a"), *kept(2)])
    [part] = load(tmp_path).parts
    path = tmp_path / "trace.jsonl"

    def told_late() -> Iterator[Prompt]:
        yield Prompt(tokens=range(10))
        path.write_text("another's")

    with pytest.raises(LogError, match="nothing is overwritten"):
        Logs((dataclasses.replace(part, requests=told_late),)).export_trace(path, bytes(16))
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["trace.jsonl"]
    assert path.read_text() == "another's"


def test_what_an_adapter_knows_of_a_prompt_is_given_on(tmp_path: Path) -> None:
    """Tokens, blocks or messages; of a request of which nothing is known only the usage counts."""
    write_session(tmp_path, "a", [start("a"), *kept(4)])
    [part] = load(tmp_path).parts
    said = [Prompt(tokens=range(10)), Prompt(blocks=["x", "y", "z"]), None, Prompt(messages=[{"role": "user", "content": "Hi."}])]
    logs = Logs((dataclasses.replace(part, requests=said.copy),))
    found = list(logs.requests())
    assert [(each.tokens, each.blocks) for each in found] == [(range(10), None), (None, ["x", "y", "z"]), (None, None)]
    assert {each.session for each in found} == {"a"}
    assert found[2].time == stamp(5.25)
    assert logs.export_trace(tmp_path / "trace.jsonl", bytes(16), block=4) == 3
    rows = [decode(line) for line in (tmp_path / "trace.jsonl").read_bytes().splitlines()]
    assert [(row["unit"], row["input_length"], len(row["hash_ids"])) for row in rows[:2]] == [("tokens", 10, 3), ("blocks", 3, 3)]
    assert rows[2]["unit"] == "bytes"
    assert logs.diagnose().requests == 4


@pytest.mark.parametrize("errors", ERRORS)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda file: file.write_bytes(file.read_bytes().replace(b"brief", b"chief")), "its SHA-256 is "),
        (Path.unlink, "cannot be read: No such file or directory"),
    ],
)
def test_a_baseline_that_is_not_what_the_log_was_written_under_is_told_and_not_shown(
    change: Callable[[Path], object], why: str, errors: Errors, tmp_path: Path
) -> None:
    """What is counted does not rest on it, so it is loaded; the system prompt does."""
    write_session(tmp_path, "a", [start("a"), *kept(1), end(9)], [start("a", 1, at=20), *kept(2)])
    write_session(tmp_path, "b", [start("b"), *kept(1)])
    file = tmp_path / "sessions/a/1.baseline.json"
    change(file)
    logs = load(tmp_path, errors=errors, content=True)
    assert len(logs.usage) == 4
    [problem] = logs.unread
    assert (problem.path, problem.kind, problem.line) == (str(file), "baseline", None)
    assert problem.why.startswith(why)
    assert logs.where(session="b").unread == ()
    assert logs.where(session="a").concat(load(tmp_path / "sessions/a", errors=errors)).unread == (problem,)
    with pytest.raises(BaselineError, match=re.escape(f"{file}: {why}")):
        list(logs.requests())
    if errors == "raise":
        with pytest.raises(BaselineError, match=re.escape(f"{file}: {why}")):
            _ = logs.messages
    else:
        made = logs.messages
        assert column(made[made["role"] == "system"], "epoch") == [0, 0], "all that is sound"
        assert not made["content"].str.contains("chief").any()
        logs.to_csv(tmp_path / "csv")


def test_a_baseline_that_is_changed_after_the_loading_is_not_shown(tmp_path: Path) -> None:
    file = write_session(tmp_path, "a", [start("a"), *kept(1)]) / "0.baseline.json"
    for errors in ERRORS:
        logs = load(tmp_path, errors=errors)
        sound = file.read_bytes()
        file.write_bytes(sound.replace(b"brief", b"chief"))
        with pytest.raises(BaselineMismatch):
            _ = logs.messages
        file.write_bytes(sound)
        assert column(logs.messages, "role") == ["system", "user", "assistant"]


@pytest.mark.parametrize("errors", ["ignore", "", None])
def test_an_unknown_way_with_errors_is_refused(tmp_path: Path, errors: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"errors: it must be 'raise' or 'report'; got "):
        load(tmp_path, errors=errors)
