"""The public face: names, laziness, docstrings, errors."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys

import pytest

import loopkit as lk
from loopkit import errors

FACE = [
    "Baseline",
    "Config",
    "JsonTool",
    "Limits",
    "Logs",
    "Loop",
    "LoopkitError",
    "Registry",
    "Server",
    "Session",
    "Tags",
    "Turn",
    "cache",
    "connect",
    "engines",
    "errors",
    "load",
    "logs",
    "loop",
    "memory",
    "plot",
    "record",
    "replay",
    "resume",
    "serve",
    "start",
    "sweep",
    "types",
    "verify",
    "widgets",
]


def test_the_names_are_these() -> None:
    assert sorted(FACE) == FACE
    assert lk.__all__ == FACE
    assert dir(lk) == FACE


@pytest.mark.parametrize(
    "name", ["cache", "engines", "errors", "logs", "loop", "memory", "plot", "record", "replay", "sweep", "types", "widgets"]
)
def test_a_module_lists_what_it_is_for_and_none_of_its_imports(name: str) -> None:
    module = getattr(lk, name)
    assert dir(module) == sorted(module.__all__)
    assert all(hasattr(module, each) for each in dir(module))


@pytest.mark.parametrize("name", FACE)
def test_each_name_can_be_had_and_is_documented(name: str) -> None:
    thing = getattr(lk, name)
    doc = inspect.getdoc(thing)
    assert doc
    if inspect.isfunction(thing) or (inspect.isclass(thing) and not issubclass(thing, BaseException)):
        assert "Examples\n" in doc or "made by" in doc, f"{name} has no example that runs"
    if inspect.isfunction(thing):
        for word in inspect.signature(thing).parameters:
            assert word in doc, f"{name} does not describe {word}"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'strat'"):
        _ = lk.strat


def test_import_loads_nothing_heavy() -> None:
    heavy = ["pandas", "matplotlib", "ipywidgets", "httpx", "pydantic", "numpy", "msgspec", "tqdm"]
    code = f"import sys, loopkit; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def error_types() -> list[type[errors.LoopkitError]]:
    return [getattr(errors, name) for name in errors.__all__]


EXAMPLES: dict[str, tuple[object, ...]] = {
    "InvalidId": ("SessionId", "../x", "a name"),
    "InvalidConfig": ("slots", "0 is not a number of slots", "Give 1 or more"),
    "ContractBroken": ("they part at byte 7",),
    "LoopBusy": ("s1",),
    "NothingToGoOn": ("s1",),
    "PendingCalls": ("s1", ("look",)),
    "EpochTooLarge": (5000, 20, 3584),
    "SessionNotFound": ("runs/sessions/s1/0.jsonl",),
    "SessionExists": ("runs/sessions/s1",),
    "SessionLocked": ("runs/sessions/s1", 17),
    "SessionIOError": ("runs/sessions/s1/0.jsonl", "append", "No space left on device"),
    "SessionClosed": ("runs/sessions/s1",),
    "EncodeError": ("user.content", "a lone surrogate"),
    "OutOfOrder": ("usage", "a usage record is not allowed here"),
    "TornLog": ("runs/sessions/s1/0.jsonl", 3, 120, "crc", "runs/sessions/s1"),
    "BaselineError": ("0.baseline.json", "not UTF-8"),
    "BaselineMismatch": ("0.baseline.json", "aa", "bb"),
    "ServerUnreachable": ("http://127.0.0.1:1", "refused", 0.1),
    "ServerRefused": ("http://127.0.0.1:1", 500, "template"),
    "ContextExceeded": ("http://127.0.0.1:1", 5000, 4096),
    "StreamCut": ("http://127.0.0.1:1", "end of file", 3),
    "ServerTimeout": ("http://127.0.0.1:1", "no answer", 300.0, "timeout"),
    "ServerNotStarted": ("its process ended", "bad magic"),
    "ModelUnavailable": ("smollm2", "no network", "Give a path"),
    "LogError": ("x.txt", "no log of any kind that is known"),
}
FAMILIES = {"LoopkitError", "ProgrammingError", "WorldError", "SessionError", "ServerError"}


def test_the_docstring_is_the_tree() -> None:
    tree = [line for line in (errors.__doc__ or "").splitlines() if any(char in line for char in "├└")]
    parents = {"LoopkitError": "Exception"}
    stack = ["LoopkitError"]
    for line in tree:
        depth = (len(line) - len(line.lstrip(" │├└─"))) // 4 - 1
        name = line.lstrip(" │├└─").split()[0]
        stack[depth:] = [name]
        parents[name] = stack[depth - 1]
    real = {kind.__name__: kind.__mro__[1].__name__ for kind in error_types()}
    assert parents == real


@pytest.mark.parametrize("kind", [kind for kind in error_types() if kind.__name__ not in FAMILIES])
def test_each_error_says_something_and_crosses_a_process(kind: type[errors.LoopkitError]) -> None:
    error = kind(*EXAMPLES[kind.__name__])
    text = str(error)
    assert len(text) > 20
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), text, vars(error))
