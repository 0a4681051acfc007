"""Identity is the content: what is in a hash, what is not, and that nothing can change it unseen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from loopkit.contract.provenance import Provenance, Record, Role
from loopkit.errors import InvalidConfig, InvalidId
from loopkit.ids import ProjectId, QueryId, RunId, Sha256Hash
from loopkit.memory.nodes import Chunk, Level, MemoryNode, canonical

DATA = Path(__file__).parents[2] / "data" / "memory"
TIMES = ("2026-11-30T07:31:05.000000Z", "2027-01-01T00:00:00.000001Z", None)
CHUNK = "9ff011b881f8f329b855d09f5bab6630bfe652ffb8538357083352d636559ab1"
NODE = "8a5269726ea406102caa8faa5d5e0caa8e9ebea1678a59f9cb895439fe8c32d8"


def record(text: str = "Is it light?", offset: int = 0, source: str = "lima/0", time: str | None = TIMES[0]) -> Record:
    return Record(Role.User, text, time, Provenance(source, offset))


def node(text: str = "It is.", level: Level = Level.L1, run: str = "r1", t: int = 1, **more: Any) -> MemoryNode:
    query = QueryId("light") if level is Level.L1 else None
    fields = {"project": ProjectId("peru"), "query_id": query, "parents": (), **more}
    return MemoryNode.of(level, run_id=RunId(run), t=t, text=text, **fields)


def test_a1_same_content_same_hash() -> None:
    first = Chunk.of(1, [record(time=TIMES[0]), record("Yes.", 90, time=TIMES[0])], 20)
    again = Chunk.of(7, [record(time=TIMES[1]), record("Yes.", 90, time=TIMES[2])], 31)
    assert first != again
    assert first.sha256 == again.sha256 == first.content_hash() == again.content_hash()
    one, other = node(run="r1", t=1), node(run="another-run", t=9, parents=(Sha256Hash.of(b""),))
    assert one != other
    assert one.sha256 == other.sha256 == one.content_hash() == other.content_hash()


@given(st.text(min_size=1), st.integers(0, 10_000), st.characters(exclude_categories=["Cs"]))
def test_a2_text_change_changes_hash(text: str, at: int, other: str) -> None:
    at %= len(text)
    changed = text[:at] + other + text[at + 1 :]
    same = changed == text
    assert (node(text).sha256 == node(changed).sha256) is same
    for place in (0, 1):
        texts = ["one", "two"]
        before, after = list(texts), list(texts)
        before[place], after[place] = text, changed
        hashes = [Chunk.of(1, [record(each, at) for at, each in enumerate(made)], 1).sha256 for made in (before, after)]
        assert (hashes[0] == hashes[1]) is same


@pytest.mark.parametrize("pair", [("é", "e\u0301"), ("a\n", "a"), ("a\r\n", "a\n"), ("> 1 %", "< 1 %"), ("A", "a"), ("a", " a")])
def test_nothing_is_folded(pair: tuple[str, str]) -> None:
    assert node(pair[0]).sha256 != node(pair[1]).sha256
    assert Chunk.of(1, [record(pair[0])], 1).sha256 != Chunk.of(1, [record(pair[1])], 1).sha256


def test_every_part_of_the_meaning_counts() -> None:
    nodes = [
        node(),
        node(project=ProjectId("chile")),
        node(query_id=QueryId("dark")),
        node(level=Level.L0),
        node(level=Level.L2),
        node(text="it is."),
    ]
    chunks = [
        Chunk.of(1, records, 1)
        for records in (
            [record()],
            [record(offset=1)],
            [record(source="lima/1")],
            [record(), record()],
            [record("ab"), record("c")],
            [record("a"), record("bc")],
        )
    ]
    hashes = {each.sha256 for each in nodes} | {each.sha256 for each in chunks}
    assert len(hashes) == len(nodes) + len(chunks)


FIELD = st.none() | st.integers(0, 300) | st.text()


@given(st.lists(FIELD, max_size=4), st.lists(FIELD, max_size=4))
def test_no_two_contents_share_an_encoding(one: list[str | int | None], other: list[str | int | None]) -> None:
    key = [(type(each).__name__, each) for each in one] == [(type(each).__name__, each) for each in other]
    assert (canonical("x", *one) == canonical("x", *other)) is key
    assert canonical("x", *one) != canonical("y", *one)


def test_a3_level_wire_format() -> None:
    for level in ("L0", "L1", "L2"):
        made = node(level=Level(level))
        assert json.loads(made.to_json())["level"] == level
        assert f'"level":"{level}"'.encode() in made.to_json()
        for wrong in (level.lower(), int(level[1]), f"Level.{level}"):
            with pytest.raises(ValueError, match="level"):
                MemoryNode.from_json(made.to_json().replace(f'"{level}"'.encode(), json.dumps(wrong).encode()))


def test_a4_hash_stability_across_versions() -> None:
    chunk = Chunk.from_json((DATA / "chunk.json").read_bytes())
    made = MemoryNode.from_json((DATA / "node.json").read_bytes())
    assert chunk.sha256 == chunk.content_hash() == CHUNK
    assert made.sha256 == made.content_hash() == NODE
    assert chunk.to_json() == (DATA / "chunk.json").read_bytes()
    assert made.to_json() == (DATA / "node.json").read_bytes()


SNIPPET = """
from loopkit.ids import ProjectId, QueryId, RunId, Sha256Hash
from loopkit.memory.nodes import Level, MemoryNode

