"""When an epoch is full, what is carried into the next, and how that one is opened.

Anything that has to change waits for the next epoch: its baseline is assembled from today's system prompt, tools and memory. The
check is made before each request, with the server's own count where the bounds leave a doubt. Knows nothing of turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from msgspec import UNSET

from loopkit.baseline import Baseline, messages
from loopkit.encoding import mend_surrogates
from loopkit.errors import ContextExceeded, EpochTooLarge, InvalidConfig
from loopkit.ids import Timestamp
from loopkit.loop.limits import Limits
from loopkit.neutralise import Tags, neutralise_report
from loopkit.records import Assistant, EpochEnd, LogRecord, ToolResult, UsageRecord, User
from loopkit.request import Request, RequestEncoder

if TYPE_CHECKING:
    from loopkit.server.client import Server
    from loopkit.session.session import Session

__all__ = ["Carried", "Carry", "carry_over", "fits", "last_usage_record", "must_fit"]

Carry: TypeAlias = Literal["turn", "summary"] | Callable[[Sequence[LogRecord]], str] | None

BYTES_PER_TOKEN = 3  # of text that no server has counted; a low guess, so that an epoch ends early rather than late
SUMMARISE = "You sum up conversations so that they can go on elsewhere. Keep names, numbers, decisions and open questions."
ASK_FOR_SUMMARY = "Sum up this conversation between a user and an assistant in at most 200 words.\n\n"


class Carried(NamedTuple):
    """What a new epoch begins with."""

    kind: str
    "``turn``, ``summary`` or ``text``."
    records: tuple[LogRecord, ...]


def last_usage_record(records: Sequence[LogRecord]) -> UsageRecord | None:
    """The latest usage record of an epoch."""
    return next((record for record in reversed(records) if isinstance(record, UsageRecord)), None)


def fits(server: Server, limits: Limits, request: Request, last: UsageRecord | None) -> bool:
    """Whether a request leaves the reserve of the server's context free.

    The last request's prompt and completion are in it, and each byte behind them is at most a token; only where these bounds
    leave a doubt the server is asked to count. A server that does not say its context size refuses by itself.
    """
    if server.context_size is None:
        return True
    room = server.context_size - limits.reserve_of(server.context_size)
    known = 0 if last is None else (last.usage.prompt_tokens or 0) + (last.usage.completion_tokens or 0)
    added = request.size - (last.request_bytes if last is not None and known else 0)
    if known + added <= room:
        return True
    if known > room:
        return False
    return _count(server, request, known + added // BYTES_PER_TOKEN) <= room


def _count(server: Server, request: Request, guess: int) -> int:
    counted = server.count_tokens(request)
    return guess if counted is None else counted


def must_fit(server: Server, limits: Limits, session: Session, baseline: Baseline, records: Sequence[LogRecord]) -> None:
    """Refuse what a new epoch would begin with, where it does not fit.

    Raises
    ------
    EpochTooLarge
        With the three numbers; nothing was written.
    """
    if server.context_size is None:
        return
    room = server.context_size - limits.reserve_of(server.context_size)
    request = RequestEncoder(baseline, session.options, session.start.slot).request(list(records))
    if request.size <= room:
        return
    whole = _count(server, request, request.size // BYTES_PER_TOKEN)
    if whole > room:
        alone = RequestEncoder(baseline, session.options, session.start.slot).request([])
        fixed = min(whole, _count(server, alone, alone.size // BYTES_PER_TOKEN))
        raise EpochTooLarge(fixed, whole - fixed, room)


def carry_over(carry: Carry, session: Session, server: Server, limits: Limits, tags: Tags) -> Carried:
    """Decide what the next epoch begins with.

    Parameters
    ----------
    carry : str, callable or None
        ``"turn"``: the last turn's messages, unchanged. ``"summary"``: one user message, by the model. None: nothing. A function:
        one user message with the text that it makes of the ended epoch's records.
    session : Session
        Its current epoch has ended.
    server, limits, tags
        For a summary.

    Raises
    ------
    InvalidConfig
        When ``carry`` is none of these, or a function gives no text.
    ServerError
        When the summary cannot be had.
    """
    records = session.records
    if carry is None:
        return Carried("turn", ())
    if carry == "turn":
        start = max((at for at, record in enumerate(records) if isinstance(record, User)), default=len(records))
        return Carried("turn", tuple(record for record in records[start:] if isinstance(record, User | Assistant | ToolResult)))
    if carry == "summary":
        return Carried("summary", (_own_text(_summary(session, server, limits, tags), tags),))
    if not callable(carry):
        raise InvalidConfig("carry", f"{carry!r} is no way to carry over", 'Use "turn", "summary", None or a function')
    text = carry(records)
    if not isinstance(text, str):
        raise InvalidConfig("carry", f"the function gave a {type(text).__name__}, not the text to carry over")
    return Carried("text", (_own_text(text, tags),)) if text.strip() else Carried("text", ())


def _own_text(text: str, tags: Tags) -> User:
    """One user record with text that was made here."""
    whole, replaced = mend_surrogates(text)
    content, count = neutralise_report(whole, tags)
    return User(time=Timestamp.now(), content=content, neutralised=count or UNSET, replaced=replaced or UNSET)


def _summary(session: Session, server: Server, limits: Limits, tags: Tags) -> str:
    """Have the model sum up the epoch that ended, in a request of its own; the oldest text is left out where it does not fit."""
    said = [
        f"{message.role}: {message.content}"
        for message in messages(session.baseline, session.records)[1:]
        if isinstance(message.content, str) and message.content
    ]
    room = (server.context_size or 1 << 62) - 2 * limits.reserve_of(server.context_size or 1 << 62)
    options = {**session.options, "max_tokens": max(1, limits.reserve_of(server.context_size or 8192))}
    while True:
        asked = _own_text(ASK_FOR_SUMMARY + "\n\n".join(said), tags)
        request = RequestEncoder(Baseline(SUMMARISE, ()), options, session.start.slot).request([], asked)
        few = len(said) < 2
        if few or request.size <= room or _count(server, request, request.size // BYTES_PER_TOKEN) <= room:
            try:
                return "Summary of the conversation so far:\n" + server.complete(request).text
            except ContextExceeded:
                if few:
                    raise
        said = said[len(said) // 4 + 1 :]


def epoch_end(
    reason: Literal["context_full", "asked"], last: UsageRecord | None, error: ContextExceeded | None, server: Server
) -> EpochEnd:
    """The record that closes an epoch, with the numbers that closed it."""
    prompt = None if last is None else last.usage.prompt_tokens
    return EpochEnd(
        time=Timestamp.now(),
        reason=reason,
        prompt_tokens=prompt if error is None or error.prompt_tokens is None else error.prompt_tokens,
        context_size=server.context_size if error is None or error.context_size is None else error.context_size,
    )
