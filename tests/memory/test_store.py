"""The lines are the truth: the database comes back from them, is never a half, and says so where the two disagree."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sqlite3
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from loopkit.errors import InvalidConfig, LogError, SessionIOError, TornLog
from loopkit.ids import ProjectId, RunId, Sha256Hash, Timestamp
from loopkit.memory.database import connect, is_local
from loopkit.memory.lines import Line, QueryLine, RunLine, SourceLine, StepLine
from loopkit.memory.memory import Memory
from loopkit.memory.store import Store
from loopkit.session.disk import AppendFile
from loopkit.session.journal import close_line
from tests.memory.make import LIGHT, PERU, QUESTION, TIME, Model, build, filled, no_orphans, records, rows

KILLS = int(os.environ.get("LOOPKIT_MEMORY_KILLS", "50"))


def lines(memory: Memory) -> list[dict[str, object]]:
    return [json.loads(line) for line in (memory.dir / "nodes.jsonl").read_bytes().split(b"\n")[:-1]]


def built(home: Path) -> Memory:
    memory = filled(home)
    build(memory, Model(unchanged_every=3))
    memory.synthesise(PERU, model=Model(), run=RunId("s1"))
    return memory


def test_the_lines_say_everything_and_levels_are_written_by_name(tmp_path: Path) -> None:
    memory = built(tmp_path)
    found = lines(memory)
    assert {line["kind"] for line in found} == {"source", "query", "run", "chunk", "node", "step"}
    assert all(list(line)[:2] == ["kind", "time"] and list(line)[-1] == "crc" for line in found)
    levels = {line["node"]["level"] for line in found if isinstance(line.get("node"), dict)}  # type: ignore[index]
    assert levels == {"L0", "L1", "L2"}
    assert rows(memory, "SELECT DISTINCT level FROM node ORDER BY 1") == [("L0",), ("L1",), ("L2",)]


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("UPDATE node SET level = 'l0'", "CHECK"),
        ("UPDATE node SET level = 0", "CHECK"),
        ("UPDATE node SET query_id = 'light' WHERE level = 'L0'", "CHECK"),
        ("UPDATE node SET query_id = NULL WHERE level = 'L1'", "CHECK"),
        ("UPDATE node SET query_id = 'nobody' WHERE level = 'L1'", "FOREIGN KEY"),
        ("DELETE FROM node WHERE level = 'L0'", "FOREIGN KEY"),
        ("INSERT INTO edge SELECT sha256, 'no such node' FROM node", "FOREIGN KEY"),
        ("UPDATE chunk SET run_id = 'nobody'", "FOREIGN KEY"),
    ],
)
def test_the_database_refuses_what_no_memory_is(sql: str, why: str, tmp_path: Path) -> None:
    memory = built(tmp_path)
    db = connect(memory.dir / "memory.db")
    try:
        with pytest.raises(sqlite3.IntegrityError, match=why):
            db.execute(sql)
    finally:
        db.close()


def test_rebuilding_gives_the_same_bytes_as_growing_did(tmp_path: Path) -> None:
    memory = built(tmp_path)
    grown, truth = memory.dump(), (memory.dir / "nodes.jsonl").read_bytes()
    for _ in range(2):
        memory.rebuild()
        same = memory.dump() == grown
        assert same
    assert (memory.dir / "nodes.jsonl").read_bytes() == truth
    no_orphans(memory)


@pytest.mark.parametrize("left", ["nothing", "rubbish", "empty", "another version"])
def test_without_its_database_a_memory_comes_back_from_the_lines(left: str, tmp_path: Path) -> None:
    memory = built(tmp_path)
    want, found = memory.dump(), memory.recall("Lima", 9)
    path = memory.dir / "memory.db"
    if left == "another version":
        db = connect(path)
        db.execute("PRAGMA user_version = 9999")
        db.close()
    else:
        for each in memory.dir.glob("memory.db*"):
            each.unlink()
    if left == "rubbish":
        path.write_bytes(b"not a database" * 1000)
        with pytest.raises(LogError, match="rebuild"):
            memory.dump()
        memory.rebuild()
    if left == "empty":
        path.touch()
    assert memory.dump() == want
    assert memory.recall("Lima", 9) == found
    assert memory.verify().ok


def test_a_home_without_a_memory_is_not_touched_by_reading(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    assert memory.recall("Lima") == ()
    assert len(memory.nodes()) == len(memory.edges()) == 0
    assert memory.verify().ok
    assert memory.block() == ""
    for refused in (memory.render, memory.write, memory.synthesise, lambda project: memory.build(project, LIGHT, QUESTION)):
        with pytest.raises(LogError, match="there is no project peru"):
            refused(PERU)
    with pytest.raises(LogError, match="no memory here"):
        memory.rebuild()
    assert list(tmp_path.iterdir()) == []


def test_a_project_that_is_not_known_or_not_built_writes_nothing(tmp_path: Path) -> None:
    memory = built(tmp_path)
    before = memory.write(PERU).read_bytes()
    memory.ingest(records(["A port."]), project=ProjectId("chile"))
    for project, why in (("prue", "no project prue. Known here: chile, peru"), ("chile", "no memory was built for chile")):
        with pytest.raises(LogError, match=why):
            memory.write(ProjectId(project))
    assert memory.dir.joinpath("core.md").read_bytes() == before != b""
    assert list(memory.nodes()["project"].unique()) == ["peru", "chile"]


def test_files_are_the_owners_alone(tmp_path: Path) -> None:
    memory = built(tmp_path / "home")
    for directory in (memory.dir, memory.dir.parent):
        assert oct(directory.stat().st_mode & 0o777) == "0o700"
    memory.write(PERU)
    files = ("nodes.jsonl", "memory.db", "core.md")
    assert [oct((memory.dir / name).stat().st_mode & 0o777) for name in files] == ["0o600"] * 3


def test_lines_that_the_database_does_not_have_are_taken_in(tmp_path: Path) -> None:
    """Killed between the append and the commit."""
    memory = filled(tmp_path)
    database = (memory.dir / "memory.db").read_bytes()
    memory.ingest(records(["One more."], "other/0"), project=PERU, budget=1)
    want = memory.dump()
    for each in memory.dir.glob("memory.db-*"):
        each.unlink()
    (memory.dir / "memory.db").write_bytes(database)
    assert len(memory.recall("more")) == 1
    assert memory.dump() == want


@pytest.mark.parametrize(
    ("name", "damage", "line"),
    [
        ("cut inside the last line", lambda data: data[:-5], -1),
        ("no final line feed", lambda data: data[:-1], -1),
        ("a blank line", lambda data: data + b"\n", 0),
        ("NULs", lambda data: data + b"\0" * 512, 0),
        ("a byte flipped", lambda data: data.replace(b"Fact 3", b"Fact 8", 1), None),
        ("CRLF", lambda data: data[:-1] + b"\r\n", -1),
        ("a BOM", lambda data: b"\xef\xbb\xbf" + data, 1),
        ("a line lost", lambda data: b"".join(data.splitlines(keepends=True)[:3] + data.splitlines(keepends=True)[4:]), 4),
    ],
)
def test_torn_lines_are_refused_by_line_and_untouched_until_salvaged(
    name: str, damage: object, line: int | None, tmp_path: Path
) -> None:
    memory = filled(tmp_path)
    path = memory.dir / "nodes.jsonl"
    sound = path.read_bytes()
    assert callable(damage)
    torn = damage(sound)
    path.write_bytes(torn)
    for each in memory.dir.glob("memory.db*"):
        each.unlink()
    calls = (memory.dump, memory.rebuild, lambda: memory.ingest(records(["x"]), project=PERU))
    for call in calls:
        with pytest.raises(TornLog, match="salvage") as caught:
            call()
        if line is not None:
            assert caught.value.line == (line if line > 0 else sound.count(b"\n") + 1 + line)
        assert path.read_bytes() == torn
    assert not memory.verify().ok
    memory.rebuild(salvage=True)
    assert (memory.dir / "nodes.jsonl.torn-1").read_bytes() == torn
    kept = path.read_bytes()
    assert torn.startswith(kept)
    assert kept.count(b"\n") == caught.value.line - 1
    assert memory.verify().ok
    memory.rebuild(salvage=True)
    assert path.read_bytes() == kept
    assert not (memory.dir / "nodes.jsonl.torn-2").exists()
    memory.ingest(records(["Fact 1 of Lima.", "Goes on."]), project=PERU)
    assert memory.verify().ok


def test_a_hash_that_was_changed_with_its_crc_is_refused_when_it_is_read(tmp_path: Path) -> None:
    memory = filled(tmp_path)
    path = memory.dir / "nodes.jsonl"
    crc, made = 0, b""
    for line in path.read_bytes().split(b"\n")[:-1]:
        data, crc = close_line(line[: line.rindex(b',"crc"')].replace(b"Fact 3", b"Fact 8"), crc)
        made += data
    path.write_bytes(made)
    with pytest.raises(TornLog, match="content has the hash"):
        memory.rebuild()
    assert "content has the hash" in memory.verify().faults[0]


def test_a_text_that_was_changed_in_the_database_is_refused_and_found(tmp_path: Path) -> None:
    memory = filled(tmp_path)
    (node,) = (each.node for each in memory.recall("3"))
    db = connect(memory.dir / "memory.db")
    db.execute("UPDATE node SET text = 'Fact 8' WHERE sha256 = ?", (node.sha256,))
    db.close()
    with pytest.raises(LogError, match="content has the hash"):
        memory.recall("3")
    faults = memory.verify().faults
    assert len(faults) == 1
    memory.rebuild()
    assert memory.verify().ok
    assert [each.node for each in memory.recall("3")] == [node]
    path = memory.dir / "nodes.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"text":"Fact 3', b'"text":"Fact 8'))
    with pytest.raises(LogError, match="content has the hash"):
        memory.trace(node)


def test_lines_that_are_gone_are_missed(tmp_path: Path) -> None:
    memory = filled(tmp_path)
    (memory.dir / "nodes.jsonl").unlink()
    with pytest.raises(LogError, match="which now has 0"):
        memory.recall("Lima")


def test_a_failed_append_leaves_lines_and_database_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = filled(tmp_path)
    before, truth = memory.dump(), (memory.dir / "nodes.jsonl").read_bytes()

    def full(self: AppendFile, data: bytes) -> None:
        os.write(self._fd, data[:7])
        raise SessionIOError(str(self.path), "append", "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(AppendFile, "append", full)
        with pytest.raises(SessionIOError, match="No space"):
            memory.ingest(records(["x"], "other/0"), project=PERU)
    assert (memory.dir / "nodes.jsonl").read_bytes() == truth
    assert memory.dump() == before
    memory.ingest(records(["x"], "other/0"), project=PERU)
    assert memory.verify().ok


def rebuild_for_ever(home: Path) -> None:
    while True:
        Memory(home).rebuild()


def state(memory: Memory) -> tuple[object, ...]:
    """What stands in the database, read by SQLite alone."""
    return tuple(
        rows(memory, sql)
        for sql in (
            "SELECT sha256 FROM node ORDER BY 1",
            "SELECT * FROM edge ORDER BY 1, 2",
            "SELECT sha256 FROM chunk ORDER BY 1",
            "PRAGMA integrity_check",
            "SELECT line, offset FROM place",
        )
    )


@pytest.mark.slow
def test_a_rebuild_that_is_killed_leaves_the_database_before_or_after(tmp_path: Path) -> None:
    memory = filled(tmp_path, 300)
    build(memory, Model(unchanged_every=3))
    memory.dump()
    before, bytes_before = state(memory), [each.read_bytes() for each in sorted(memory.dir.glob("memory.db*"))]
    names = sorted(memory.dir.glob("memory.db*"))
    memory.ingest(records((f"Later {at}." for at in range(300)), "later/0"), project=PERU, budget=1)
    after = state(memory)
    assert before != after
    began = time.perf_counter()
    memory.rebuild()
    wait = time.perf_counter() - began
    chance, context, seen = random.Random(7), multiprocessing.get_context("fork"), {"before": 0, "after": 0}
    for _ in range(KILLS):
        for each in memory.dir.glob("memory.db*"):  # the old database again, behind its lines
            each.unlink()
        for path, data in zip(names, bytes_before, strict=True):
            path.write_bytes(data)
        child = context.Process(target=rebuild_for_ever, args=(tmp_path,))
        child.start()
        time.sleep(chance.uniform(0, 2 * wait))
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        found = state(memory)
        assert found in (before, after)
        seen["before" if found == before else "after"] += 1
        wait *= 1.2 if found == before else 0.85  # so that kills fall on both sides of the commit, however busy the machine is
        no_orphans(memory)
    print(f"{KILLS} kills: {seen}")
    assert memory.verify().ok
    assert state(memory) == after
    assert min(seen.values()) > 0, "kills came before and after the commit"


def write_for_ever(home: Path, first: int, acknowledged: Connection) -> None:
    memory, at = Memory(home), first
    while True:
        memory.ingest(records([f"{at} " + "x" * 30_000], "w", at), project=PERU, budget=1)
        at += 1
        acknowledged.send(at)


@pytest.mark.slow
def test_a_writer_that_is_killed_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    memory, context, chance = filled(tmp_path, 1), multiprocessing.get_context("fork"), random.Random(11)
    written = torn = 0
    for _ in range(KILLS):
        reader, writer = context.Pipe(duplex=False)
        child = context.Process(target=write_for_ever, args=(tmp_path, written, writer))
        child.start()
        writer.close()
        time.sleep(chance.expovariate(1 / 0.05))
        child.kill()
        child.join()
        while reader.poll():
            try:
                written = reader.recv()
            except EOFError:
                break
        reader.close()
        try:
            memory.dump()
        except TornLog:
            memory.rebuild(salvage=True)
            torn += 1
        (kept,) = rows(memory, "SELECT count(*) FROM chunk WHERE source = 'w'")
        assert kept in ((written,), (written + 1,))
        written = int(str(kept[0]))
    assert written > 0
    assert memory.verify().ok
    no_orphans(memory)
    print(f"{KILLS} kills, {written} records, {torn} torn and salvaged")


def ingest_and_build(home: Path, name: str, count: int) -> None:
    memory = Memory(home)
    for at in range(count):
        memory.ingest(records([f"{name} {at}."], name, at), project=PERU, budget=1)
        memory.ingest(records([f"shared {at}."], "shared", at), project=PERU, budget=1)
    build(memory, Model(), f"b-{name}")


def test_two_processes_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=ingest_and_build, args=(tmp_path, name, 20)) for name in ("one", "two")]
    for child in children:
        child.start()
    memory = Memory(tmp_path)
    while any(child.is_alive() for child in children):
        memory.recall("shared")  # a third one reads
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert memory.verify().ok
    no_orphans(memory)
    assert rows(memory, "SELECT count(*) FROM node WHERE level = 'L0'") == [(60,)]
    assert rows(memory, "SELECT sum(records) FROM chunk") == [(60,)]
    grown = memory.dump()
    memory.rebuild()
    assert memory.dump() == grown
    build(memory, Model())  # what the one built without seeing all of the other's evidence
    again = Model()
    build(memory, again)
    assert again.calls == 0


def test_two_builds_of_one_query_at_once_keep_one_chain(tmp_path: Path) -> None:
    filled(tmp_path, 30)
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=build, args=(Memory(tmp_path), Model(), f"b{number}")) for number in (1, 2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    memory = Memory(tmp_path)
    assert rows(memory, "SELECT count(*) FROM step") == [(30,)]
    assert memory.verify().ok


def test_the_journal_is_chosen_by_the_file_system(tmp_path: Path) -> None:
    memory = filled(tmp_path)
    mode = rows(memory, "PRAGMA journal_mode")
    assert mode == [("wal" if is_local(memory.dir) else "delete",)]
    table = "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:9 / /far rw shared:1 - nfs4 s:/ rw\n3 2 0:9 / /far/by rw - tmpfs t rw"
    places = {"/home": True, "/far": False, "/far/a/b": False, "/farther": True, "/far/by/x": True}
    assert {place: is_local(Path(place), table) for place in places} == places
    assert not is_local(Path("/home"), "1 0 0:5 / / rw - fuse.sshfs s:/ rw")
    assert not is_local(Path("/home"), "")


def test_a_memory_works_with_a_rollback_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopkit.memory.database.is_local", lambda path: False)
    memory = built(tmp_path)
    assert rows(memory, "PRAGMA journal_mode") == [("delete",)]
    grown = memory.dump()
    memory.rebuild()
    assert memory.dump() == grown
    assert memory.verify().ok


@pytest.mark.parametrize(
    "line",
    [
        QueryLine(time=Timestamp(TIME), query="a b", project=PERU, text=QUESTION),  # type: ignore[arg-type]
        QueryLine(time=Timestamp(TIME), query=LIGHT, project=PERU, text=5),  # type: ignore[arg-type]
        SourceLine(time="now", source="s", path=None),  # type: ignore[arg-type]
        RunLine(time=Timestamp(TIME), run=RunId("r9"), project=PERU, task="dream"),  # type: ignore[arg-type]
        StepLine(time=Timestamp(TIME), query=None, previous=None, chunk="0", result=None),  # type: ignore[arg-type]
        StepLine(time=Timestamp(TIME), query=LIGHT, previous=None, chunk=Sha256Hash("0" * 64), result=Sha256Hash("0" * 64)),
    ],
)
def test_a_line_that_could_not_be_read_back_is_never_written(line: Line, tmp_path: Path) -> None:
    memory = filled(tmp_path)
    before, truth = memory.dump(), (memory.dir / "nodes.jsonl").read_bytes()
    with pytest.raises(InvalidConfig, match="Nothing was written"), Store(tmp_path).writing() as writing:
        writing.add(line)
    assert (memory.dir / "nodes.jsonl").read_bytes() == truth
    assert memory.dump() == before


def test_a_runs_name_is_taken_once(tmp_path: Path) -> None:
    memory = filled(tmp_path, run="r1")
    with pytest.raises(InvalidConfig, match="r1 is already a run of ingest"):
        build(memory, Model(), "r1")
