"""What is recorded of each request so that a loss can be judged, at once or later: a server's counters, and tokens at a loss.

The counters are two small questions before a request and two after it; tokens are asked for only where some were lost. Nothing
here is needed for a turn: a server that does not answer is not asked again, and a loss without evidence is still written down.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from loopkit.cache.losses.expected import GENERATION, Expectation
from loopkit.cache.losses.judge import judge, rendered_of
from loopkit.cache.losses.observation import Counters, Seen
from loopkit.contract.records import CacheLoss, ReplayRecord, UsageRecord
from loopkit.contract.request import Request, replayed
from loopkit.errors import ServerError
from loopkit.ids import Timestamp
from loopkit.server import llama_api

if TYPE_CHECKING:
    from loopkit.server.client import Server
    from loopkit.server.prompt.token_view import TokenView
    from loopkit.server.transport.connection import Wire
    from loopkit.session.session import Session

__all__ = ["Watch", "reusable_without_a_loss"]

T = TypeVar("T")

PATIENCE = 2.0  # seconds that a question may take; a busy server answers between two batches


def reusable_without_a_loss(expected: Expectation, cached: int | None) -> int | None:
    """Tokens that could be used again, where all that were expected were found; None where that does not say it."""
    whole = expected.expected_exact and expected.shortfall != GENERATION
    told = whole and cached is not None and expected.expected_tokens is not None
    return expected.expected_tokens if told and cached is not None and cached >= (expected.expected_tokens or 0) else None


def _whole(count: float | None) -> int | None:
    return None if count is None else int(count)


class Watch:
    """Looks at a server around each request, and judges a loss.

    Parameters
    ----------
    server : Server
        Only a llama-server is asked anything.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._unanswered: list[object] = [] if server.engine == "llama.cpp" else [llama_api.slots, llama_api.metrics]
        self._earlier: Counters | None = None  # before the request before
        self._before: Counters | None = None
        self._after: Counters | None = None
        self._prompts_alone: bool | None = None

    def sending(self) -> None:
        """A request is about to be sent."""
        self._earlier, self._before = self._before, self._counted()

    def answered(self) -> Counters | None:
        """It was answered, and is in the log."""
        self._after = self._counted()
        return self._after

    def _counted(self) -> Counters | None:
        slots, metrics = self._asked(llama_api.slots), self._asked(llama_api.metrics)
        if slots is None and metrics is None:
            return None
        held = {slot.id: slot.tokens for slot in slots or ()}
        counts = metrics or {}
        return Counters(
            slots=None if slots is None else tuple(held.get(slot) for slot in range(max(held, default=-1) + 1)),
            read=_whole(counts.get("prompt_tokens_total")),
            cached=_whole(counts.get("prompt_tokens_cached_total")),
            written=_whole(counts.get("tokens_predicted_total")),
            build=self._server.build,
            host_cache_mib=self._server.host_cache_mib,
        )

    def _asked(self, question: Callable[[Wire, float], T]) -> T | None:
        if question in self._unanswered:
            return None
        try:
            return question(self._server.wire, PATIENCE)
        except (ServerError, ValueError, KeyError, TypeError):  # not there, or of another shape: evidence is not worth a turn
            self._unanswered.append(question)
            return None

    def seen(
        self, record: UsageRecord | ReplayRecord, body: bytes | None, session: str | None, epoch: int, slot: int | None
    ) -> Seen:
        """What is known of a request without asking anything."""
        return Seen(
            usage=record.usage,
            session=session,
            epoch=epoch,
            request=record.request,
            time=record.time,
            elapsed_ms=record.elapsed_ms,
            slot=slot,
            body=body,
            engine=self._server.engine,
            model=self._server.model,
            server=self._server.url,
            context_size=self._server.context_size,
        )

    def completions_kept(self, session: Session) -> bool:
        """Whether no loss of a session has shown that the engine keeps prompts alone; llama.cpp keeps what it wrote."""
        if self._server.engine == "llama.cpp":
            return True
        if self._prompts_alone is None:  # once: a turn's cost does not grow with its history
            records = (record for epoch in session.epochs for record in epoch.records)
            self._prompts_alone = any(isinstance(record, CacheLoss) and record.cause == GENERATION for record in records)
        return not self._prompts_alone

    def lost(
        self,
        session: Session,
        request: Request,
        now: UsageRecord,
        last: UsageRecord,
        expected: Expectation,
        restored: int | None,
    ) -> CacheLoss:
        """The record of a loss in a session.

        Parameters
        ----------
        session : Session
            Its last request is the one before.
        request : Request
            The one that lost.
        now, last : UsageRecord
            Of both.
        expected : Expectation
            What was lost.
        restored : int or None
            Tokens that were put back into the slot before it.
        """
        before = deque(replayed(session.start, session.baseline, session.records), maxlen=1)
        bodies = before[0].request.body if before else None, request.body
        where = session.id, session.epoch, session.start.slot
        previous, sent = (self.seen(record, body, *where) for record, body in zip((last, now), bodies, strict=True))
        loss = self.judged(previous, replace(sent, restored=restored), expected)
        self._prompts_alone = self._prompts_alone or loss.cause == GENERATION
        return loss

    def judged(self, previous: Seen, now: Seen, expected: Expectation, between: Sequence[Seen] = ()) -> CacheLoss:
        """The record of a loss, judged with the counters around the request and the tokens of both prompts."""
        previous = replace(previous, before=previous.before or self._earlier, after=previous.after or self._after)
        previous, now = self._with_tokens(previous, now)
        now = replace(now, before=self._before, after=self._counted())
        rendered = rendered_of(previous, now)
        return CacheLoss(
            time=now.time or Timestamp.now(),
            request=now.request or 1,
            expected_tokens=expected.expected_tokens or 0,
            expected_exact=expected.expected_exact,
            reusable_tokens=None if rendered is None else rendered.reusable,
            cached_tokens=now.usage.cached_tokens or 0,
            lost_tokens=expected.lost_tokens,
            **judge(previous, now, between, expectation=expected)._asdict(),
        )

    def reusable(self, previous: Seen, now: Seen) -> int | None:
        """Tokens that could be used again; None where the server does not show them."""
        rendered = rendered_of(*self._with_tokens(previous, now))
        return None if rendered is None else rendered.reusable

    def _with_tokens(self, previous: Seen, now: Seen) -> tuple[Seen, Seen]:
        previous = replace(previous, tokens=self._tokens(previous.body))
        return previous, now if previous.tokens is None else replace(now, tokens=self._tokens(now.body))

    def _tokens(self, body: bytes | None) -> TokenView | None:
        try:
            return None if body is None else self._server.tokens(body)
        except ServerError:
            return None
