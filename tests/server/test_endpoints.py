"""The endpoints of llama-server are named in one module; those of other engines in `loopkit.engines`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import loopkit

ROOT = Path(loopkit.__file__).parent
ENDPOINTS = ("/props", "/slots", "/metrics", "/models", "/tokenize", "/detokenize", "/apply-template", "/lora-adapters")


def _documentation(tree: ast.AST) -> set[ast.AST]:
    """Strings that are statements: docstrings."""
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}


def named(source: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse(source)
    ignored = _documentation(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in ignored:
            path = node.value.partition("?")[0].rstrip("/")
            if path.startswith(("/", "v1/")) and path.endswith(ENDPOINTS):
                yield node.lineno, node.value


def test_endpoints_of_llama_server_are_named_in_llama_api_only() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted(ROOT.rglob("*.py"))
        if path != ROOT / "server" / "llama_api.py" and ROOT / "engines" not in path.parents
        for line, text in named(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_the_search_finds_what_it_should() -> None:
    source = '"""Asks /props."""\nask(f"{url}/v1/models")\nask(wire, "/slots/")\nfolder / "slots"\n'
    assert sorted(line for line, _ in named(source)) == [2, 3]
