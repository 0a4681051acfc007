"""Summaries of a comparison: medians and paired differences per variant, as a frame and as text.

Times vary from round to round, so each run of a variant is compared with the unchanged run of the same round.
"""

from __future__ import annotations

import math
from typing import Any, Final

import pandas as pd

from loopkit.errors import InvalidConfig

__all__ = ["UNCHANGED", "describe", "summary"]

UNCHANGED: Final = "unchanged"
SURE: Final = 0.95
MEASURES: Final = ("read_tokens", "ttft_ms", "prompt_ms")


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per variant with its tokens, times and losses, and how much more they are than unchanged.

    Parameters
    ----------
    frame : DataFrame
        The result of `compare`.

    Returns
    -------
    DataFrame
        The index is the variant. ``repeats``: number of rounds. ``requests``: number of requests per run. ``changed``: number of
        requests whose bytes the variant changed. ``lost_tokens``: lost tokens per run, the median of the rounds. ``causes``:
        causes of the losses, most frequent first. ``read_tokens``, ``ttft_ms`` and ``prompt_ms``: processed prompt tokens, time
        to first token and prompt time, each summed over a run; the median of the rounds. For each of them, ``…_more`` is the
        median difference to the unchanged run of the same round, and ``…_low`` and ``…_high`` are its confidence interval.
        ``confidence``: the probability that the interval contains the true median.

    Raises
    ------
    InvalidConfig
        If the frame has no unchanged runs.

    Notes
    -----
    The interval comes from the sign test, which assumes no distribution. For *n* sorted differences it reaches from the *k*-th to
    the *k*-th from the end. *k* is the largest number for which ``1 - 2 P(X < k)`` is at least 0.95, where X is binomial with *n*
    and ½. For fewer than six differences the interval is their whole range, and the confidence is lower: 0.94 for 5, 0.75 for 3.
    One round gives no interval.

    Examples
    --------
    >>> times = [10.0, 12.0, 11.0, 40.0, 44.0, 45.0]
    >>> rows = {"variant": ["unchanged"] * 3 + ["window(2)"] * 3, "repeat": [1, 2, 3] * 2, "request": 1, "changed": True}
    >>> rows |= {"read_tokens": [5] * 3 + [9] * 3, "ttft_ms": times, "prompt_ms": times, "lost_tokens": 4, "cause": None}
    >>> row = summary(pd.DataFrame(rows)).loc["window(2)"]
    >>> row[["read_tokens_more", "ttft_ms_more", "ttft_ms_low", "ttft_ms_high", "confidence"]].astype(float).tolist()
    [4.0, 32.0, 30.0, 34.0, 0.75]
    """
    totals = frame.groupby(["variant", "repeat"], sort=False)[[*MEASURES, "lost_tokens"]].sum(min_count=1).astype("Float64")
    if UNCHANGED not in totals.index:
        raise InvalidConfig(
            "frame", f"it has no rows of the variant {UNCHANGED!r}", "Keep these rows: the others are compared with them"
        )
    reference = totals.loc[UNCHANGED]
    place, confidence = _interval(len(reference))
    rows: dict[str, dict[str, Any]] = {}
    for variant, runs in frame.groupby("variant", sort=False):
        own = totals.loc[variant]
        rows[str(variant)] = row = {
            "repeats": len(own),
            "requests": runs["request"].nunique(),
            "changed": runs.loc[runs["changed"], "request"].nunique(),
            "lost_tokens": own["lost_tokens"].median(),
            "causes": ", ".join(runs["cause"].value_counts().index),
        }
        for name in MEASURES:
            more = (own[name] - reference[name]).dropna().sort_values()
            known = confidence is not None and len(more) == len(reference)
            row[name], row[f"{name}_more"] = own[name].median(), more.median()
            row[f"{name}_low"] = more.iloc[place] if known else pd.NA
            row[f"{name}_high"] = more.iloc[-1 - place] if known else pd.NA
        row["confidence"] = confidence
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("variant").convert_dtypes()


def _interval(repeats: int) -> tuple[int, float | None]:
    """Return how many differences to drop at each end, and the confidence level of the interval of the rest.

    The range of the remaining differences is a confidence interval of the median. The level is None for one round.
    """
    tails = [sum(math.comb(repeats, wins) for wins in range(place + 1)) / 2**repeats for place in range((repeats + 1) // 2)]
    place = max((at for at, tail in enumerate(tails) if 1 - 2 * tail >= SURE), default=0)
    return place, None if repeats == 1 else 1 - 2 * tails[place]


def describe(costs: pd.DataFrame) -> str:
    """Return a `summary` as a text table, with one sentence about the most expensive variant.

    Parameters
    ----------
    costs : DataFrame
        The result of `summary`.

    Returns
    -------
    str
        A table and a sentence. ``time to first token`` is summed over the requests of a run. With several rounds, ``more`` is the
        median difference to the unchanged run of the same round, and ``from`` and ``to`` are its confidence interval.

    Raises
    ------
    InvalidConfig
        If `costs` lacks a column that `summary` returns.

    Examples
    --------
    >>> rows = {"variant": ["unchanged", "window(2)"], "repeat": 1, "request": 1, "changed": [False, True]}
    >>> rows |= {"read_tokens": [500, 900], "lost_tokens": [0, 400], "cause": [None, "history_changed"]}
    >>> costs = summary(pd.DataFrame(rows | {"ttft_ms": [10.0, 16.0], "prompt_ms": [9.0, 15.0]}))
    >>> print(describe(costs))  # doctest: +NORMALIZE_WHITESPACE
              tokens processed lost time to first token, ms           causes
    unchanged              500    0                      10
    window(2)              900  400                      16  history_changed
    <BLANKLINE>
    window(2) processed 1.8 times as many prompt tokens as unchanged for the same work.
    """
    names = {"read_tokens": "tokens processed", "lost_tokens": "lost", "ttft_ms": "time to first token, ms"}
    between = {"ttft_ms_more": "more (median)", "ttft_ms_low": "from", "ttft_ms_high": "to"}
    if missing := {*names, *between, "causes", "confidence"} - set(costs.columns):
        raise InvalidConfig("costs", f"the column {min(missing)!r} is missing", "Give the result of replay.summary(frame)")
    more = {} if costs["ttft_ms_low"].isna().all() else between
    numbers = costs[[*names, *more]].map(lambda value: "not reported" if pd.isna(value) else f"{value:,.0f}")
    table = numbers.rename(columns=names | more).assign(causes=costs["causes"]).rename_axis(None).to_string()
    reads = {str(variant): float(read) for variant, read in costs["read_tokens"].dropna().items()}
    dearest = max(reads, key=lambda variant: reads[variant], default=UNCHANGED)
    if not reads.get(UNCHANGED):
        sentence = "This server does not report cached tokens, so the cost of the variants is unknown."
    elif dearest == UNCHANGED:
        sentence = "No variant processed more prompt tokens than the unchanged requests."
    else:
        times = reads[dearest] / reads[UNCHANGED]
        sentence = f"{dearest} processed {times:.1f} times as many prompt tokens as {UNCHANGED} for the same work."
    if more:
        sentence += f"\nThe interval contains the true median with confidence {costs['confidence'].iloc[0]:.2f}."
    return f"{table}\n\n{sentence}"
