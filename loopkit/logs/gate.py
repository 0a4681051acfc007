"""A gate for CI: how many tokens were lost in a log, why, and whether that is more than allowed.

Counts what the logs say, and refuses to pass what says nothing: a log without cached counts is no warm cache. Replays break the
contract on purpose, so that they count only where nothing else is there.
"""

from __future__ import annotations

from typing import NamedTuple

from loopkit.errors import InvalidConfig
from loopkit.logs.load import Loadable, load
from loopkit.logs.problems import Errors
from loopkit.logs.summary import causes

__all__ = ["Gate", "gate"]


class Gate(NamedTuple):
    """What a gate saw."""

    ok: bool
    lost_tokens: int
    lines: tuple[str, ...]
    "The causes, the most expensive first; what could not be read; how much was judged, and what was not."


def gate(what: Loadable, max_lost: int = 0, *, errors: Errors = "raise") -> Gate:
    """Compare what was lost with what may be.

    Parameters
    ----------
    what : str, Path, Session, or an iterable of these
        As `loopkit.load` takes it.
    max_lost : int
        Tokens that may be lost, over all of it.
    errors : "raise" or "report"
        At a fault, raise it; or judge what is sound, and name what is not.

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
    if not isinstance(max_lost, int):
        raise InvalidConfig("max_lost", f"{max_lost!r} is no number of tokens")
    logs = load(what, errors=errors)
    faults = [str(problem) for problem in logs.unread if errors == "report" and problem.kind != "left_out"]
    lines: list[str] = []
    replays = set(logs.sessions.loc[logs.sessions["source"] == "replay", "session"])
    others = set(logs.sessions["session"]) - replays
    if others and replays:
        broken = int(logs.where(session=sorted(replays)).cache_loss["lost_tokens"].sum())
        lines = [f"{len(replays):,} replays left out, which break the contract on purpose and lost {broken:,} tokens"]
        logs = logs.where(session=sorted(others))
    usage, losses = logs.usage, logs.cache_loss
    told = int(usage["cached_tokens"].notna().sum())
    if not told:
        return Gate(
            ok=False, lost_tokens=0, lines=(*faults, *lines, "no request says how much was cached: nothing could be judged")
        )
    lost = int(losses["lost_tokens"].sum())
    lines = [*causes(losses), *faults, *lines]
    named = lost - int(losses.loc[losses["cause"] == "unexplained", "lost_tokens"].sum())
    share = f"{named / lost:.0%} with a cause" if lost else "nothing to explain"
    lines.append(f"lost {lost:,} tokens of at most {max_lost:,}; cached counts in {told:,} of {len(usage):,} requests; {share}")
    return Gate(ok=lost <= max_lost, lost_tokens=lost, lines=tuple(lines))
