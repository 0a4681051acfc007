"""Totals of a frame in words, for the reprs of `Logs` and frames, and a one-line plot."""

from __future__ import annotations

import numpy as np
import pandas as pd

from loopkit.logs.frames.build import share
from loopkit.reprs import counted

__all__ = ["describe_usage", "sparkline"]

BARS = "▁▂▃▄▅▆▇█"


def describe_usage(requests: pd.DataFrame) -> list[tuple[str, str]]:
    """Return how many tokens the requests of a frame processed and lost, as pairs of name and text.

    Examples
    --------
    >>> usage = pd.DataFrame({"prompt_tokens": [900, 1000], "read_tokens": [900, 100], "lost_tokens": [0, 0]}, dtype="Int64")
    >>> describe_usage(usage)
    [('processed', '1,000 of 1,900 prompt tokens'), ('lost', '0')]
    """
    known = requests["read_tokens"].notna()
    if not known.any():
        return [("processed", "unknown"), ("lost", "unknown")]
    read, prompt = requests["read_tokens"].sum(), requests["prompt_tokens"][known].sum()
    lost = requests["lost_tokens"].dropna()
    silent = int((~known).sum())
    unknown = f" ({counted(silent, 'request')} unknown)" if silent else ""
    return [
        ("processed", f"{read:,} of {prompt:,} prompt tokens{unknown}"),
        ("lost", f"{lost.sum():,}" if len(lost) else "unknown"),
    ]


def sparkline(requests: pd.DataFrame, width: int = 60) -> str:
    """Return a one-line plot of the share of each prompt that was cached, in the order of the requests. A dot means unknown.

    Examples
    --------
    >>> sparkline(pd.DataFrame({"prompt_tokens": [90, 100, 110, 120], "cached_tokens": [0, 50, None, 120]}, dtype="Int64"))
    '▁▅·█'
    """
    known = requests[["cached_tokens", "prompt_tokens"]].where(requests["cached_tokens"].notna())
    sums = known.groupby(np.arange(len(known)) * min(width, len(known)) // max(len(known), 1)).sum(min_count=1)
    shares = pd.Series(share(sums["cached_tokens"], sums["prompt_tokens"]))
    return "".join("·" if pd.isna(value) else BARS[round(min(value, 1) * (len(BARS) - 1))] for value in shares)
