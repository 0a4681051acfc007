"""A gate for CI: how many tokens were lost in a log, why, and whether that is more than allowed.

Counts what the logs say, and refuses to pass what says nothing: a log without cached counts is no warm cache. Replays break the
contract on purpose, so that they count only where nothing else is there.
"""

from __future__ import annotations

from typing import NamedTuple

from loopkit.errors import InvalidConfig
from loopkit.logs.loading import Loadable, load
from loopkit.logs.problems import Errors
from loopkit.logs.summary import causes
from loopkit.reprs import counted

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
    >>> gate([])
    Gate(ok=False, lost_tokens=0, lines=('no request says how much was cached: nothing could be judged',))
    """
    if not isinstance(max_lost, int):
        raise InvalidConfig("max_lost", f"{max_lost!r} is no number of tokens")
    logs = load(what, errors=errors)
    faults = [
        str(problem)
        for problem in logs.unread
        if problem.kind == "baseline" or (errors == "report" and problem.kind != "left_out")
    ]
    cut = len({problem.path for problem in logs.unread if problem.kind in ("torn", "unreadable")})
    whole = f"; {counted(cut, 'log was', 'logs were')} not read whole" if cut else ""
    lines: list[str] = []
    replays = set(logs.sessions.loc[logs.sessions["source"] == "replay", "session"])
    others = set(logs.sessions["session"]) - replays
    if others and replays:
        broken = int(logs.where(session=sorted(replays)).cache_loss["lost_tokens"].sum())
        many = counted(len(replays), "replay")
        lines = [f"{many} left out, which break the contract on purpose and lost {counted(broken, 'token')}"]
        logs = logs.where(session=sorted(others))
    usage, losses = logs.usage, logs.cache_loss
    told = int(usage["cached_tokens"].notna().sum())
    if not told:
        why = f"no request says how much was cached: nothing could be judged{whole}"
        return Gate(ok=False, lost_tokens=0, lines=(*faults, *lines, why))
    lost = int(losses["lost_tokens"].sum())
    lines = [*causes(losses), *faults, *lines]
    named = lost - int(losses.loc[losses["cause"] == "unexplained", "lost_tokens"].sum())
    share = f"{named / lost:.0%} with a cause" if lost else "nothing to explain"
    judged = f"cached counts in {told:,} of {counted(len(usage), 'request')}"
    lines.append(f"lost {counted(lost, 'token')} of at most {max_lost:,}; {judged}; {share}{whole}")
    return Gate(ok=lost <= max_lost, lost_tokens=lost, lines=tuple(lines))
