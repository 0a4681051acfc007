"""Every cause has words."""

from __future__ import annotations

import ast
from pathlib import Path

import loopkit
from loopkit.cache.losses.cause_texts import CAUSES, advice, because

ROOT = Path(loopkit.__file__).parent
MAKERS = {"Diagnosis": 0, "server_loss": 0}
"Functions whose argument at this position is a cause."


def causes_in_code() -> set[str]:
    found = set()
    for path in [*(ROOT / "engines").rglob("*.py"), *(ROOT / "cache" / "losses").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS and node.args:
                first = node.args[MAKERS[node.func.id]]
                found |= {
                    each.value for each in ast.walk(first) if isinstance(each, ast.Constant) and isinstance(each.value, str)
                }
    return found


def test_every_cause_that_is_named_in_the_code_has_words() -> None:
    found = causes_in_code()
    assert {"slot_taken", "template_rewrote", "unexplained"} <= found
    assert found <= set(CAUSES)


def test_the_words_complete_a_sentence() -> None:
    for name, cause in CAUSES.items():
        assert cause.because.startswith(("because ", "for ")), name
        assert not cause.because.endswith("."), name
        assert cause.advice.endswith("."), name
        assert because(name) == cause.because
        assert advice(name) == cause.advice
    assert advice(None) == advice("solar_flare") == ""
