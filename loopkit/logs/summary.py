"""Loaded logs in lines of text, for a terminal: the card, the sessions, the losses by cause, the problems."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from loopkit.card import shown
from loopkit.logs.load import Logs

__all__ = ["causes", "summary"]


def summary(logs: Logs) -> list[str]:
    """What a person looks for first.

    Examples
    --------
    >>> summary(Logs(()))
    ['Logs: sessions 0, epochs 0, turns 0, requests 0, read unknown, lost unknown']
    """
    return [shown(line) for line in (str(logs), *_sessions(logs), *causes(logs.cache_loss), *map(str, logs.unread))]


def _sessions(logs: Logs) -> Iterator[str]:
    reuse = logs.epochs.groupby("session", sort=False)[["prompt_tokens", "lost_tokens"]].sum(min_count=1)
    for row in logs.sessions.to_dict("records"):
        prompt, lost = ("?" if pd.isna(count) else f"{count:,}" for count in reuse.loc[row["session"]])
        model = "model unknown" if pd.isna(row["model"]) else row["model"]
        yield f"{row['session']} ({row['source']}, {model}): {row['requests']:,} requests, {prompt} prompt tokens, {lost} lost"


def causes(losses: pd.DataFrame) -> list[str]:
    """The causes of losses, the most expensive first, each with its places.

    Examples
    --------
    >>> causes(Logs(()).cache_loss)
    []
    """
    by_cause: dict[str, list[str]] = {}
    tokens: dict[str, int] = {}
    for row in losses.to_dict("records"):
        cause, count = str(row["cause"]), int(row["lost_tokens"])
        where = f" in {row['where']}" if isinstance(row["where"], str) else ""
        place = f"{row['session']} epoch {row['epoch']} request {row['request']}"
        by_cause.setdefault(cause, []).append(f"{place}: {count:,} tokens{where} ({row['certainty']})")
        tokens[cause] = tokens.get(cause, 0) + count
    lines: list[str] = []
    for cause in sorted(tokens, key=lambda each: -tokens[each]):
        lines.append(f"{cause}: {tokens[cause]:,} tokens")
        lines += [f"  {place}" for place in by_cause[cause]]
    return lines
