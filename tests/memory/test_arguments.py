"""What a memory is given by hand: whatever is no argument is refused in words, and nothing of it gets into the truth."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from loopkit.contract.provenance import Provenance
from loopkit.errors import LoopkitError
from loopkit.ids import QueryId, RunId, Sha256Hash
from loopkit.memory import Memory, open
from loopkit.memory.nodes import Chunk, Level, MemoryNode
from tests.memory.make import LIGHT, PERU, Model, build, filled, records

GOOD = records(["New."], "new")[0]
LONE = "half \ud83d"
IDS = ["per u", "", None, 5, LONE]
COUNTS = [0, -1, 1.5, "5", None, True, 1 << 70]
TEXTS = [None, 5, b"x", LONE]
RECORDS = [
    *(replace(GOOD, text=text) for text in TEXTS),
    *(replace(GOOD, role=role) for role in ("Bot", "user", None, 5)),
    *(replace(GOOD, timestamp=time) for time in ("yesterday", 5, "2026-02-30T00:00:00.000000Z")),
    *(replace(GOOD, provenance=Provenance("s", offset)) for offset in (-1, 1 << 63, 1 << 70, "x", None)),  # type: ignore[arg-type]
    *(replace(GOOD, provenance=Provenance(source, 0)) for source in ("", 5, None, LONE)),  # type: ignore[arg-type]
    replace(GOOD, provenance=None),
]
WRONG: dict[Callable[..., object], dict[str, list[Any]]] = {
    Memory.ingest: {
        "what": [None, 5, ["text"], [Path()], GOOD, *([GOOD, each] for each in RECORDS)],
        "project": IDS,
        "run": ["a b", 5, LONE],
        "budget": COUNTS,
        "errors": [None, 1, "", "ignore", b"raise", ["raise"]],
    },
    Memory.build: {
        "project": IDS,
        "query": IDS,
        "question": [*TEXTS, "", " \n"],
        "model": [None, 5, "text", *((lambda prompt, answer=answer: answer) for answer in [*TEXTS, "", " \n"])],
        "run": ["a b", 5, LONE],
    },
    Memory.synthesise: {"project": IDS, "model": [None, 5], "run": ["a b", 5, LONE]},
    Memory.render: {"project": IDS, "budget": COUNTS},
    Memory.write: {"project": IDS, "budget": COUNTS},
    Memory.recall: {"query": [None, 5, b"x"], "k": COUNTS},
    Memory.found: {"query": [None, 5, b"x"]},
    Memory.trace: {"node": [None, 5, "", "0" * 64, "A" * 64, LONE, "\0"]},
    Memory.lineage: {"node": [None, 5, "", "0" * 64, "A" * 64, LONE, "\0"]},
    Memory.rebuild: {"salvage": []},
    open: {"home": [None, 5, b"x"], "server": [5, "http://127.0.0.1"]},
    Chunk.of: {"t": COUNTS, "records": [[], [5], [GOOD, None]], "tokens": [-1]},
    MemoryNode.of: {
        "level": ["L1", "l1", 1, None],
        "project": [*IDS, "peru"],
        "query_id": [*IDS, "light"],
        "run_id": [*IDS, "r1"],
        "t": COUNTS,
        "text": TEXTS,
        "parents": [["0" * 64], [None]],
    },
}


def sound(memory: Memory) -> dict[Callable[..., object], dict[str, Any]]:
    node = {"level": Level.L1, "project": PERU, "query_id": LIGHT, "run_id": RunId("r9"), "t": 1, "text": "x"}
    told: dict[str, Any] = {"project": PERU, "model": Model()}
    return {
        Memory.ingest: {"self": memory, "what": [GOOD], "project": PERU},
        Memory.build: {"self": memory, **told, "query": QueryId("dark"), "question": "When is it dark?"},
        Memory.synthesise: {"self": memory, **told},
        Memory.render: {"self": memory, "project": PERU},
        Memory.write: {"self": memory, "project": PERU},
        Memory.recall: {"self": memory, "query": "Lima"},
        Memory.found: {"self": memory, "query": "Lima"},
        Memory.trace: {"self": memory, "node": memory.recall("Lima")[0].node},
        Memory.lineage: {"self": memory, "node": memory.recall("Lima")[0].node},
        Memory.rebuild: {"self": memory},
        open: {"home": memory.dir.parent},
        Chunk.of: {"t": 1, "records": [GOOD], "tokens": 1},
        MemoryNode.of: {**node, "parents": [Sha256Hash.of(b"")]},
    }


CASES = [(call, name) for call, members in WRONG.items() for name, values in members.items() if values]


def test_every_argument_of_every_public_function_is_tried() -> None:
    public = {each for name, each in inspect.getmembers(Memory, inspect.isfunction) if not name.startswith("_")}
    assert {call for call in WRONG if inspect.isfunction(call)} == {*(each for each in public if _names(each)), open}
    for call, members in WRONG.items():
        assert list(members) == _names(call), call


def _names(call: Callable[..., object]) -> list[str]:
    return [name for name in inspect.signature(call).parameters if name != "self"]


@pytest.mark.parametrize(("call", "name"), CASES, ids=[f"{call.__qualname__}-{name}" for call, name in CASES])
def test_what_is_no_argument_is_refused_in_words_and_leaves_nothing(
    call: Callable[..., object], name: str, tmp_path: Path
) -> None:
    memory = filled(tmp_path, 2)
    build(memory, Model())
    arguments = sound(memory)[call]
    for value in WRONG[call][name]:
        with pytest.raises(LoopkitError) as caught:
            call(**{**arguments, name: value})
        assert str(caught.value).isprintable(), repr(value)
    found = memory.verify()
    assert found.ok, found.faults
    memory.rebuild()
    call(**arguments)
    assert memory.verify().ok
