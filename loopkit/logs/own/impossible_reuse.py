"""Reports of more cached tokens than a prompt can have: problems with their lines, of which no frame holds a negative loss.

llama.cpp, vLLM and SGLang read at least a prompt's last token, so that a count of the whole prompt is impossible, too; hosted
engines may count in blocks, and only what is above the prompt is. Knows nothing of how lines are read.
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

__all__ = ["impossible_in", "reported_in", "why_impossible"]


def why_impossible(cached: int | None, prompt: int | None, engine: str | None) -> str | None:
    """Say why so many tokens cannot have been cached; None where they can.

    Examples
    --------
    >>> why_impossible(50, 50, "llama.cpp")
    'cached tokens 50 of a prompt of 50: at least one more is always read'
    >>> why_impossible(50, 50, "openai")
    """
    if not cached or prompt is None or cached <= prompt - engines.find(engine).processes_last_token:
        return None
    return f"cached tokens {cached} of a prompt of {prompt}: at least one more is always read"


def reported_in(records: Sequence[UsageRecord | ReplayRecord], before: int) -> dict[int, Raw]:
    """What servers said that does not add up, by row; ``before`` is the number of rows before these."""
    return {row: record.reported for row, record in enumerate(records, before) if record.reported is not UNSET}


def impossible_in(
    path: Path, engine: str | None, usage: Columns, lines: NDArray[np.integer[Any]], reported: Mapping[int, Raw]
) -> tuple[Problem, ...]:
    """The problems of one log of ours; ``lines`` are the indices of its requests' lines.

    Raises
    ------
    TornLog
        Where what a server said is no object.
    """
    cached, prompt = usage["cached_tokens"], usage["prompt_tokens"]
    found: dict[int, str | None] = {}
    for row, said in reported.items():
        try:
            report = decode(bytes(said), dict[str, Any])
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
