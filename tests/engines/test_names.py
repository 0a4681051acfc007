"""Names of engines: only `loopkit.engines` compares them; every other module asks the engine."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Set
from pathlib import Path

import pytest

import loopkit
from loopkit import engines

ROOT = Path(loopkit.__file__).parent
NAMES = {engine.name for engine in engines.ENGINES}
CLASSES = {type(engine).__name__ for engine in engines.ENGINES}
BUILDERS = {"dict", "frozenset", "fromkeys", "list", "set", "sorted", "tuple"}
"Calls whose result holds their arguments."
COMPARING = {
    *("count", "endswith", "eq", "fromkeys", "get", "index", "isin", "ne", "pop", "removeprefix", "removesuffix"),
    *("setdefault", "startswith", "__contains__", "__eq__"),
}
"Calls that compare their arguments."
OTHER_NAMES = {"logs/frames/schema.py", "logs/foreign/formats/openai_log.py", "server/embedded/tag_vocabulary.py"}
"Files in which such a name is a log format's, or a model family's (DeepSeek's chat tags)."


def value_parts(node: ast.AST | None) -> Iterator[ast.AST]:
    """The parts of a value that may be an engine's name: of a collection its items, of a choice its branches."""
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        for item in node.elts:
            yield from value_parts(item)
    elif isinstance(node, ast.Dict):
        for key in node.keys:
            yield from value_parts(key)
        for value in node.values:
            yield from value_parts(value)
    elif isinstance(node, (ast.Starred, ast.NamedExpr)):
        yield from value_parts(node.value)
    elif isinstance(node, ast.IfExp):
        yield from value_parts(node.body)
        yield from value_parts(node.orelse)
    elif isinstance(node, ast.BinOp):
        yield from value_parts(node.left)
        yield from value_parts(node.right)
    elif isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        yield from value_parts(node.elt)
        for each in node.generators:
            yield from value_parts(each.iter)
    elif isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in BUILDERS:
            for item in node.args:
                yield from value_parts(item)
    elif node is not None:
        yield node


def is_name(node: ast.AST, constants: Set[str]) -> bool:
    """Whether a value is an engine's name: written out, the attribute of an engine's class, or a constant."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value in NAMES
    if isinstance(node, ast.Attribute):
        owner = node.value.id if isinstance(node.value, ast.Name) else getattr(node.value, "attr", "")
        return (node.attr == "name" and owner in CLASSES) or node.attr in constants
    return isinstance(node, ast.Name) and node.id in constants


def constants_of(trees: Iterable[ast.AST]) -> frozenset[str]:
    """Variables in any module that are an engine's name, or a collection with one."""
    pairs: list[tuple[ast.AST, ast.AST | None]] = []
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                pairs += [(target, node.value) for target in node.targets]
            elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
                pairs.append((node.target, node.value))
            elif isinstance(node, (ast.For, ast.comprehension)):
                pairs.append((node.target, node.iter))
            elif isinstance(node, ast.ImportFrom):
                pairs += [(ast.Name(each.asname), ast.Name(each.name)) for each in node.names if each.asname]
    found: frozenset[str] = frozenset()
    while True:
        more = {
            target.id
            for target, value in pairs
            if isinstance(target, ast.Name) and any(is_name(part, found) for part in value_parts(value))
        }
        if more <= found:
            return found
        found |= more


def compared(tree: ast.AST, constants: Set[str] = frozenset()) -> Iterator[tuple[int, str]]:
    """Line and source of each engine's name in a comparison, a key, a subscript, a set, a pattern or a call that compares."""
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            parts = list(node.keys)
        elif isinstance(node, ast.Subscript):
            parts = [node.slice, node.value]
        elif isinstance(node, ast.Set):
            parts = [node]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Call):
            method = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if method in COMPARING:
                parts = [*node.args, node.func.value if isinstance(node.func, ast.Attribute) else None]
            if method == "dict":
                parts = [ast.Constant(word.arg, lineno=node.lineno, col_offset=0) for word in node.keywords]
            if method in ("isinstance", "issubclass") and len(node.args) == 2:
                kinds = {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
                if kinds & CLASSES:
                    yield node.lineno, ast.unparse(node)
        for part in parts:
            for each in value_parts(part):
                if is_name(each, constants):
                    yield each.lineno, ast.unparse(each)  # type: ignore[attr-defined]


PATHS = sorted(ROOT.rglob("*.py"))
TREES = {path: ast.parse(path.read_text("utf-8")) for path in PATHS}


def is_checked(path: Path) -> bool:
    name = path.relative_to(ROOT).as_posix()
    return not name.startswith("engines/") and name not in OTHER_NAMES


CONSTANTS = constants_of(tree for path, tree in TREES.items() if is_checked(path))


@pytest.mark.parametrize("path", [path for path in PATHS if is_checked(path)], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_module_compares_an_engines_name(path: Path) -> None:
    found = list(compared(TREES[path], CONSTANTS))
    assert not found, f"{path}: {found}: ask loopkit.engines.find(…) instead"


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
        'V = "vllm"\nengine == V',
        'V: Final[str] = "vllm"\nengine != V',
        'V = "vllm"\nW = V\nengine == W',
        'KNOWN = ("vllm", "b")\nengine in KNOWN',
        'KNOWN = frozenset(["vllm"])\nengine in KNOWN',
        'KNOWN = [*OTHERS, "vllm"]\nengine in KNOWN',
        'RULES = {1: "vllm"}\nengine == RULES[1]',
        'any(engine == each for each in ("vllm", "b"))',
        'for each in ["vllm"]:\n    if each == engine:\n        pass',
        'from rules import V as W\nV = "vllm"\nengine == W',
        'V = "vllm"\nrules.V == engine',
        'engine.endswith("vllm")',
        'engine.startswith(("vllm", "b"))',
        'engine.removeprefix("vllm")',
        'frame["engine"].eq("vllm")',
        'frame["engine"].isin(["vllm"])',
        "dict(vllm=1)[engine]",
        'dict.fromkeys(("vllm", "b"), 1)[engine]',
        'operator.eq(engine, "vllm")',
        "engine == Anthropic.name",
        "engine == anthropic.Anthropic.name",
        "V = Anthropic.name\nengine == V",
        "isinstance(engine, Anthropic)",
        "isinstance(engine, (Anthropic, int))",
    ],
)
def test_each_form_of_comparison_is_found(code: str) -> None:
    tree = ast.parse(code)
    assert list(compared(tree, constants_of([tree])))


@pytest.mark.parametrize(
    "code", ['Detected(engine="vllm")', "Detected(engine=LlamaCpp.name)", "engine = LlamaCpp.name", 'find("vllm").block == 16']
)
def test_an_engine_may_be_named(code: str) -> None:
    tree = ast.parse(code)
    assert not list(compared(tree, constants_of([tree])))


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
