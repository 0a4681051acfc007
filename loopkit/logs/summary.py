"""The text of ``loopkit show``: sessions, losses by cause with advice, problems."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from loopkit.cache.losses.cause_texts import advice, because
from loopkit.logs.collection import Logs
from loopkit.reprs import counted, shown

__all__ = ["describe_losses", "describe_replays", "describe_trace", "summary"]


def summary(logs: Logs, *, each: bool = False) -> list[str]:
    """Return the lines of a summary of logs. Losses of replays are listed only if all logs are replays.

    Parameters
    ----------
    logs : Logs
        The logs to summarise.
    each : bool
        Whether to list each loss, instead of one line per session and cause.

    Returns
    -------
    list of str
        Totals, one line per session, the losses by cause, and the problems.

    Examples
    --------
    >>> summary(Logs(()))
    ['Logs: sessions 0, epochs 0, turns 0, requests 0, processed unknown, lost unknown']
    """
    losses = logs.without_replays().cache_loss
    lines = describe_losses(losses, each=each)
    is_short = not each and len(lines) < len(describe_losses(losses))
    more = ["Use `loopkit show --all` to list each loss."] if is_short else []
    return [shown(line) for line in (str(logs), *_sessions(logs), *lines, *more, *describe_replays(logs), *map(str, logs.unread))]


def _sessions(logs: Logs) -> Iterator[str]:
    totals = logs.epochs.groupby("session", sort=False)[["prompt_tokens", "lost_tokens"]].sum(min_count=1)
    for row in logs.sessions.to_dict("records"):
        prompt, lost = ("unknown" if pd.isna(count) else f"{count:,}" for count in totals.loc[row["session"]])
        model = "unknown model" if pd.isna(row["model"]) else row["model"]
        requests = counted(row["requests"], "request")
        yield f"{row['session']} ({row['source']}, {model}): {requests}, prompt tokens {prompt}, lost tokens {lost}"


def describe_losses(losses: pd.DataFrame, *, each: bool = True) -> list[str]:
    """Return lines about the losses, by cause: the most expensive cause first, each with advice and the places of its losses.

    Parameters
    ----------
    losses : DataFrame
        Rows of ``cache_loss``.
    each : bool
        Whether to list each loss, instead of one line per session and cause.

    Examples
    --------
    >>> describe_losses(Logs(()).cache_loss)
    []
    """
    lines: list[str] = []
    by_cause = [rows for _, rows in losses.groupby("cause", sort=False)]
    for rows in sorted(by_cause, key=_lost, reverse=True):
        cause = rows["cause"].iloc[0]
        lines.append(f"{counted(_lost(rows), 'token')} lost {because(cause)} ({cause})")
        lines += [f"  What to do: {advice(cause)}"] if advice(cause) else []
        for session, own in rows.groupby("session", sort=False):
            if each or len(own) == 1:
                lines += map(_place, own.to_dict("records"))
            else:
                certainties = ", ".join(f"{count:,} {name}" for name, count in own["certainty"].value_counts().items())
                lines.append(f"  {session}: {counted(_lost(own), 'token')} in {len(own):,} losses ({certainties})")
    return lines


def describe_replays(logs: Logs) -> list[str]:
    """Return one line about the replays left out of the summary.

    The list is empty if there are no replays, or nothing but replays.

    Examples
    --------
    >>> describe_replays(Logs(()))
    []
    """
    if logs.without_replays() is logs:
        return []
    replays = logs.where(source="replay")
    lost = counted(_lost(replays.cache_loss), "token")
    return [f"{counted(len(replays.sessions), 'replay')} not counted, as replays may lose tokens on purpose ({lost} lost)"]


def describe_trace(logs: Logs, written: int, path: Path) -> str:
    """Return a line that says how many requests a trace contains, and why the others were left out.

    Parameters
    ----------
    logs : Logs
        The exported logs.
    written : int
        Number of lines, as `Logs.export_trace` returns it.
    path : Path
        File of the trace.

    Examples
    --------
    >>> describe_trace(Logs(()), 0, Path("trace.jsonl"))
    'Wrote 0 of 0 requests to trace.jsonl'
    """
    every = len(logs.usage)
    replayed = int(logs.sessions.loc[logs.sessions["source"] == "replay", "requests"].sum())
    others = every - written - replayed
    reasons = [(replayed, "of replays, whose logs contain no request bodies"), (others, "with nothing but usage")]
    left_out = "; ".join(f"{count:,} {why}" for count, why in reasons if count)
    return f"Wrote {written:,} of {counted(every, 'request')} to {path}" + (f". Left out: {left_out}" if left_out else "")


def _lost(rows: pd.DataFrame) -> int:
    return int(rows["lost_tokens"].sum())


def _place(row: dict[Hashable, Any]) -> str:
    location = f" at {row['location']}" if isinstance(row["location"], str) else ""
    place = f"{row['session']}, epoch {row['epoch']}, request {row['request']}"
    return f"  {place}: {counted(row['lost_tokens'], 'token')}{location} ({row['certainty']})"
