"""Detection of impossible reuse: more cached tokens reported than the prompt can have.

Some engines always process the last token of a prompt. There, it is also impossible that all tokens of the prompt were cached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET, Raw
from numpy.typing import NDArray

from loopkit import engines
from loopkit.contract.records import ReplayRecord, UsageRecord
from loopkit.encoding import decode
from loopkit.logs.frames.columns import Columns
from loopkit.logs.own.error_lines import offset_of, torn_at
from loopkit.logs.problems import Problem
from loopkit.server.completion.usage import normalise

__all__ = ["find_impossible", "reported_usage", "why_impossible"]


def why_impossible(cached: int | None, prompt: int | None, engine: str | None) -> str | None:
    """Return why a number of cached tokens is impossible, or None if it is possible.

    Examples
    --------
    >>> why_impossible(50, 50, "llama.cpp")
    '50 cached tokens reported for a prompt of 50, but at least one token is always processed'
    >>> why_impossible(50, 50, "openai")
    """
    if not cached or prompt is None or cached <= prompt - engines.find(engine).processes_last_token:
        return None
    why = "" if cached > prompt else ", but at least one token is always processed"
    return f"{cached} cached tokens reported for a prompt of {prompt}{why}"


def reported_usage(records: Sequence[UsageRecord | ReplayRecord], before: int) -> dict[int, Raw]:
    """Return the usage exactly as the server reported it, by row; only for records in which it is inconsistent.

    ``before`` is the number of rows before these records.
    """
    return {row: record.reported for row, record in enumerate(records, before) if record.reported is not UNSET}


def find_impossible(
    path: Path, engine: str | None, usage: Columns, lines: NDArray[np.integer[Any]], reported: Mapping[int, Raw]
) -> tuple[Problem, ...]:
    """Return a problem for each request of a log with impossible cached tokens.

    ``lines`` has the line index of each row of ``usage``. ``reported`` is the result of `reported_usage`.

    Raises
    ------
    TornLog
        If the reported usage is not a JSON object.
    """
    cached, prompt = usage["cached_tokens"], usage["prompt_tokens"]
    found: dict[int, str | None] = {}
    for row, raw in reported.items():
        try:
            report = decode(bytes(raw), dict[str, Any])
        except ValueError as error:
            raise torn_at(path, int(lines[row]), f"reported: {error}") from None
        if cached[row] < 0:
            found[row] = normalise(report).impossible
    for row in np.flatnonzero((prompt >= 0) & (cached >= prompt)).tolist():
        found[row] = why_impossible(int(cached[row]), int(prompt[row]), engine)
    return tuple(
        Problem(str(path), int(lines[row]) + 1, offset_of(path, int(lines[row])), "impossible_reuse", why)
        for row, why in sorted(found.items())
        if why is not None
    )
