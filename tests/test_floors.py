"""The floors of the house: imports point down, and each outside package stays in its rooms."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import loopkit

ROOT = Path(loopkit.__file__).parent

# (floor, column, place in the column from the top); a room on the same floor may be imported only from below it in its column.
FLOORS = {
    "errors": (0, "ground", 0),
    "encoding": (0, "ground", 1),
    "ids": (0, "ground", 2),
    "deprecation": (0, "ground", 2),
    "progress": (0, "ground", 2),
    "reprs": (0, "ground", 3),
    "config": (0, "ground", 4),
    "contract": (1, "contract", 0),
    "engines": (1, "contract", 1),
    "session": (2, "session", 0),
    "server": (2, "server", 0),
    "cache": (3, "cache", 0),
    "loop": (4, "loop", 0),
    "logs": (4, "logs", 0),
    "memory": (4, "logs", 1),
    "record": (4, "logs", 2),
    "replay": (5, "experiments", 0),
    "sweep": (5, "experiments", 1),
    "plot": (6, "views", 0),
    "widgets": (6, "views", 1),
    "demo": (7, "entry points", 0),
    "cli": (7, "entry points", 1),
    "types": (7, "entry points", 1),
    "__init__": (7, "entry points", 2),
}

# Which rooms may import which outside package, and why it came in.
OUTSIDE = {
    "jsonschema": {"loop"},  # arguments against a schema that a person wrote
    "dask": {"logs"},  # frames that are larger than memory
    "gguf": {"server"},  # writes the tiny model
    "inspect_ai": {"logs"},  # reads its own logs
    "ipywidgets": {"widgets"},  # what a front end shows
    "h11": {"record"},  # reads HTTP as it passes by
    "httpx": {"server", "record"},  # speaks HTTP; addresses, certificates, content codings
    "httpx2": {"record"},  # types of a transport, for type checkers only
    "httpx_sse": {"server"},  # reads server-sent events
    "matplotlib": {"plot", "demo", "cli", "widgets"},  # draws
    "msgspec": {
        "encoding",
        "contract",
        "engines",
        "session",
        "server",
        "cache",
        "record",
        "loop",
        "logs",
        "memory",
        "replay",
        "sweep",
    },  # strict and fast JSON
    "numpy": {"server", "cache", "logs", "sweep", "plot"},  # weights, columns, the line through times, bars
    "pandas": {"cache", "logs", "memory", "replay", "sweep", "plot", "widgets"},  # frames
    "platformdirs": {"server"},  # where models and the key file lie
    "pyarrow": {"logs"},  # Parquet
    "pydantic": {"config", "loop"},  # what people write: settings, and functions that become tools
    "pydantic_core": {"loop"},  # the types of pydantic's schemas
    "referencing": {"loop"},  # references inside a JSON schema, fetched from nowhere
    "tqdm": {"progress", "server", "demo", "cli"},  # progress, and warnings above it
    "xllamacpp": {"server"},  # llama.cpp's own server
    "zlib_ng": {"encoding"},  # a faster CRC-32
}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield ".".join(("loopkit", *path.relative_to(ROOT).with_suffix("").parts)), path


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of each import; of ``from a import b``, ``a.b`` where that is a module, else ``a``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            assert node.module is not None
            for alias in node.names:
                deeper = ROOT.parent / Path(*node.module.split("."), alias.name)
                is_module = deeper.with_suffix(".py").exists() or deeper.is_dir()
                yield node.lineno, f"{node.module}.{alias.name}" if is_module else node.module


@pytest.mark.parametrize(("module", "path"), list(modules()))
def test_imports_point_down(module: str, path: Path) -> None:
    here = room(module)
    assert here in FLOORS, f"{module} stands on no floor: give it one in this table"
    for line, name in imports(path):
        if not name.startswith("loopkit.") or room(name) == here:
            continue
        floor, column, place = FLOORS[here]
        to_floor, to_column, to_place = FLOORS[room(name)]
        down = to_floor < floor or (to_floor == floor and to_column == column and to_place < place)
        assert down, f"{module}:{line} imports {name}, which is not below it"


@pytest.mark.parametrize(("module", "path"), list(modules()))
def test_outside_packages_stay_in_their_rooms(module: str, path: Path) -> None:
    for line, name in imports(path):
        package = name.split(".")[0]
        if package == "loopkit" or package in sys.stdlib_module_names:
            continue
        assert package in OUTSIDE, f"{module}:{line} imports {package}: give it rooms in this table, with the reason"
        assert room(module) in OUTSIDE[package], f"{module}:{line} may not import {package}"


def test_every_room_of_the_tables_exists() -> None:
    there = {room(module) for module, _ in modules()}
    assert set(FLOORS) == there
    assert set().union(*OUTSIDE.values()) <= there


def test_no_import_cycles() -> None:
    """Imports under TYPE_CHECKING and inside functions count too."""
    edges = {
        module.removesuffix(".__init__"): {name for _, name in imports(path) if name.startswith("loopkit.")}
        for module, path in modules()
    }
    state: dict[str, int] = {}

    def visit(module: str, trail: list[str]) -> None:
        if state.get(module) == 1:
            raise AssertionError(" → ".join([*trail, module]))
        if state.get(module) == 2 or module not in edges:
            return
        state[module] = 1
        for other in sorted(edges[module]):
            visit(other, [*trail, module])
        state[module] = 2

    for module in edges:
        if module != "loopkit":
            visit(module, [])


def test_the_rules_can_be_broken(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import pandas\nfrom loopkit.loop import loop\n")
    names = [name for _, name in imports(bad)]
    assert names == ["pandas", "loopkit.loop.loop"]
    assert "encoding" not in OUTSIDE["pandas"]
    assert FLOORS[room("loopkit.loop.loop")] > FLOORS["encoding"]
