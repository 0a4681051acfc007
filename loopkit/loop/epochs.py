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

BYTES_PER_TOKEN = 3  # Estimate for text whose tokens no server has counted. It is low, so that an epoch ends early.
SUMMARY_SYSTEM = "You sum up conversations so that they can go on elsewhere. Keep names, numbers, decisions and open questions."
SUMMARY_REQUEST = "Sum up this conversation between a user and an assistant in at most 200 words.\n\n"
SUMMARY_HEADING = "Summary of the conversation so far:\n"
LEFT_OUT = "(The beginning is left out.)\n"
OPTIONS_LEFT_OUT_OF_SUMMARY = ("max_tokens", "max_completion_tokens", "tool_choice", "parallel_tool_calls", "response_format")


class Carried(NamedTuple):
    """Records that a new epoch starts with."""

    kind: str
    "Where the records come from: ``turn`` (the last turn), ``summary`` (the model) or ``text`` (a function)."
    records: tuple[LogRecord, ...]


def check_epoch_options(on_full: object, carry: object) -> None:
    """Raise `InvalidConfig` if ``on_full`` or ``carry`` has an unknown value.

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
    """Return the usage record of the latest request in an epoch; None if no request was completed."""
    return next((record for record in reversed(records) if isinstance(record, UsageRecord)), None)


def fits(server: Server, limits: Limits, request: Request, last: UsageRecord | None) -> bool:
    """Return True if a request fits the server's context and leaves the reserve of ``limits`` free.

    Two bounds decide most cases without counting. The request has at least the tokens of the previous prompt, because it begins
    with that prompt. It has at most one further token for each added byte. If the bounds do not decide, the server counts the
    tokens. If the context size is unknown, the result is True, and the server refuses a request that is too long.
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
    """Check that the first request of an epoch fits the server's context. Nothing is sent or written.

    Raises
    ------
    EpochTooLarge
        If the request does not fit. The error contains the tokens of the baseline, the tokens of the records, and the available
        tokens.
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
    """Return the records that the next epoch starts with.

    Parameters
    ----------
    carry : {"turn", "summary"}, callable or None
        ``"turn"``: the messages of the last turn, unchanged. ``"summary"``: one user message with a summary that the model
        writes. A function: one user message with the text that the function returns, or no message if the text is blank. None: no
        message.
    session : Session
        A session whose current epoch has ended.
    server : Server
        Server that writes the summary. The request for it must fit into this server's context.
    tags : Tags
        Control tags to neutralise in a summary or in a function's text.
    complete : callable
        Function that sends the request for a summary and returns the completion.

    Returns
    -------
    Carried
        The records, and whether they are a turn, a summary or a text.

    Raises
    ------
    InvalidConfig
        If a function does not return text.
    ServerError
        If the request for a summary fails, or the summary is empty.
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
    """Return a user record with this text. Control tags in it are neutralised, and lone surrogates are replaced."""
    whole, replaced = replace_surrogates(text)
    content, count = neutralise_report(whole, tags)
    return User(time=Timestamp.now(), content=content, neutralised=count or UNSET, replaced=replaced or UNSET)


def _summary(session: Session, server: Server, tags: Tags, complete: Callable[[Request], Completion]) -> str:
    """Ask the model for a summary of the ended epoch, in a separate request that is not logged, and return it.

    If the request does not fit the context, the beginning of the conversation is left out, a quarter at a time.
    """
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
        # The model's text in the log still contains its control tags, so the whole text is neutralised, after it was cut.
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
    """Return the record that ends an epoch.

    Its prompt tokens and context size are those of ``error`` if known, or else those of the last usage record and the server.
    """
    prompt = None if last is None else last.usage.prompt_tokens
    return EpochEnd(
        time=Timestamp.now(),
        reason=reason,
        prompt_tokens=prompt if error is None or error.prompt_tokens is None else error.prompt_tokens,
        context_size=server.context_size if error is None or error.context_size is None else error.context_size,
    )
