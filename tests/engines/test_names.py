"""Names of engines: only `loopkit.engines` compares them; every other module asks the engine."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import loopkit
from loopkit import engines

ROOT = Path(loopkit.__file__).parent
NAMES = {engine.name for engine in engines.ENGINES}
OTHER_NAMES = {"logs/frames/schema.py", "logs/foreign/formats/openai_log.py", "server/embedded/tag_vocabulary.py"}
"Files in which such a name is a log format's, or a model family's (DeepSeek's chat tags)."


def compared(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each engine's name in a comparison, a dict's key, a subscript, a set or a match pattern."""
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            parts = list(node.keys)
        elif isinstance(node, ast.Subscript):
            parts = [node.slice]
        elif isinstance(node, ast.Set):
            parts = [node]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "startswith"):
            parts = list(node.args)
        for part in parts:
            for each in ast.walk(part) if part is not None else ():
                if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value in NAMES:
                    yield each.lineno, each.value


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_module_compares_an_engines_name(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    if name.startswith("engines/") or name in OTHER_NAMES:
        return
    found = list(compared(ast.parse(path.read_text("utf-8"))))
    assert not found, f"{name}: {found}: ask loopkit.engines.find(…) instead"


@pytest.mark.parametrize(
    "code",
    [
        'engine == "vllm"',
        '"llama.cpp" != engine',
        'engine in ("vllm", None)',
        'engine in {"vllm"}',
        'RULES = {"openai": 1}',
        'RULES["openai"]',
        'RULES.get("openai")',
        'match engine:\n    case "vllm":\n        pass',
        'engine in {"a", "sglang"} or x',
    ],
)
def test_each_form_of_comparison_is_found(code: str) -> None:
    assert list(compared(ast.parse(code)))


def test_names_are_unique_and_found() -> None:
    assert len(NAMES) == len(engines.ENGINES)
    for engine in engines.ENGINES:
        assert engines.find(engine.name) is engine
    assert engines.find(None) is engines.find("nothing of the kind") is engines.UNKNOWN
    assert engines.UNKNOWN.name is None
    assert not engines.UNKNOWN.exact
    taken = [name for engine in engines.ENGINES for name in engine.log_names]
    assert len(taken) == len(set(taken)), "a log's name for a provider means one engine"
    words = [word for engine in engines.ENGINES for word in engine.verdicts]
    assert len(words) == len(set(words))


@pytest.mark.parametrize(
    ("response", "name"),
    [
        ({"timings": {"prompt_n": 1}}, "llama.cpp"),
        ({"timings": {}}, None),
        ({"system_fingerprint": "fp_1a"}, "openai"),
        ({"system_fingerprint": "b1234"}, None),
        ({"usage": {"input_tokens": 3, "cache_read_input_tokens": 0}}, "anthropic"),
        ({"usage": {"input_tokens": 3}}, None),
        ({"usage": None, "timings": None}, None),
    ],
)
def test_a_response_shows_its_engine(response: dict[str, object], name: str | None) -> None:
    found = engines.find_by_response(response)
    assert (None if found is None else found.name) == name


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({"server": "llama.cpp"}, "llama.cpp"),
        ({"server": "nginx", "anthropic-ratelimit-tokens-limit": "1"}, "anthropic"),
        ({"openai-version": "2020-10-01"}, "openai"),
        ({"server": "nginx"}, None),
    ],
)
def test_headers_show_their_engine(headers: dict[str, str], name: str | None) -> None:
    found = engines.find_by_headers(headers)
    assert (None if found is None else found.name) == name


@pytest.mark.parametrize(
    ("owner", "name"), [("llamacpp", "llama.cpp"), ("vllm", "vllm"), ("sglang", "sglang"), ("library", "ollama"), (None, None)]
)
def test_a_list_of_models_shows_its_engine(owner: object, name: str | None) -> None:
    found = engines.find_by_owner(owner)
    assert (None if found is None else found.name) == name
