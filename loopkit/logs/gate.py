"""A gate for CI: the tokens lost in logs, compared with a limit.

A log without cached token counts does not pass, because it cannot be checked.
"""

from __future__ import annotations

from typing import NamedTuple

from loopkit.errors import InvalidConfig
from loopkit.logs.loading import Loadable, load
from loopkit.logs.problems import Errors
from loopkit.logs.summary import describe_losses, describe_replays
from loopkit.reprs import counted

__all__ = ["Gate", "gate"]


class Gate(NamedTuple):
    """Result of `gate`: whether logs lost too many cached tokens, and why."""

    ok: bool
    "True if at least one request reports cached tokens, and no more tokens were lost than allowed."
    lost_tokens: int
    "Number of tokens lost, over all logs."
    lines: tuple[str, ...]
    "Text for the user: the causes, the most expensive first; the problems; and the totals."


def gate(what: Loadable, max_lost: int = 0, *, errors: Errors = "raise") -> Gate:
    """Check that logs lost no more tokens than allowed. Replays count only if all logs are replays.

    Parameters
    ----------
    what : str, Path, Session, or an iterable of these
        As for `loopkit.load`.
    max_lost : int
        Number of tokens that may be lost in total.
    errors : "raise" or "report"
        What to do about a fault in a log: raise it, or check everything else and name the fault.

    Returns
    -------
    Gate
        Whether the logs pass, and why.

    Raises
    ------
    TornLog, LogError
        If a log is damaged, a path does not exist or a file is not a log, as for `loopkit.load`.

    Examples
    --------
    >>> gate([])
    Gate(ok=False, lost_tokens=0, lines=('No request reports its cached tokens, so nothing can be checked.',))
    """
    if not isinstance(max_lost, int):
        raise InvalidConfig("max_lost", f"it must be a number of tokens; got {max_lost!r}")
    loaded = load(what, errors=errors)
    problems = [
        str(problem)
        for problem in loaded.unread
        if problem.kind == "baseline" or (errors == "report" and problem.kind != "left_out")
    ]
    damaged = len({problem.path for problem in loaded.unread if problem.kind in ("torn", "unreadable")})
    partial = f" {counted(damaged, 'log was', 'logs were')} not read completely." if damaged else ""
    logs = loaded.without_replays()
    usage, losses = logs.usage, logs.cache_loss
    notes = [*problems, *describe_replays(loaded)]
    reported = int(usage["cached_tokens"].notna().sum())
    if not reported:
        why = f"No request reports its cached tokens, so nothing can be checked.{partial}"
        return Gate(ok=False, lost_tokens=0, lines=(*notes, why))
    lost = int(losses["lost_tokens"].sum())
    explained = lost - int(losses.loc[losses["cause"] == "unexplained", "lost_tokens"].sum())
    share = f" {explained / lost:.0%} of the lost tokens have a known cause." if lost else ""
    total = f"{counted(lost, 'token')} lost; at most {max_lost:,} allowed."
    total += f" {reported:,} of {counted(len(usage), 'request')} report cached tokens.{share}{partial}"
    return Gate(ok=lost <= max_lost, lost_tokens=lost, lines=(*describe_losses(losses), *notes, total))
