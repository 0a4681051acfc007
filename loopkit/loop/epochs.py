"""Epochs: whether a request fits the context, how an epoch ends, and which messages the next one starts with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from msgspec import UNSET

from loopkit.contract.baseline import Baseline, messages
from loopkit.contract.neutralise import Tags, neutralise_report
from loopkit.contract.records import Assistant, EpochEnd, LogRecord, ToolResult, UsageRecord, User
from loopkit.contract.request import Request, RequestEncoder
from loopkit.encoding import replace_surrogates
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

BYTES_PER_TOKEN = 3  # estimate for text that no server has counted; low, so that an epoch ends early rather than late
SUMMARY_SYSTEM = "You sum up conversations so that they can go on elsewhere. Keep names, numbers, decisions and open questions."
SUMMARY_REQUEST = "Sum up this conversation between a user and an assistant in at most 200 words.\n\n"
SUMMARY_HEADING = "Summary of the conversation so far:\n"
LEFT_OUT = "(The beginning is left out.)\n"
OPTIONS_LEFT_OUT_OF_SUMMARY = ("max_tokens", "max_completion_tokens", "tool_choice", "parallel_tool_calls", "response_format")


class Carried(NamedTuple):
    """First records of a new epoch."""

    kind: str
    "Kind of carry-over: ``turn``, ``summary`` or ``text``."
    records: tuple[LogRecord, ...]


def check_epoch_options(on_full: object, carry: object) -> None:
    """Refuse an unknown ``on_full`` or ``carry``.

    Examples
    --------
    >>> check_epoch_options("stop", "turn")
    >>> check_epoch_options("roll", "trun")
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidConfig: carry: 'trun' is unknown. Use "turn", "summary", None or a function
    """
    if on_full not in ("stop", "roll"):
        raise InvalidConfig("on_full", f"{on_full!r} is unknown", 'Use "stop" or "roll"')
    if carry not in ("turn", "summary", None) and not callable(carry):
        raise InvalidConfig("carry", f"{carry!r} is unknown", 'Use "turn", "summary", None or a function')


def last_usage_record(records: Sequence[LogRecord]) -> UsageRecord | None:
    """Return the latest usage record of an epoch, or None."""
    return next((record for record in reversed(records) if isinstance(record, UsageRecord)), None)


def fits(server: Server, limits: Limits, request: Request, last: UsageRecord | None) -> bool:
    """Return True if a request leaves the reserve of the server's context free.

    The last prompt is part of the request, and each further byte is at most one token. The server counts tokens only if these
    bounds do not decide. Without a known context size the server itself refuses requests that are too long.
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
    """Refuse the first request of an epoch if it does not fit. Nothing is written.

    Raises
    ------
    EpochTooLarge
        If baseline and records leave no room. The error has the three numbers.
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
    """Return the first records of the next epoch.

    Parameters
    ----------
    carry : {"turn", "summary"}, callable or None
        ``"turn"``: the messages of the last turn, unchanged. ``"summary"``: one user message by the model. A function: one user
        message with the text that it returns, or none if the text is blank. None: nothing.
    session : Session
        A session whose current epoch has ended.
    server : Server
        Server whose context the request for a summary must fit.
    tags : Tags
        Tags to neutralise in new text.
    complete : callable
        Sends the request for a summary.

    Returns
    -------
    Carried
        The records and their kind.

    Raises
    ------
    InvalidConfig
        If a function does not return text.
    ServerError
        If the server gives no summary.
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
            raise InvalidConfig("carry", f"the function returned {kind_of(text)}", "Return the text to carry over, as a str")
    return Carried(kind, (_own_text(text, tags),) if text.strip() else ())


def _own_text(text: str, tags: Tags) -> User:
    """Return a user record with new text, neutralised."""
    whole, replaced = replace_surrogates(text)
    content, count = neutralise_report(whole, tags)
    return User(time=Timestamp.now(), content=content, neutralised=count or UNSET, replaced=replaced or UNSET)


def _summary(session: Session, server: Server, tags: Tags, complete: Callable[[Request], Completion]) -> str:
    """Return the model's summary of the ended epoch, from a separate request. The oldest text is left out if it does not fit."""
    lines = [
        f"{message.role}: {message.content}"
        for message in messages(session.baseline, session.records)[1:]
        if isinstance(message.content, str) and message.content
    ]
    text = "\n\n".join(lines)
    if not text:
        return ""
    most = Limits().reserve_of(server.context_size or 8192)
    options = {name: value for name, value in session.options.items() if name not in OPTIONS_LEFT_OUT_OF_SUMMARY}
    options["max_completion_tokens" if "max_completion_tokens" in session.options else "max_tokens"] = most
    encoder = RequestEncoder(Baseline(SUMMARY_SYSTEM, ()), options, session.start.slot)
    while True:
        # neutralised as one text after the cut, because the model's own text in the log is not neutralised
        request = encoder.request([], _own_text(SUMMARY_REQUEST + text, tags))
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
        why = f"the model returned an empty summary (finish reason {completion.finish_reason!r})"
        raise ServerRefused(server.url, 200, why, 'Ask again, or set loop.carry = "turn"')
    return SUMMARY_HEADING + completion.text


def epoch_end(
    reason: Literal["context_full", "asked"], last: UsageRecord | None, error: ContextExceeded | None, server: Server
) -> EpochEnd:
    """Return the record that ends an epoch, with the token counts that caused it."""
    prompt = None if last is None else last.usage.prompt_tokens
    return EpochEnd(
        time=Timestamp.now(),
        reason=reason,
        prompt_tokens=prompt if error is None or error.prompt_tokens is None else error.prompt_tokens,
        context_size=server.context_size if error is None or error.context_size is None else error.context_size,
    )
