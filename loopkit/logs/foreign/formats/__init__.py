"""Logs of other tools: one module a format, recognised by what stands in a file and never by its name.

Each has a ``NAME``, ``recognises`` and ``entries``; what comes of the entries is the same for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from loopkit.contract.provenance import Record
from loopkit.errors import LogError, SessionIOError, describe
from loopkit.logs.foreign.formats import (
    claude_code,
    codex,
    inspect_eval,
    litellm,
    llama_server,
    openai_log,
    otel,
    pi,
    recording,
    traces,
)
from loopkit.logs.foreign.text_source import BOM, UNPACKED, Source, opened
from loopkit.logs.foreign.to_parts import Adapter, merged, parts_of
from loopkit.logs.foreign.tree import Threads
from loopkit.logs.frames.columns import Part
from loopkit.logs.problems import Errors, Problem

__all__ = ["ADAPTERS", "Found", "read", "recognise", "records"]

ADAPTERS: tuple[Adapter, ...] = (
    recording,
    claude_code,
    pi,
    codex,
    inspect_eval,
    llama_server,
    traces.MOONCAKE,
    traces.BAILIAN,
    otel,
    litellm,
    openai_log,
)
"In the order in which they are asked."

HEAD = 1 << 16
"So many bytes of a file tell its format."


class Found(NamedTuple):
    """What a file holds."""

    parts: list[Part]
    problems: list[Problem]


def recognise(path: Path) -> Adapter | None:
    """The adapter for a file; None where its format is not known here.

    Raises
    ------
    SessionIOError
        When it cannot be read.
    """
    try:
        with opened(path) as file:
            head = file.read(HEAD).removeprefix(BOM)
    except UNPACKED:
        return None
    except OSError as error:
        raise SessionIOError(str(path), "read", describe(error)) from error
    return next((adapter for adapter in ADAPTERS if adapter.recognises(head)), None)


def read(path: Path, *, errors: Errors = "raise") -> Found:
    r"""Read a log of another tool.

    Parameters
    ----------
    path : Path
        One file.
    errors : {"raise", "report"}
        What to do at a fault; with ``"report"`` all around it is read. What is left out is counted in any case.

    Raises
    ------
    TornLog
        With file and line.
    LogError
        When the format is not known.
    SessionIOError
        When the file cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w+", suffix=".jsonl") as file:
    ...     _ = file.write('{"type":"session","version":3,"id":"a","cwd":"."}\n{"type":"mood","id":"1","parentId":null}\n')
    ...     file.flush()
    ...     found = read(Path(file.name))
    >>> found.problems[0].why
    "entries of the type 'mood'"
    """
    source = _opened(path, errors)
    if source is None:
        return Found([], [Problem(str(path), None, None, "left_out", "the file is empty")])
    parts = parts_of(_known(path), source)
    return Found(parts, source.problems)


def records(path: Path, *, problems: list[Problem] | None = None) -> Iterator[Record]:
    """Every message of a log of another tool, conversation by conversation.

    Faults are put among the ``problems``, where these are asked for; else it raises what `read` does.
    """
    errors: Errors = "raise" if problems is None else "report"
    source = _opened(path, errors)
    if source is not None:
        for session in Threads(_known(path).entries(source, texts=True), source).sessions.values():
            for epoch in session.epochs:
                yield from (record for _, record, _ in merged(epoch))
        if problems is not None:
            problems += source.problems


def _opened(path: Path, errors: Errors) -> Source | None:
    try:
        empty = not path.stat().st_size
    except OSError as error:
        raise SessionIOError(str(path), "read", describe(error)) from error
    return None if empty else Source(path, errors=errors)


def _known(path: Path) -> Adapter:
    adapter = recognise(path)
    if adapter is None:
        names = ", ".join(each.NAME for each in ADAPTERS)
        raise LogError(str(path), "not a log of any kind known here", f"Known are {names}, by what stands in the file")
    return adapter
