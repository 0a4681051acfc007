"""Each member of a session, as its table in the specification states it."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from loopkit.contract.baseline import Baseline
from loopkit.contract.neutralise import Tags
from loopkit.contract.records import (
    Assistant,
    Carried,
    Forked,
    LogRecord,
    SessionStart,
    TagsFacts,
    ToolResult,
    Usage,
    UsageRecord,
    User,
)
from loopkit.errors import (
    BaselineError,
    BaselineMismatch,
    EncodeError,
    InvalidConfig,
    InvalidId,
    OutOfOrder,
    SessionClosed,
    SessionError,
    SessionExists,
    SessionIOError,
)
from loopkit.ids import CallId, SessionId
from loopkit.session.session import Session
from loopkit.session.verify import verify
from tests.session.build import (
    BASELINE,
    OPTIONS,
    SERVER,
    TAGS,
    TIME,
    TOOL,
    create,
    digests,
    end,
    filled,
    group,
    result,
)

ID = SessionId("lima")


def test_dir_for() -> None:
    assert Session.dir_for("runs", ID) == Path("runs/sessions/lima")
    with pytest.raises(InvalidId):
        Session.dir_for("runs", "../up")  # type: ignore[arg-type]


def test_create_writes_the_baseline_and_session_start(tmp_path: Path) -> None:
    with create(tmp_path, slot=1) as session:
        assert sorted(path.name for path in session.dir.iterdir()) == ["0.baseline.json", "0.jsonl"]
        assert (session.dir / "0.baseline.json").read_bytes() == BASELINE.to_json()
        (start,) = session.records
        assert isinstance(start, SessionStart)
        assert start == session.start
        assert (start.session, start.epoch, start.slot, start.options) == ("lima", 0, 1, OPTIONS)
        assert (start.server, start.tags, start.baseline_sha256) == (SERVER, TAGS, BASELINE.hash())
        assert (session.id, session.epoch, session.baseline, session.options) == (ID, 0, BASELINE, OPTIONS)
        assert (session.pending, session.last_usage(), session.next_call()) == ((), None, 1)


def test_create_never_overwrites(tmp_path: Path) -> None:
    create(tmp_path).close()
    before = digests(tmp_path / "sessions" / "lima")
    with pytest.raises(SessionExists, match=re.escape(str(tmp_path / "sessions" / "lima"))):
        create(tmp_path)
    assert digests(tmp_path / "sessions" / "lima") == before
    (tmp_path / "sessions" / "empty").mkdir()
    with pytest.raises(SessionExists):
        create(tmp_path, "empty")
    (tmp_path / "sessions" / "file").touch()
    with pytest.raises(SessionExists):
        create(tmp_path, "file")


@pytest.mark.parametrize("umask", [0, 0o022, 0o077, 0o277])
def test_modes_do_not_depend_on_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with create(tmp_path / "home") as session:
            session.extend(group(session, "Hi."))
            session.append(end())
            session.next_epoch(BASELINE)
    finally:
        os.umask(before)
    for path in (tmp_path / "home", tmp_path / "home" / "sessions", session.dir):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in session.dir.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(list(session.dir.iterdir())) == 4


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"options": {"x": float("nan")}}, EncodeError),
        ({"options": {"messages": []}}, EncodeError),
        ({"options": {"n": 1 << 70}}, EncodeError),
        ({"slot": -1}, EncodeError),
        ({"baseline": Baseline("lone \ud83d", ())}, BaselineError),
    ],
)
def test_what_cannot_be_encoded_leaves_no_session(tmp_path: Path, change: dict[str, Any], error: type[Exception]) -> None:
    facts: dict[str, Any] = {"baseline": BASELINE, "slot": None, "options": {}, "server": SERVER, "tags": TAGS} | change
    with pytest.raises(error):
        Session.create(tmp_path, ID, facts.pop("baseline"), **facts)
    assert list(tmp_path.iterdir()) == []


def test_open_gives_back_all_of_it(tmp_path: Path) -> None:
    with filled(tmp_path) as session:
        epochs = [(epoch.baseline, list(epoch.records)) for epoch in session.epochs]
        facts = (session.next_call(), session.pending, session.last_usage(), session.epoch, session.messages())
    for again in (Session.read(tmp_path, ID), Session.open(tmp_path, ID)):
        assert [(epoch.baseline, list(epoch.records)) for epoch in again.epochs] == epochs
        assert (again.next_call(), again.pending, again.last_usage(), again.epoch, again.messages()) == facts
        assert again.records is again.epochs[-1].records
        again.close()


def test_open_goes_on_where_the_log_ends(tmp_path: Path) -> None:
    with create(tmp_path) as session:
        session.extend(group(session, "One?", None, ids=["a", "b"]))
    with Session.open(tmp_path, ID) as session:
        assert [call.id for call in session.pending] == ["a", "b"]
        session.append(result(1, "b"))
        assert [call.id for call in session.pending] == ["a"]
    with Session.open(tmp_path, ID) as session:
        assert [call.id for call in session.pending] == ["a"]
        session.append(result(session.next_call(), "a"))
        session.extend(group(session, "Two?"))
        assert session.next_call() == 3
    assert verify(tmp_path).ok


def test_memory_holds_what_the_disk_holds(tmp_path: Path) -> None:
    """What is handed in may change afterwards, and a whole number may stand where a float belongs."""
    evidence: dict[str, Any] = {"a": [1]}
    with create(tmp_path) as session:
        records = group(session, "Hi.", loss=5)
        records[2] = msgspec.structs.replace(records[2], elapsed_ms=40)
        records[3] = msgspec.structs.replace(records[3], evidence=evidence)
        session.extend(records)
        evidence["a"].append(2)
        assert list(Session.read(tmp_path, ID).records) == list(session.records)
        assert '"elapsed_ms":40.0' in (session.dir / "0.jsonl").read_text()


def test_extend_with_nothing_writes_nothing(tmp_path: Path) -> None:
    with create(tmp_path) as session:
        before = digests(session.dir)
        session.extend([])
        assert digests(session.dir) == before


@pytest.mark.parametrize(
    ("record", "member"),
    [
        (User(time=TIME, content="half \ud83d"), "user.content"),
        (User(time="yesterday", content=""), "user.time"),
        (User(time=TIME, content=3), "user"),  # type: ignore[arg-type]
        (User(time=TIME, content="x", neutralised=0), "user"),
        (Assistant(time=TIME, tool_calls=Raw(b"[1")), "assistant.tool_calls"),
        (Assistant(time=TIME, tool_calls=Raw(b"[\n]")), "assistant.tool_calls"),
        (Assistant(time=TIME, tool_calls=Raw(b" []")), "assistant.tool_calls"),
        (Assistant(time=TIME, tool_calls=Raw(b'{"id":1}')), "assistant"),
    ],
)
def test_what_cannot_be_encoded_is_named_and_nothing_is_written(tmp_path: Path, record: LogRecord, member: str) -> None:
    with create(tmp_path) as session:
        before = digests(session.dir)
        with pytest.raises(EncodeError) as caught:
            session.extend([record, *group(session, None)])
        assert caught.value.member == member
        assert "Nothing was written" in str(caught.value)
        assert digests(session.dir) == before
        assert len(session.records) == 1
        session.extend(group(session, "Hi."))


def test_nothing_that_open_would_refuse_can_be_written(tmp_path: Path) -> None:
    with create(tmp_path) as session:
        session.extend(group(session, "Hi.", None, ids=["a"]))
        whole = group(session, "More?")
        refused: list[list[LogRecord]] = [
            [User(time=TIME, content="Hi.")],
            whole[:2],
            whole,
            [result(1, "z")],
            [result(1, "a"), result(2, "a")],
            [end(), *whole],
            [session.records[0]],
            [whole[2]],
        ]
        before = digests(session.dir)
        for records in refused:
            with pytest.raises(OutOfOrder, match="Nothing was written"):
                session.extend(records)
        assert digests(session.dir) == before
        session.append(result(1, "a"))
        with pytest.raises(OutOfOrder, match=r"usage\.request is 3, but the next request is 2"):
            session.extend([msgspec.structs.replace(r, request=3) if isinstance(r, UsageRecord) else r for r in whole])
        with pytest.raises(OutOfOrder, match="write the whole group with one extend"):
            session.extend(whole[:2])
        session.extend(group(session, "More?"))
    assert verify(tmp_path).ok


def test_call_numbers_rise_through_the_session(tmp_path: Path) -> None:
    with create(tmp_path) as session:
        session.extend(group(session, "Hi.", None, ids=["a", "b", "c"]))
        assert session.next_call() == CallId(1)
        session.append(result(1, "a"))
        session.append(result(5, "b"))
        assert session.next_call() == 6
        for number in (5, 4, 1):
            with pytest.raises(OutOfOrder, match=rf"tool_result\.call is {number}, but it must be greater than 5"):
                session.append(result(number, "c"))
        session.append(result(6, "c"))
        session.append(end())
        carried = [record for record in session.records if isinstance(record, (User, Assistant, ToolResult))]
        session.next_epoch(BASELINE, carried)
        assert session.next_call() == 7
        session.extend(group(session, None, None, ids=["a"]))
        with pytest.raises(OutOfOrder):
            session.append(result(6, "a"))
        session.append(result(7, "a"))
    assert Session.read(tmp_path, ID).next_call() == 8


def test_next_epoch(tmp_path: Path) -> None:
    with create(tmp_path, slot=2) as session:
        session.extend(group(session, "Hi."))
        with pytest.raises(OutOfOrder, match="has not ended"):
            session.next_epoch(BASELINE)
        session.append(end())
        assert session.ended
        with pytest.raises(OutOfOrder, match="no record may follow epoch_end"):
            session.extend(group(session, "Hi."))
        carried = session.records[1:3]
        session.next_epoch(Baseline("Be kind.", ()), carried, slot=None, options={"seed": 8})
        assert (session.epoch, session.start.slot, session.options) == (1, None, {"seed": 8})
        assert session.start.carried == Carried(kind="turn", from_epoch=0, records=2)
        assert list(session.records[1:]) == list(carried)
        assert [message.role for message in session.messages()] == ["system", "user", "assistant"]
        session.append(end())
        session.next_epoch(Baseline("Be kind.", ()))
        assert (session.start.slot, session.options, session.start.server) == (None, {"seed": 8}, SERVER)
        assert repr(session.start.carried) == "UNSET"
        session.extend(group(session, "Hi."))
        assert [epoch.baseline.system for epoch in session.epochs] == ["Be brief.", "Be kind.", "Be kind."]
    assert verify(tmp_path).ok


@pytest.mark.parametrize("bad", ["usage", "open calls", "result without a call"])
def test_what_cannot_be_carried_is_refused(tmp_path: Path, bad: str) -> None:
    with create(tmp_path) as session:
        session.extend(group(session, "Hi.", None, ids=["a"]))
        session.append(result(1, "a"))
        session.append(end())
        carried = {"usage": session.records[1:5], "open calls": session.records[1:3], "result without a call": [result(9, "a")]}
        before = digests(session.dir)
        with pytest.raises(OutOfOrder):
            session.next_epoch(BASELINE, carried[bad])
        assert digests(session.dir) == before
        session.next_epoch(BASELINE, [User(time=TIME, content="What was said.")], kind="summary")
    assert Session.read(tmp_path, ID).start.carried == Carried(kind="summary", from_epoch=0, records=1)


def test_an_unfinished_roll_is_named_and_replaced(tmp_path: Path) -> None:
    with create(tmp_path) as session:
        session.append(end())
        lone = session.dir / "1.baseline.json"
    assert session.unfinished_roll is None
    lone.write_bytes(b'{"system":"half')
    with Session.open(tmp_path, ID) as session:
        assert session.unfinished_roll == lone
        assert (session.epoch, session.ended) == (0, True)
        session.next_epoch(BASELINE)
        assert not session.unfinished_roll
    assert lone.read_bytes() == BASELINE.to_json()
    assert Session.read(tmp_path, ID).epoch == 1


def test_requests_are_those_that_were_sent(tmp_path: Path) -> None:
    with filled(tmp_path) as session:
        recorded = [
            record.request_sha256 for epoch in session.epochs for record in epoch.records if isinstance(record, UsageRecord)
        ]
        assert [request.sha256 for request in session.requests()] == recorded
        bodies = [request.body for request in session.requests()]
        assert json.loads(bodies[0])["messages"][0]["content"] == "Be brief."
        assert bodies[1].startswith(next(session.requests()).prefix)


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_fork_begins_as_the_session_up_to_a_group(tmp_path: Path, at: int) -> None:
    with create(tmp_path) as session:
        session.extend(group(session, "One?", None, ids=["a"]))
        session.append(result(1, "a"))
        session.extend(group(session, None, loss=3))
        session.extend(group(session, "Three?"))
        before = digests(session.dir)
        with session.fork(at, SessionId("fork")) as fork:
            kept = [1, 5, 8, 11][at]
            assert list(fork.records[1:]) == list(session.records[1:kept])
            assert fork.start.forked == Forked(session="lima", epoch=0, line=kept)
            assert fork.start.session == "fork"
            fork.extend(group(fork, "Elsewhere?"))
        assert digests(session.dir) == before
        session.extend(group(session, "Four?"))
    assert verify(tmp_path).ok


def test_fork_keeps_the_epochs_before_whole(tmp_path: Path) -> None:
    with filled(tmp_path) as session, session.fork(1, SessionId("fork")) as fork:
        assert fork.epoch == 1
        assert list(fork.epochs[0].records[1:]) == list(session.epochs[0].records[1:])
        assert [epoch.start.forked for epoch in fork.epochs] == [
            Forked(session="lima", epoch=0, line=len(session.epochs[0].records)),
            Forked(session="lima", epoch=1, line=len(fork.records)),
        ]
        assert fork.next_call() == 4
        with pytest.raises(InvalidConfig, match="at: it must be 0 to 2, the number of groups of epoch 1; got 9"):
            session.fork(9, SessionId("other"))
        with pytest.raises(SessionExists):
            session.fork(0, SessionId("fork"))
    assert verify(tmp_path).ok


def test_reading_takes_no_lock_and_never_writes(tmp_path: Path) -> None:
    with filled(tmp_path) as session:
        reader = Session.read(tmp_path, ID)
        assert list(reader.records) == list(session.records)
        with pytest.raises(SessionClosed, match=r"it was opened with Session\.read"):
            reader.append(end())
        with pytest.raises(SessionClosed, match=r"it was opened with Session\.read"):
            reader.next_epoch(BASELINE)
        session.append(end())


def test_close_is_final_and_frees_the_session(tmp_path: Path) -> None:
    session = create(tmp_path)
    session.close()
    session.close()
    with pytest.raises(SessionClosed, match="it was closed"):
        session.append(end())
    with Session.open(tmp_path, ID) as again, pytest.raises(SessionClosed):
        session.append(end())
    assert len(again.records) == 1


@pytest.mark.parametrize("act", [Session.open, Session.read])
def test_a_baseline_that_is_not_the_epochs_is_refused(tmp_path: Path, act: Callable[[Path, SessionId], Session]) -> None:
    with filled(tmp_path) as session:
        path = session.dir / "0.baseline.json"
    path.write_bytes(BASELINE.to_json().replace(b"brief", b"grief"))
    with pytest.raises(BaselineMismatch) as caught:
        act(tmp_path, ID)
    found = Baseline("Be grief.", (TOOL,)).hash()
    assert (caught.value.path, caught.value.expected, caught.value.found) == (str(path), BASELINE.hash(), found)
    for part in (str(path), BASELINE.hash(), found):
        assert part in str(caught.value)
    path.write_bytes(BASELINE.to_json() + b"\n")
    with pytest.raises(BaselineMismatch):
        act(tmp_path, ID)
    path.unlink()
    with pytest.raises(BaselineError, match=re.escape(str(path))):
        act(tmp_path, ID)


def test_a_baseline_that_is_not_there_is_asked_for_by_its_hash(tmp_path: Path) -> None:
    with create(tmp_path) as session:
        (session.dir / "0.baseline.json").unlink()
    with pytest.raises(BaselineError, match=f"cannot be read: .* restore the file with SHA-256 {BASELINE.hash()}"):
        Session.open(tmp_path, session.id)


def test_the_baseline_is_a_snapshot(tmp_path: Path) -> None:
    from loopkit.config import Config

    class Tools:
        def core_schemas(self) -> list[Any]:
            return [TOOL]

    home = tmp_path / "runs"
    (home / "memory").mkdir(parents=True)
    (home / "memory" / "core.md").write_text("Lima is in Peru.\n")
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Be brief.\n")
    config = Config(home=home, system_file=prompt)
    tags = Tags(literals=["Peru"])  # what the session neutralises, and today's block is held against
    pinned = TagsFacts(id=tags.id, literals=tags.literals)
    baseline = Baseline.assemble(config, Tools(), tags=tags)
    with Session.create(home, ID, baseline, slot=None, options={}, server=SERVER, tags=pinned) as session:
        assert not session.drift(config, Tools())
        prompt.write_text("Be kind.\n")
        (home / "memory" / "core.md").write_text("Lima is the capital of Peru.\n")
        drift = session.drift(config, None)
        assert session.baseline == baseline
    assert str(drift).split("\n") == [
        "system: -Be brief.",
        "system: +Be kind.",
        "system: -Lima is in &#80;eru.",
        "system: +Lima is the capital of &#80;eru.",
        "tool now_in: removed",
    ]
    assert Session.read(home, ID).baseline == baseline


def test_the_card_says_no_path_and_no_time(tmp_path: Path) -> None:
    with filled(tmp_path) as session:
        text, html = repr(session), session._repr_html_()
        assert text == "Session lima: epoch 1, requests 2, records 11"
        assert str(tmp_path) not in text + html
        assert "<table>" in html
    assert "it was closed" in repr(session)


def test_last_usage_is_the_epochs(tmp_path: Path) -> None:
    with create(tmp_path) as session:
        session.extend(group(session, "Hi."))
        assert session.last_usage() == Usage(prompt_tokens=101, cached_tokens=90, completion_tokens=7, ttft_ms=12.5)
        session.append(end())
        session.next_epoch(BASELINE)
        assert session.last_usage() is None


def test_every_error_is_a_session_error() -> None:
    for kind in (SessionExists, SessionIOError, SessionClosed, EncodeError, OutOfOrder, BaselineMismatch):
        assert issubclass(kind, SessionError)


SCRIPT = """
import sys
from pathlib import Path
from tests.session.build import filled
home = Path(sys.argv[1])
filled(home).close()
for path in sorted((home / "sessions" / "lima").iterdir()):
    data = path.read_bytes()
    print(path.name, len(data), *[line[-12:] if b"session_start" not in line else b"" for line in data.split(b"\\n")])
print([request.sha256 for request in __import__("loopkit.session.session", fromlist="x").Session.read(home, "lima").requests()])
"""


def test_another_hash_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    printed = set()
    for seed in ("0", "1", "4242"):
        home = tmp_path / seed
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(home)],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            cwd=Path(__file__).parents[2],
        )
        text = re.sub(rb"b'[0-9a-f\"}\\\\n:,]*'", b"", run.stdout)
        printed.add((text, (home / "sessions" / "lima" / "0.baseline.json").read_bytes()))
    assert len(printed) == 1
