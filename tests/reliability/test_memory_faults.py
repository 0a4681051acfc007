"""The system refuses at every call of a memory's life, and its database is damaged: the truth stays whole, and says so."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loopkit.errors import LoopkitError, SessionIOError
from loopkit.ids import RunId
from loopkit.memory import database, memory, store
from loopkit.memory.memory import Memory
from loopkit.session import disk
from tests.memory.make import LIGHT, PERU, QUESTION, Model, build, filled, records
from tests.reliability.test_write_faults import Faulty

MODULES = (disk, store, memory)
WATCHED = ("open", "link", "replace", "fchmod", "write", "fsync", "fdatasync", "ftruncate")


def life(home: Path, acknowledged: list[str]) -> None:
    """One of each thing that writes. What has returned is acknowledged."""
    held = Memory(home)
    for at in range(2):
        held.ingest(records([f"Fact {at}."], "notes", at), project=PERU, budget=1)
        acknowledged.append(f"User: Fact {at}.")
    held.build(PERU, LIGHT, QUESTION, model=Model())
    acknowledged.append("Fact 0. Fact 1.")
    held.write(PERU)
    held.rebuild()
    with (held.dir / "nodes.jsonl").open("ab") as file:
        file.write(b"torn")
    held.rebuild(salvage=True)


@contextlib.contextmanager
def failing(fails: Callable[[str, int], str | None]) -> Iterator[Faulty]:
    faulty = Faulty(fails, WATCHED)
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            patch.setattr(module, "os", faulty)
        yield faulty


def whole(home: Path, acknowledged: list[str]) -> None:
    """Every acknowledged text is there, and what was refused can be done."""
    held = Memory(home)
    if (held.dir / "nodes.jsonl").exists():
        held.rebuild(salvage=True)
        assert set(acknowledged) <= set(held.nodes()["text"])
        assert held.verify().ok
    life(home, [])
    assert held.verify().ok


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["ENOSPC", "short, then full"])
def test_a_refusal_at_any_call_names_its_path_and_leaves_the_truth_whole(fault: str, tmp_path: Path) -> None:
    with failing(lambda name, at: None) as counting:
        life(tmp_path / "counted", [])
    calls = counting.calls
    assert {"link", "replace", "write", "fsync", "fdatasync"} <= set(calls)
    for place, name in enumerate(calls):
        if fault == "short, then full" and name != "write":
            continue
        home, acknowledged = tmp_path / f"{place}", list[str]()
        with failing(lambda name, at, place=place: fault if at == place else None):  # type: ignore[misc]
            with pytest.raises(SessionIOError) as caught:
                life(home, acknowledged)
            assert str(home) in str(caught.value), name
        whole(home, acknowledged)


def grow(home: Path, acknowledged: list[str]) -> None:
    for at in range(1000):
        Memory(home).ingest(records([f"Fact {at}. " + "word " * 900], "w", at), project=PERU, budget=1, run=RunId("w"))
        acknowledged.append(f"Fact {at}.")


@pytest.mark.parametrize("pages", [5, 25, 40, 60])
def test_a_full_disk_under_the_database_is_an_error_and_no_loss(
    pages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, acknowledged = database.connect, list[str]()

    def full(path: Path | str, *, to_write: bool = False) -> sqlite3.Connection:
        db = real(path, to_write=to_write)
        if path:
            db.execute(f"PRAGMA max_page_count = {pages}")
        return db

    with monkeypatch.context() as patched:
        patched.setattr(store, "connect", full)
        with pytest.raises(SessionIOError, match="full"):
            grow(tmp_path, acknowledged)
    held = Memory(tmp_path)
    assert len(held.nodes()) in (len(acknowledged), len(acknowledged) + 1)
    assert held.verify().ok


def test_a_damaged_database_is_named_remade_and_never_gets_into_the_truth(tmp_path: Path) -> None:
    chance, refused = random.Random(5), 0
    for number in range(30):
        held = filled(tmp_path / f"{number}")
        build(held, Model(unchanged_every=3))
        want, path = set(held.nodes()["sha256"]), held.dir / "memory.db"
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        data = bytearray(path.read_bytes())
        for _ in range(chance.choice([1, 20, 3_000])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data[: chance.randrange(len(data))] if number % 5 == 0 else data)
        for act in (
            lambda held=held: held.recall("Lima 3", 3),
            lambda held=held: [held.trace(node) for node in held.nodes()["sha256"]],
            lambda held=held: held.edges(),
            lambda held=held: held.dump(),
            lambda held=held: held.render(PERU),
            lambda held=held: repr(held),
            lambda held=held: build(held, Model(), "b9"),
            lambda held=held: held.ingest(records(["Fact 1 of Lima.", "More."], "more"), project=PERU),
        ):
            try:
                act()
            except LoopkitError:
                refused += 1
        held.verify()
        held.rebuild()
        assert held.verify().ok
        assert want <= set(held.nodes()["sha256"])
    assert refused > 40


def test_a_memory_that_cannot_be_written_to_can_be_read(tmp_path: Path) -> None:
    """As another user, where this one may write anywhere."""
    held = filled(tmp_path)
    build(held, Model())
    held.write(PERU)
    want = (
        held.recall("Lima", 9),
        held.trace(held.recall("Lima")[0].node),
        held.render(PERU),
        held.dump(),
        repr(held),
        held.block(),
    )
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    for path in (held.dir, *held.dir.iterdir()):
        path.chmod(0o555 if path.is_dir() else 0o444)
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            there = Memory(tmp_path)
            found = (
                there.recall("Lima", 9),
                there.trace(there.recall("Lima")[0].node),
                there.render(PERU),
                there.dump(),
                repr(there),
            )
            assert (*found, there.block()) == want
            for act in (there.rebuild, lambda: there.write(PERU), lambda: there.ingest(records(["x"]), project=PERU)):
                with pytest.raises(SessionIOError, match=str(tmp_path)):
                    act()
            status = 0
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    held.dir.chmod(0o700)


def test_what_cannot_be_read_is_an_error_and_not_an_empty_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = filled(tmp_path)
    build(held, Model())
    held.write(PERU).write_bytes(b"\xff")
    with pytest.raises(LoopkitError, match="not UTF-8"):
        held.block()

    def denied(self: Path, **options: object) -> os.stat_result:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "stat", denied)
    assert "Permission denied" in held.verify().faults[0]
    for act in (lambda: held.recall("Lima"), lambda: repr(held), lambda: held.trace("0" * 64)):
        with pytest.raises(SessionIOError, match="Permission denied"):
            act()
