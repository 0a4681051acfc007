"""What a comparison comes to: medians and paired differences, one row a variant, and the same as a text.

Times move from run to run, so none is taken alone: each run is compared with the unchanged one of its own round. Pure arithmetic
on a frame.
"""

from __future__ import annotations

import math
from typing import Any, Final

import pandas as pd

from loopkit.errors import InvalidConfig

__all__ = ["UNCHANGED", "summary", "told"]

UNCHANGED: Final = "unchanged"
SURE: Final = 0.95
MEASURES: Final = ("read_tokens", "ttft_ms", "prompt_ms")


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Say what each variant costs, in one row.

    Parameters
    ----------
    frame : DataFrame
        Of `compare`.

    Returns
    -------
    DataFrame
        Indexed by variant: ``repeats``, ``requests`` of a run, ``changed`` ones, ``lost_tokens`` and the ``causes``, the most
        frequent first; then for ``read_tokens``, ``ttft_ms`` and ``prompt_ms``, each summed over a run: the median over the
        rounds, and of the differences to the unchanged run of the same round the median (``…_more``) with its interval
        (``…_low``, ``…_high``). The interval holds the true median with the ``confidence`` given.

    Raises
    ------
    InvalidConfig
        When the unchanged runs are not in it.

    Notes
    -----
    The interval assumes nothing of how times are distributed: of *n* differences in order it reaches from the *k*-th to the
    *k*-th from the end, with the largest *k* for which ``1 - 2 P(X < k)``, X binomial of *n* and ½, is at least 0.95. Of fewer
    than six it is all of them, and less sure: 5 give 0.94, 3 give 0.75. One round gives no interval.

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
        raise InvalidConfig("frame", f"it holds no run of {UNCHANGED} to compare with", "Leave those rows in")
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
    """How many differences in order are left out at each end, and how sure the rest is; None of one."""
    tails = [sum(math.comb(repeats, wins) for wins in range(place + 1)) / 2**repeats for place in range((repeats + 1) // 2)]
    place = max((at for at, tail in enumerate(tails) if 1 - 2 * tail >= SURE), default=0)
    return place, None if repeats == 1 else 1 - 2 * tails[place]


def told(costs: pd.DataFrame) -> str:
    """Say a `summary` as a table for a terminal, and the dearest variant in a sentence.

    Parameters
    ----------
    costs : DataFrame
        Of `summary`. ``first tokens`` is the time to the first token, summed over the requests of a run; ``more`` the median of
        what it is beyond the unchanged run of the same round.

    Raises
    ------
    InvalidConfig
        When it is no summary.

    Examples
    --------
    >>> rows = {"variant": ["unchanged", "window(2)"], "repeat": 1, "request": 1, "changed": [False, True]}
    >>> rows |= {"read_tokens": [500, 900], "lost_tokens": [0, 400], "cause": [None, "history_changed"]}
    >>> costs = summary(pd.DataFrame(rows | {"ttft_ms": [10.0, 16.0], "prompt_ms": [9.0, 15.0]}))
    >>> print(told(costs))  # doctest: +NORMALIZE_WHITESPACE
              tokens read lost first tokens, sum in ms           causes
    unchanged         500    0                      10
    window(2)         900  400                      16  history_changed
    <BLANKLINE>
    window(2) read 1.8 times as many prompt tokens as unchanged for the same work.
    """
    names = {"read_tokens": "tokens read", "lost_tokens": "lost", "ttft_ms": "first tokens, sum in ms"}
    between = {"ttft_ms_more": "more, median", "ttft_ms_low": "from", "ttft_ms_high": "to"}
    if missing := {*names, *between, "causes", "confidence"} - set(costs.columns):
        raise InvalidConfig("costs", f"{min(missing)} is not among its columns", "Give what replay.summary(costs) gives")
    more = {} if costs["ttft_ms_low"].isna().all() else between
    numbers = costs[[*names, *more]].map(lambda value: "not reported" if pd.isna(value) else f"{value:,.0f}")
    table = numbers.rename(columns=names | more).assign(causes=costs["causes"]).rename_axis(None).to_string()
    reads = {str(variant): float(read) for variant, read in costs["read_tokens"].dropna().items()}
    dearest = max(reads, key=lambda variant: reads[variant], default=UNCHANGED)
    if not reads.get(UNCHANGED):
        said = "This server does not report cached tokens, so nothing can be said of its cache."
    elif dearest == UNCHANGED:
        said = "None of them read more prompt tokens than the unchanged requests."
    else:
        times = reads[dearest] / reads[UNCHANGED]
        said = f"{dearest} read {times:.1f} times as many prompt tokens as {UNCHANGED} for the same work."
    if more:
        said += f"\nThe interval holds the true median with confidence {costs['confidence'].iloc[0]:.2f}."
    return f"{table}\n\n{said}"