project = ProjectId("peru")
MemoryNode.of(Level.L2, project, None, RunId("r1"), 1, "text", ())
ProjectId()
QueryId()
RunId()
Sha256Hash()
MemoryNode.of(Level.L2, "peru", None, RunId("r1"), 1, "text", ())
MemoryNode.of(Level.L1, project, "light", RunId("r1"), 1, "text", ())
MemoryNode.of(Level.L2, project, None, "r1", 1, "text", ())
MemoryNode.of(Level.L2, project, None, RunId("r1"), 1, "text", ("0" * 64,))
"""


@pytest.mark.slow
def test_a5_newtypes_have_no_default(tmp_path: Path) -> None:
    for kind in (ProjectId, QueryId, RunId, Sha256Hash):
        with pytest.raises(TypeError):
            kind()  # type: ignore[call-arg]
        with pytest.raises(InvalidId):
            kind("")
    snippet = tmp_path / "snippet.py"
    snippet.write_text(SNIPPET, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", str(snippet)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    refused = {
        int(line.split("snippet.py:")[1].split(":")[0]): line.rsplit("[", 1)[1]
        for line in done.stdout.splitlines()
        if "snippet.py" in line
    }
    want = dict.fromkeys(range(7, 11), "call-arg]") | dict.fromkeys(range(11, 15), "arg-type]")
    assert refused == want, done.stdout + done.stderr


def test_a_bare_string_is_refused_when_it_runs_as_well() -> None:
    with pytest.raises(InvalidId, match="ProjectId"):
        node(project="peru")
    with pytest.raises(InvalidId, match="QueryId"):
        node(query_id="light")
    with pytest.raises(InvalidConfig, match="at level L1"):
        node(query_id=None)
    with pytest.raises(InvalidConfig, match="at level L1"):
        node(level=Level.L0, query_id=QueryId("light"))


def test_a_hash_that_the_content_does_not_give_is_refused() -> None:
    chunk, made = Chunk.of(1, [record()], 4), node()
    for value, change in ((chunk, {"records": (record("other"),)}), (made, {"text": "other"}), (made, {"sha256": chunk.sha256})):
        with pytest.raises(InvalidConfig, match="content has the hash"):
            replace(value, **change)
    with pytest.raises(ValueError, match="content has the hash"):
        Chunk.from_json(chunk.to_json().replace(b"light", b"night"))
    with pytest.raises(ValueError, match="content has the hash"):
        MemoryNode.from_json(made.to_json().replace(b"It is.", b"It was"))


TEXT = st.text(max_size=50)
RECORDS = st.lists(
    st.builds(record, TEXT, st.integers(0, 1 << 40), st.text(min_size=1, max_size=50), st.sampled_from(TIMES)),
    min_size=1,
    max_size=4,
)


@given(RECORDS, st.integers(1, 99), TEXT, st.sampled_from(Level))
def test_every_type_survives_json(records: list[Record], t: int, text: str, level: Level) -> None:
    chunk, made = Chunk.of(t, records, t), node(text, level, t=t, parents=(Sha256Hash.of(text.encode()),))
    assert Chunk.from_json(chunk.to_json()) == chunk
    again = MemoryNode.from_json(made.to_json())
    assert again == made
    assert [type(each) for each in (again.project, again.run_id, again.sha256, *again.parents)] == [
        ProjectId,
        RunId,
        Sha256Hash,
        Sha256Hash,
    ]
