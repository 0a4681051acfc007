"""One turn: send the request, stream, check, and log what is final.

Nothing is written for a request until its completion is final: a failed, refused, cut or interrupted request leaves the log as it
was, and sending again sends the same bytes. Knows a session, a server and an encoder; nothing of how they were opened.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET

from loopkit.cache.causes import diagnose
from loopkit.cache.expect import expect
from loopkit.card import Card
from loopkit.ids import Timestamp
from loopkit.loop.events import OnEvent, RequestSent
from loopkit.records import CacheLoss, LogRecord, Usage, UsageRecord, User

if TYPE_CHECKING:
    from loopkit.request import RequestEncoder
    from loopkit.server.client import Server
    from loopkit.server.stream import Completion
    from loopkit.session.session import Session

__all__ = ["Turn", "add_up", "one_request"]


@dataclasses.dataclass(frozen=True)
class Turn:
    """What one question came to."""

    text: str
    "What the model said last."
    reasoning: str
    "What it thought before it said so; empty where the server showed nothing."
    stop: str
    "Why the turn ended: ``done``."
    requests: tuple[UsageRecord, ...]
    "One for each request of the turn."
    losses: tuple[CacheLoss, ...]
    "One for each request that read again what the cache should have had."
    elapsed: float
    "Seconds."

    @property
    def usage(self) -> Usage:
        """The turn's usage, summed over its requests; None where a server did not say."""
        return add_up(record.usage for record in self.requests)

    def _card(self) -> Card:
        usage = self.usage
        counts = [
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("read", usage.read_tokens),
            ("lost", sum(loss.lost_tokens for loss in self.losses)),
            ("written", usage.completion_tokens),
        ]
        facts = [(name, "not reported" if count is None else f"{count:,}") for name, count in counts]
        requests = "1 request" if len(self.requests) == 1 else f"{len(self.requests)} requests"
        return Card(f"Turn {self.stop}, {requests}", facts)

    def __repr__(self) -> str:
        return self._card().text()

    def _repr_html_(self) -> str:
        return self._card().html()


def add_up(usages: Iterable[Usage]) -> Usage:
    """Sum usage, member by member; a member that nobody reported stays None.

    Examples
    --------
    >>> total = add_up([Usage(prompt_tokens=10, cached_tokens=4), Usage(prompt_tokens=20)])
    >>> total.prompt_tokens, total.cached_tokens, total.reasoning_tokens
    (30, 4, None)
    """
    known: dict[str, float] = {}
    for usage in usages:
        for name in Usage.__struct_fields__:
            value = getattr(usage, name)
            if value is not None:
                known[name] = known.get(name, 0) + value
    return Usage(**known)  # type: ignore[arg-type]  # counts stay int and milliseconds float, member by member


def one_request(session: Session, server: Server, encoder: RequestEncoder, newest: User | None, on_event: OnEvent) -> Completion:
    """Send the next request of a session and log it.

    Parameters
    ----------
    session, server, encoder
        Where to log, whom to ask, what was sent so far.
    newest : User or None
        The message that the request is about; None to go on without one.
    on_event : callable
        Told of everything that happens.

    Returns
    -------
    Completion
        As the server gave it, already in the log.

    Raises
    ------
    ContractBroken
        Before anything is sent, when the body would not extend the last one.
    ServerError
        The log is as it was.
    """
    last = _last_usage_record(session.records)
    request = encoder.request(session.records, newest)
    number = 1 if last is None else last.request + 1
    on_event(RequestSent(number, request.size, request.size - (0 if last is None else last.request_bytes)))
    completion = server.complete(request, on_event, first_call=int(session.next_call()))
    now = Timestamp.now()
    assistant = completion.assistant(now)
    expected = expect(None if last is None else last.usage, completion.usage, session.start.server.engine, epoch=session.epoch)
    usage = UsageRecord(
        time=now,
        request=number,
        request_sha256=request.sha256,
        request_bytes=request.size,
        usage=completion.usage,
        expected_tokens=expected.expected_tokens,
        expected_exact=expected.expected_exact,
        shortfall=expected.shortfall or UNSET,
        reported=completion.reported,
        finish_reason=completion.finish_reason,
        response_id=completion.response_id,
        attempts=completion.attempts,
        elapsed_ms=completion.elapsed_ms,
    )
    group: list[LogRecord] = [assistant, usage] if newest is None else [newest, assistant, usage]
    if expected.lost_tokens and last is not None:
        group.append(
            CacheLoss(
                time=now,
                request=number,
                expected_tokens=expected.expected_tokens or 0,
                expected_exact=expected.expected_exact,
                reusable_tokens=None,
                cached_tokens=completion.usage.cached_tokens or 0,
                lost_tokens=expected.lost_tokens,
                **diagnose(last.usage, completion.usage)._asdict(),
            )
        )
    session.extend(group)
    encoder.sent(request)
    for record in group:
        if isinstance(record, UsageRecord | CacheLoss):
            on_event(record)
    return completion


def _last_usage_record(records: Sequence[LogRecord]) -> UsageRecord | None:
    return next((record for record in reversed(records) if isinstance(record, UsageRecord)), None)
