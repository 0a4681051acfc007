"""Loaded logs in lines of text, for a terminal: the card, the sessions, the losses by cause, the problems."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from loopkit.logs.collection import Logs
from loopkit.reprs import counted, shown

__all__ = ["causes", "summary", "traced"]


def summary(logs: Logs, *, each: bool = False) -> list[str]:
    """What a person looks for first; where asked, with each loss instead of those of a session together.

    Examples
    --------
    >>> summary(Logs(()))
    ['Logs: sessions 0, epochs 0, turns 0, requests 0, processed unknown, lost unknown']
    """
    losses = logs.cache_loss
    told = causes(losses, each=each)
    more = [] if each or len(told) == len(causes(losses)) else ["loopkit show --all names each loss"]
    return [shown(line) for line in (str(logs), *_sessions(logs), *told, *more, *map(str, logs.unread))]


def _sessions(logs: Logs) -> Iterator[str]:
    reuse = logs.epochs.groupby("session", sort=False)[["prompt_tokens", "lost_tokens"]].sum(min_count=1)
    for row in logs.sessions.to_dict("records"):
        prompt, lost = ("?" if pd.isna(count) else f"{count:,}" for count in reuse.loc[row["session"]])
        model = "model unknown" if pd.isna(row["model"]) else row["model"]
        requests = counted(row["requests"], "request")
        yield f"{row['session']} ({row['source']}, {model}): {requests}, {prompt} prompt tokens, {lost} lost"


def causes(losses: pd.DataFrame, *, each: bool = True) -> list[str]:
    """The causes of losses, the most expensive first, each with its places; or with what each session lost by it.

    Examples
    --------
    >>> causes(Logs(()).cache_loss)
    []
    """
    lines: list[str] = []
    by_cause = [rows for _, rows in losses.groupby("cause", sort=False)]
    for rows in sorted(by_cause, key=_lost, reverse=True):
        lines.append(f"{rows['cause'].iloc[0]}: {counted(_lost(rows), 'token')}")
        for session, own in rows.groupby("session", sort=False):
            if each or len(own) == 1:
                lines += map(_place, own.to_dict("records"))
            else:
                sure = ", ".join(f"{count:,} {name}" for name, count in own["certainty"].value_counts().items())
                lines.append(f"  {session}: {len(own):,} losses, {counted(_lost(own), 'token')} ({sure})")
    return lines


def traced(logs: Logs, written: int, path: Path) -> str:
    """How many requests a trace has, and why it has not the others.

    Examples
    --------
    >>> traced(Logs(()), 0, Path("trace.jsonl"))
    '0 of 0 requests in trace.jsonl'
    """
    every = len(logs.usage)
    told = f"{written:,} of {counted(every, 'request')} in {path}"
    replayed = int(logs.sessions.loc[logs.sessions["source"] == "replay", "requests"].sum())
    others = every - written - replayed
    reasons = [(replayed, "of replays, whose logs hold no bodies"), (others, "of which only the usage is known")]
    left_out = ", ".join(f"{many:,} {why}" for many, why in reasons if many)
    return f"{told}; left out: {left_out}" if left_out else told


def _lost(rows: pd.DataFrame) -> int:
    return int(rows["lost_tokens"].sum())


def _place(row: dict[Hashable, Any]) -> str:
    where = f" in {row['location']}" if isinstance(row["location"], str) else ""
    place = f"{row['session']} epoch {row['epoch']} request {row['request']}"
    return f"  {place}: {counted(row['lost_tokens'], 'token')}{where} ({row['certainty']})"
