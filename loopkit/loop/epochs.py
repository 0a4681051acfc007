"""When an epoch is full, what is carried into the next, and how that one is opened.

Anything that has to change waits for the next epoch: its baseline is assembled from today's system prompt, tools and memory. The
check is made before each request, with the server's own count where the bounds leave a doubt. Knows nothing of turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from msgspec import UNSET

from loopkit.contract.baseline import Baseline, messages
from loopkit.contract.neutralise import Tags, neutralise_report
from loopkit.contract.records import Assistant, EpochEnd, LogRecord, ToolResult, UsageRecord, User
from loopkit.contract.request import Request, RequestEncoder
from loopkit.encoding import mend_surrogates
from loopkit.errors import ContextExceeded, EpochTooLarge, InvalidConfig, ServerRefused, kind_of
from loopkit.ids import Timestamp
from loopkit.loop.limits import Limits

if TYPE_CHECKING:
    from loopkit.server.client import Server
    from loopkit.server.completion.assembly import Completion
    from loopkit.session.session import Session

__all__ = [
    "Carried",
    "Carry",
    "OnFull",
    "carry_over",
    "check_epoch_options",
    "epoch_end",
    "fits",
    "last_usage_record",
    "must_fit",
]

OnFull: TypeAlias = Literal["stop", "roll"]
Carry: TypeAlias = Literal["turn", "summary"] | Callable[[Sequence[LogRecord]], str] | None

BYTES_PER_TOKEN = 3  # of text that no server has counted; a low guess, so that an epoch ends early rather than late
SUMMARISE = "You sum up conversations so that they can go on elsewhere. Keep names, numbers, decisions and open questions."
ASK_FOR_SUMMARY = "Sum up this conversation between a user and an assistant in at most 200 words.\n\n"
SUMMARY = "Summary of the conversation so far:\n"
LEFT_OUT = "(The beginning is left out.)\n"
NOT_FOR_A_SUMMARY = ("max_tokens", "max_completion_tokens", "tool_choice", "parallel_tool_calls", "response_format")


class Carried(NamedTuple):
    """What a new epoch begins with."""

    kind: str
    "``turn``, ``summary`` or ``text``."
    records: tuple[LogRecord, ...]


def check_epoch_options(on_full: object, carry: object) -> None:
    """Refuse what is no way out of a full context, or no way to carry over.

    Examples
    --------
    >>> check_epoch_options("stop", "turn")
    >>> check_epoch_options("roll", "trun")
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidConfig: carry: 'trun' is no way to carry over. Use "turn", "summary", None or a function
    """
    if on_full not in ("stop", "roll"):
        raise InvalidConfig("on_full", f"{on_full!r} is no way out of a full context", 'Use "stop" or "roll"')
    if carry not in ("turn", "summary", None) and not callable(carry):
        raise InvalidConfig("carry", f"{carry!r} is no way to carry over", 'Use "turn", "summary", None or a function')


def last_usage_record(records: Sequence[LogRecord]) -> UsageRecord | None:
    """The latest usage record of an epoch."""
    return next((record for record in reversed(records) if isinstance(record, UsageRecord)), None)


def fits(server: Server, limits: Limits, request: Request, last: UsageRecord | None) -> bool:
    """Whether a request leaves the reserve of the server's context free.

    The last prompt is in it, and each byte behind that prompt's is at most a token; only where these bounds leave a doubt the
    server is asked to count. A server that does not say its context size refuses by itself.
    """
    if server.context_size is None:
        return True
    room = server.context_size - limits.reserve_of(server.context_size)
    at_least, added = 0, request.size
    if last is not None and last.usage.prompt_tokens is not None:
        at_least, added = last.usage.prompt_tokens, request.size - last.request_bytes
    if at_least + added <= room:
        return True
    return at_least <= room and _count(server, request, at_least + added // BYTES_PER_TOKEN) <= room


def _count(server: Server, request: Request, guess: int) -> int:
    counted = server.count_tokens(request)
    return guess if counted is None else counted


def must_fit(server: Server, limits: Limits, session: Session, baseline: Baseline, records: Sequence[LogRecord]) -> None:
    """Refuse what an epoch would begin with, where it does not fit.

    Raises
    ------
    EpochTooLarge
        With the three numbers; nothing was written.
    """
    if server.context_size is None:
        return
    encoder = RequestEncoder(baseline, session.options, session.start.slot)
    alone, request = encoder.request([]), encoder.request(list(records))
    if fits(server, limits, request, None):
        return
    whole, fixed = (_count(server, each, each.size // BYTES_PER_TOKEN) for each in (request, alone))
    room = server.context_size - limits.reserve_of(server.context_size)
    raise EpochTooLarge(min(whole, fixed), whole - min(whole, fixed), room)


def carry_over(carry: Carry, session: Session, server: Server, tags: Tags, complete: Callable[[Request], Completion]) -> Carried:
    """Decide what the next epoch begins with.

    Parameters
    ----------
    carry : str, callable or None
        ``"turn"``: the last turn's messages, unchanged. ``"summary"``: one user message, by the model. None: nothing. A function:
        one user message with the text that it makes of the ended epoch's records; nothing where the text is blank.
    session : Session
        Its current epoch has ended.
    server, tags
        Whose context a summary has to fit, and what to neutralise in a text that is made here.
    complete : callable
        Has a server answer the request for a summary.

    Raises
    ------
    InvalidConfig
        When a function gives no text.
    ServerError
        When a summary cannot be had.
    """
    records = session.records
    if carry is None:
        return Carried("turn", ())
    if carry == "turn":
        start = max((at for at, record in enumerate(records) if isinstance(record, User)), default=len(records))
        return Carried("turn", tuple(record for record in records[start:] if isinstance(record, User | Assistant | ToolResult)))
    if carry == "summary":
        kind, text = "summary", _summary(session, server, tags, complete)
    else:
        kind, text = "text", carry(tuple(records))
        if not isinstance(text, str):
            raise InvalidConfig("carry", f"the function gave {kind_of(text)}, not the text to carry over")
    return Carried(kind, (_own_text(text, tags),) if text.strip() else ())


def _own_text(text: str, tags: Tags) -> User:
    """One user record with text that was made here."""
    whole, replaced = mend_surrogates(text)
    content, count = neutralise_report(whole, tags)
    return User(time=Timestamp.now(), content=content, neutralised=count or UNSET, replaced=replaced or UNSET)


def _summary(session: Session, server: Server, tags: Tags, complete: Callable[[Request], Completion]) -> str:
    """Have the model sum up the epoch that ended, in a request of its own; the oldest text is left out where it does not fit."""
    said = [
        f"{message.role}: {message.content}"
        for message in messages(session.baseline, session.records)[1:]
        if isinstance(message.content, str) and message.content
    ]
    text = "\n\n".join(said)
    if not text:
        return ""
    most = Limits().reserve_of(server.context_size or 8192)
    options = {name: value for name, value in session.options.items() if name not in NOT_FOR_A_SUMMARY}
    options["max_completion_tokens" if "max_completion_tokens" in session.options else "max_tokens"] = most
    encoder = RequestEncoder(Baseline(SUMMARISE, ()), options, session.start.slot)
    while True:
        # neutralised as one text, after the cut: what the model said stands in the log as it was
        request = encoder.request([], _own_text(ASK_FOR_SUMMARY + text, tags))
        short = len(text) < 2 * len(LEFT_OUT)
        if short or fits(server, Limits(reserve=most), request, None):
            try:
                completion = complete(request)
                break
            except ContextExceeded:
                if short:
                    raise
        text = LEFT_OUT + text.removeprefix(LEFT_OUT)[len(text) // 4 :]
    if not completion.text.strip():
        why = f"the model gave no summary (it stopped for {completion.finish_reason})"
        raise ServerRefused(server.url, 200, why, 'Ask again, or resume the session with another carry=, such as "turn"')
    return SUMMARY + completion.text


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
