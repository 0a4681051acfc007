"""A gate for CI: how many tokens were lost in a log, why, and whether that is more than allowed.

Counts what the logs say, and refuses to pass what says nothing: a log without cached counts is no warm cache. Replays break the
contract on purpose, so that they count only where nothing else is there.
"""

from __future__ import annotations

from typing import NamedTuple

from loopkit.logs.load import Loadable, load

__all__ = ["Gate", "gate"]


class Gate(NamedTuple):
    """What a gate saw."""

    ok: bool
    lost_tokens: int
    lines: tuple[str, ...]
    "The causes, the most expensive first, and how much was judged."


def gate(what: Loadable, max_lost: int = 0) -> Gate:
    """Compare what was lost with what may be.

    Parameters
    ----------
    what : str, Path, Session, or an iterable of these
        As `loopkit.load` takes it.
    max_lost : int
        Tokens that may be lost, over all of it.

    Raises
    ------
    TornLog, LogError
        As `loopkit.load` does.

    Examples
    --------
    >>> import tempfile
    >>> gate(tempfile.mkdtemp())
    Gate(ok=False, lost_tokens=0, lines=('no request says how much was cached: nothing could be judged',))
    """
    logs = load(what)
    replays = set(logs.sessions.loc[logs.sessions["source"] == "replay", "session"])
    others = set(logs.sessions["session"]) - replays
    if others and replays:
        logs = logs.where(session=sorted(others))
    usage, losses = logs.usage, logs.cache_loss
    told = int(usage["cached_tokens"].notna().sum())
    if not told:
        return Gate(ok=False, lost_tokens=0, lines=("no request says how much was cached: nothing could be judged",))
    lost = int(losses["lost_tokens"].sum())
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
    named = lost - tokens.get("unexplained", 0)
    share = f"{named / lost:.0%} with a cause" if lost else "nothing to explain"
    lines.append(f"lost {lost:,} tokens of at most {max_lost:,}; cached counts in {told:,} of {len(usage):,} requests; {share}")
    return Gate(ok=lost <= max_lost, lost_tokens=lost, lines=tuple(lines))
