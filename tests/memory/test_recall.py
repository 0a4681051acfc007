"""Memory is read: found by words, traced to bytes, rendered into the block that a baseline takes in."""

from __future__ import annotations

import warnings
from pathlib import Path

import pandas as pd
import pytest

from loopkit.cache.prefixes.volatile import find_volatile
from loopkit.contract.provenance import Provenance
from loopkit.errors import InvalidConfig, InvalidId, LogError
from loopkit.ids import QueryId
from loopkit.memory import Memory, open
from loopkit.memory import recall as reading
from loopkit.memory.nodes import Level
from tests.memory.make import LIGHT, PERU, QUESTION, Model, build, filled, records


def test_the_best_comes_first_with_its_provenance(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    texts = ["The sun sets in Lima at six.", "Lima has a port.", "Six of one, half a dozen of the other.", "Nothing."]
    memory.ingest(records(texts), project=PERU, budget=1)
    found = memory.recall("sun Lima six", 9)
    assert found[0].node.text == "User: The sun sets in Lima at six."
    assert found[0].provenance == (Provenance("notes/0", 0),)
    assert {each.node.text for each in found[1:]} == {f"User: {texts[1]}", f"User: {texts[2]}"}
    assert [each.node.level for each in found] == [Level.L0] * 3
    assert len(memory.recall("sun Lima six", 2)) == 2
    assert memory.recall("LIMA port")[0].node.text == "User: Lima has a port."


@pytest.mark.parametrize(
    "query", ["", "  ", '"', "*", "'; DROP TABLE node", "a AND", "NEAR(", "text:", "-", "\0", "^x", "é" * 5000]
)
def test_any_words_can_be_asked_for(query: str, tmp_path: Path) -> None:
    memory = filled(tmp_path)
    assert memory.recall(query) == ()


def test_letters_beyond_ascii_are_found(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.ingest(records(["El atardecer en Perú", "Öl ist teuer", "snake_case name"]), project=PERU, budget=1)
    for query in ("peru", "PERÚ", "ol", "öl", "snake_case", "case"):
        assert len(memory.recall(query)) == 1, query


def test_words_that_stand_everywhere_do_not_widen_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "COMMON", 3)
    memory = filled(tmp_path, 6)
    assert len(memory.recall("Lima", 9)) == 6
    assert [each.node.text for each in memory.recall("Lima 4 nowhere", 9)] == ["User: Fact 4 of Lima."]
    memory.ingest(records(["Fact 9."], "more"), project=PERU, budget=1)
    assert len(memory.recall("Lima Fact nowhere", 9)) == 6, "where all are common, the rarest counts"


def test_of_a_memory_only_what_it_is_now_is_found(tmp_path: Path) -> None:
    memory = filled(tmp_path, 3)
    build(memory, Model())
    found = memory.recall("Fact", 9)
    assert [each.node.level for each in found].count(Level.L1) == 1
    assert [each.node.text for each in found if each.node.level is Level.L1] == [
        "Fact 0 of Lima. Fact 1 of Lima. Fact 2 of Lima."
    ]
    assert len(memory.nodes()) == 6
    memory.rebuild()
    assert memory.recall("Fact", 9) == found


def test_a_folded_node_is_traced_to_every_record_it_came_from(tmp_path: Path) -> None:
    memory = filled(tmp_path, 4)
    file = tmp_path / "notes.txt"
    file.write_bytes(b"".join(b"%-99d\n" % at for at in range(4)))
    build(memory, Model())
    best = memory.recall("0 1 2 3", 1)[0]
    assert best.node.level is Level.L1
    assert best.provenance == tuple(Provenance("notes/0", 100 * at) for at in range(4))
    evidence = memory.trace(best.node)
    assert [(each.source, each.offset, each.text, each.path, each.line) for each in evidence] == [
        ("notes/0", 100 * at, f"Fact {at} of Lima.", None, None) for at in range(4)
    ]
    for name in ("0" * 64, "0" * 8):
        with pytest.raises(LogError, match=f"no node {name}"):
            memory.trace(name)
    name = repr(best.node).split()[2].rstrip(":")
    assert memory.trace(name) == memory.trace(best.node.sha256[:40]) == evidence, "as it is printed"
    for wrong in (name[:7], name + "g", name.upper() + "A", best.node.sha256 + "0"):
        with pytest.raises(InvalidId, match="64 lowercase hex digits, or at least the first 8"):
            memory.trace(wrong)


def test_a_beginning_that_several_nodes_have_is_refused_with_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopkit.memory.recall.PRINTED", 1)
    memory = Memory(tmp_path)
    memory.ingest(records([f"Note {number}." for number in range(20)]), project=PERU, budget=1)
    names = sorted(memory.nodes()["sha256"])
    for digit in {name[0] for name in names}:
        same = [name for name in names if name[0] == digit]
        if len(same) == 1:
            assert memory.trace(digit) == memory.trace(same[0])
        else:
            with pytest.raises(InvalidConfig, match=f"node: {len(same)} nodes begin with {digit}: {same[0]}, {same[1]}"):
                memory.trace(digit)


def test_frames_have_their_columns_and_dtypes_empty_or_not(tmp_path: Path) -> None:
    memory = filled(tmp_path, 3)
    build(memory, Model())
    empty = Memory(tmp_path / "none")
    for one, other in ((memory.nodes(), empty.nodes()), (memory.edges(), empty.edges())):
        pd.testing.assert_series_equal(one.dtypes, other.dtypes)
    assert list(memory.nodes().columns) == ["sha256", "level", "project", "query_id", "run_id", "t", "text"]
    assert str(memory.nodes()["t"].dtype) == "Int64"
    assert memory.nodes()["query_id"].isna().sum() == 3
    assert set(memory.edges()["parent"]) <= set(memory.nodes()["sha256"])


def test_a_lineage_is_the_node_and_what_it_was_made_from(tmp_path: Path) -> None:
    memory = filled(tmp_path, 5)
    build(memory, Model())
    folded = memory.nodes().query("level == 'L1'")["sha256"]
    lineage = memory.lineage(folded.iloc[1])
    assert list(lineage.nodes["level"]) == ["L0", "L0", "L1", "L1"]
    assert len(lineage.edges) == 3
    assert set(lineage.edges["child"]) | set(lineage.edges["parent"]) == set(lineage.nodes["sha256"])
    assert list(lineage.evidence["offset"]) == [0, 100]
    assert set(lineage.evidence["node"]) == set(lineage.nodes["sha256"][:2])


def test_the_block_holds_the_synthesis_then_each_question_and_nothing_volatile(tmp_path: Path) -> None:
    memory = filled(tmp_path, 2)
    build(memory, Model())
    memory.build(PERU, QueryId("dark"), "When is it dark?", model=lambda prompt: "At six.")
    memory.synthesise(PERU, model=lambda prompt: "Lima is in Peru.")
    block = memory.render(PERU)
    assert block == (
        "Lima is in Peru.\n\n## When is it light?\n\nFact 0 of Lima. Fact 1 of Lima.\n\n## When is it dark?\n\nAt six."
    )
    assert find_volatile(block) == ()
    assert memory.block() == ""
    path = memory.write(PERU)
    assert path == tmp_path / "memory" / "core.md"
    assert path.read_text() == memory.block() == block
    assert [each.name for each in memory.dir.glob("core*")] == ["core.md"]
    memory.rebuild()
    assert memory.render(PERU) == block


def test_what_does_not_fit_the_budget_is_said(tmp_path: Path) -> None:
    memory = filled(tmp_path, 1)
    build(memory, Model())
    memory.build(PERU, QueryId("long"), "And at length?", model=lambda prompt: "Long. " * 100)
    memory.build(PERU, QueryId("dark"), "When is it dark?", model=lambda prompt: "At six.")
    with pytest.warns(UserWarning, match="1 of 3 memories of peru do not fit into 40 tokens"):
        block = memory.render(PERU, 40)
    assert block.count("##") == 2
    assert "Long" not in block
    with pytest.raises(InvalidConfig, match="no memory of peru fits into 3 tokens"):
        memory.render(PERU, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert memory.render(PERU).count("##") == 3


def test_what_the_tool_gives_has_text_and_places_and_no_hashes(tmp_path: Path) -> None:
    memory = filled(tmp_path, 5)
    build(memory, Model())
    found = memory.found("0 1 2 3 4")
    assert found[0]["level"] == "L1"
    assert found[0]["from"] == ["notes/0@0", "notes/0@100", "notes/0@200"]
    assert found[0]["more"] == 2
    assert set(found[0]) == {"level", "text", "from", "more"}


def test_a_memory_says_what_it_holds(tmp_path: Path) -> None:
    memory = filled(tmp_path, 3)
    build(memory, Model())
    assert repr(open(tmp_path)) == "Memory: L0 3, L1 3, chunks 3"
    assert "<td>3</td>" in open(tmp_path)._repr_html_()
    assert memory.build(PERU, LIGHT, QUESTION, model=Model()).calls == 0
