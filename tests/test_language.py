"""A list of words that make a reader stumble, each with a reason and a better word: no text of the project has them.

It covers docstrings, comments and strings of ``loopkit/``, the Markdown documents, and the Markdown cells of the notebooks.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = ("README.md", "CHANGELOG.md", "loopkit/session/FORMAT.md")


class Idiom(NamedTuple):
    """An expression that is not used, why, and what is written instead."""

    pattern: str
    reason: str
    better: str


# Each names a reason and what is written instead. Words with many legitimate uses (held, given, seen) are not in the list.
IDIOMS = (
    Idiom(r"\banew\b", "archaic", "again, new"),
    Idiom(r"(?<!there )\b(?:is|are) none\b(?! of)", "the reader looks for the noun", "is not a …, or None in code font"),
    Idiom(r"\bso that none\b", "the reader looks for the noun", "so that no …"),
    Idiom(r"\b(?:mend|mends|mended|mending)\b", "archaic; the member mendable_by of logs keeps its name", "fix, repair"),
    Idiom(r"\bof which\b", "joins two thoughts in one sentence", "two sentences"),
    Idiom(r" told\b|\b[Tt]old ", "says neither who nor how", "called with, reported, shown"),
    Idiom(r"\b[Ww]hoever\b", "archaic", "the caller, the reader, the thread that"),
    Idiom(r"\bfeign", "archaic", "simulate"),
    Idiom(r"\bas it goes\b", "names no state", "in steps, while it runs"),
    Idiom(r"\bno moment\b", "a moment is not a term of the field", "not a valid timestamp"),
    Idiom(r"\b[Kk]nows nothing of\b", "describes by negation", "say what is inside"),
    Idiom(r"\bgone on\b|\b(?:go|goes|going|went) on (?:with|from)\b", "archaic", "continue"),
    Idiom(r"\b(?:it|that|nothing|what [^.;:]{0,40}) is said\b", "says neither who nor where", "is logged, a warning names it"),
    Idiom(r"\bin the user's hand\b", "a picture instead of a term", "the object that a user works with"),
    Idiom(r"\b(?:stands?|stood) (?:in|there)\b", "a picture instead of a term", "is in, contains, exists"),
    Idiom(r"\bfor ever\b", "archaic", "forever, permanently"),
    Idiom(r", for (?:it|they|that|there|this) (?:is|are|was|has|have|can|may|would)\b", "archaic conjunction", "because"),
    Idiom(r"\bnobody's fault\b", "blame instead of a fact", "nobody can fix it"),
    Idiom(r"\b(?:log|one|file|line)s? of ours\b", "leaves open who we are", "loopkit's"),
    Idiom(r"\b(?:says?|said) of itself\b", "archaic", "reports"),
    Idiom(r"\b[Ww]hat became of\b", "a riddle instead of a noun", "result of, classify"),
    Idiom(r"\b[Ww]hose it was\b", "a riddle instead of a noun", "the session, the owner"),
)


def python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each comment, docstring and string."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def texts(path: Path) -> Iterator[tuple[int, str]]:
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from python_texts(source)
    elif path.suffix == ".ipynb":
        for number, cell in enumerate(json.loads(source)["cells"], 1):
            if cell["cell_type"] == "markdown":
                yield number, "".join(cell["source"])
    else:
        yield 1, source


def found(path: Path) -> list[str]:
    """Name each place where a text has one of the idioms, and what to write instead."""
    return [
        f"{path.relative_to(ROOT)}:{line + text.count(chr(10), 0, match.start())}: {match.group()!r}: {idiom.reason}. "
        f"Write: {idiom.better}"
        for line, text in texts(path)
        for idiom in IDIOMS
        for match in re.finditer(idiom.pattern, text)
    ]


def documents() -> list[Path]:
    paths = [*(ROOT / "loopkit").rglob("*.py"), *(ROOT / name for name in DOCUMENTS), *(ROOT / "notebooks").glob("*.ipynb")]
    return sorted(path for path in paths if ".ipynb_checkpoints" not in path.parts)


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_text_has_the_old_idiom(path: Path) -> None:
    assert found(path) == []


def test_the_list_finds_comments_docstrings_messages_and_cells(tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    code.write_text('"""Knows nothing of files."""\nraise ValueError(f"{1} is none")  # made anew\n')
    assert [text for _, text in texts(code) if any(re.search(idiom.pattern, text) for idiom in IDIOMS)] == [
        "# made anew",
        "Knows nothing of files.",
        " is none",
    ]
    cell = {"cell_type": "markdown", "source": ["It is gone on with."]}
    notebook = tmp_path / "cell.ipynb"
    notebook.write_text(json.dumps({"cells": [cell, {"cell_type": "code", "source": ["x = 'anew'"]}]}))
    assert list(texts(notebook)) == [(1, "It is gone on with.")]
