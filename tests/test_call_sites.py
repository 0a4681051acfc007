"""Neutralising happens once, where a text from outside is first logged; where that is, is pinned here, over the syntax tree.

Replay, open, read and verify must never neutralise: logged bytes are sent as they are. A call that is not in the table fails, and
so does one that has gone.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import loopkit

ROOT = Path(loopkit.__file__).parent
NAMES = {"neutralise", "neutralise_report"}
LOGGED = {
    "contract.baseline": 1,  # the memory block
    "loop.epochs": 1,  # a summary, or a text of the person's own, that a new epoch begins with
    "loop.tools.foreign_schemas": 1,  # descriptions of foreign tools
    "loop.loop": 1,  # the user's message
    "loop.turn": 1,  # every tool message, after the cap
}
NEVER_LOGGED = {
    "memory.model": 1,  # a prompt with a transcript in it: sent to a model, kept nowhere
    "cache.losses.token_comparison": 1,  # a piece of a rendered prompt that evidence quotes: no control tag is logged
    "server.doctor.checks": 1,  # a piece of a template that a table shows
    "server.prompt.tag_rules": 3,  # no text: which of a model's tags the default leaves, to be pinned
}


def references(path: Path) -> list[int]:
    """The lines that name one of the functions, but for imports of it by its own name."""
    tree = ast.parse(path.read_text("utf-8"))
    lines = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in NAMES]
    lines += [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in NAMES]
    imports = [alias for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names]
    renamed = [alias.lineno for alias in imports if alias.name.split(".")[-1] in NAMES and alias.asname is not None]
    assert not renamed, f"{path.name}:{renamed} imports it by another name"
    return lines


def test_call_sites_are_pinned() -> None:
    found: Counter[str] = Counter()
    for path in sorted(ROOT.rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if not module.startswith("contract.neutralise.") and (lines := references(path)):
            found[module] = len(lines)
    assert found == LOGGED | NEVER_LOGGED
