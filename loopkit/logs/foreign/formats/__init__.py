"""Formats of other tools' logs: one module per format, recognised by content and not by file name.

Each module has a ``NAME``, a function ``recognises`` for the first bytes of a file, and a function ``entries`` that reads the
file. All formats share the code that builds conversations and parts from the entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from loopkit.contract.provenance import Record
from loopkit.errors import LogError, SessionIOError, describe
from loopkit.logs.foreign.conversation_tree import ConversationTrees
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
from loopkit.logs.foreign.frame_parts import Adapter, build_parts, merge_messages
from loopkit.logs.foreign.log_file import BOM, DECOMPRESS_ERRORS, open_log
from loopkit.logs.foreign.text_source import TextSource
from loopkit.logs.frames.columns import Part
from loopkit.logs.problems import Errors, Problem

__all__ = ["ADAPTERS", "ForeignLog", "read", "recognise", "records"]

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
"The readers of all formats. The first one that recognises a file reads it."

HEAD = 1 << 16
"Number of bytes at the start of a file from which its format is recognised."


class ForeignLog(NamedTuple):
    """Result of `read`: the parts and problems of one file."""

    parts: list[Part]
    problems: list[Problem]


def recognise(path: Path) -> Adapter | None:
    """Return the adapter for a file, or None if no adapter recognises it.

    Parameters
    ----------
    path : Path
        The file, plain or gzipped.

    Raises
    ------
    SessionIOError
        If the file cannot be read.
    """
    try:
        with open_log(path) as file:
            head = file.read(HEAD).removeprefix(BOM)
    except DECOMPRESS_ERRORS:
        return None
    except OSError as error:
        raise SessionIOError(str(path), "read", describe(error)) from error
    return next((adapter for adapter in ADAPTERS if adapter.recognises(head)), None)


def read(path: Path, *, errors: Errors = "raise") -> ForeignLog:
    r"""Read a log of another tool.

    Parameters
    ----------
    path : Path
        The file.
    errors : {"raise", "report"}
        Raise at the first damaged line, or skip damaged lines and report them. Data that is left out is counted either way.

    Returns
    -------
    ForeignLog
        The parts of frames, one per epoch, and the problems.

    Raises
    ------
    TornLog
        If a line is damaged. The error names the file and the line.
    LogError
        If the format is unknown.
    SessionIOError
        If the file cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w+", suffix=".jsonl") as file:
    ...     _ = file.write('{"type":"session","version":3,"id":"a","cwd":"."}\n{"type":"mood","id":"1","parentId":null}\n')
    ...     file.flush()
    ...     found = read(Path(file.name))
    >>> found.problems[0].why
    "entries of unknown type 'mood'"
    """
    source = _open(path, errors)
    if source is None:
        return ForeignLog([], [Problem(str(path), None, None, "left_out", "the file is empty")])
    parts = build_parts(_adapter_of(path), source)
    return ForeignLog(parts, source.problems)


def records(path: Path, *, problems: list[Problem] | None = None) -> Iterator[Record]:
    """Yield every message of another tool's log, conversation by conversation.

    Parameters
    ----------
    path : Path
        The file.
    problems : list of Problem, optional
        Problems, such as damaged lines, are appended to this list. Without it, a damaged line raises an error as in `read`.

    Yields
    ------
    Record
        A message.
    """
    errors: Errors = "raise" if problems is None else "report"
    source = _open(path, errors)
    if source is not None:
        for session in ConversationTrees(_adapter_of(path).entries(source, texts=True), source).sessions.values():
            for epoch in session.epochs:
                yield from (record for _, record, _ in merge_messages(epoch))
        if problems is not None:
            problems += source.problems


def _open(path: Path, errors: Errors) -> TextSource | None:
    try:
        empty = not path.stat().st_size
    except OSError as error:
        raise SessionIOError(str(path), "read", describe(error)) from error
    return None if empty else TextSource(path, errors=errors)


def _adapter_of(path: Path) -> Adapter:
    adapter = recognise(path)
    if adapter is None:
        names = ", ".join(each.NAME for each in ADAPTERS)
        raise LogError(str(path), "the format is unknown", f"Supported formats, recognised by content: {names}")
    return adapter
