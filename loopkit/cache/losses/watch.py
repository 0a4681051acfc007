"""Evidence at a live server: counters around each request, and the tokens of both prompts at a loss.

Reading the counters takes two small requests before each completion and two after it. Tokens are requested only at a loss. A
failure here does not stop a turn: an endpoint that fails is not called again, and the loss is recorded without this evidence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from loopkit import engines
from loopkit.cache.losses.expected import Expectation
from loopkit.cache.losses.judge import judge, rendered_of
from loopkit.contract.records import CacheLoss, ReplayRecord, UsageRecord
from loopkit.contract.request import Request, replayed
from loopkit.engines.evidence.observation import Counters, Observation
from loopkit.engines.rules.own_server import GENERATION
from loopkit.errors import ServerError
from loopkit.ids import Timestamp
from loopkit.server import llama_api

if TYPE_CHECKING:
    from loopkit.engines.evidence.tokens import TokenView
    from loopkit.server.client import Server
    from loopkit.server.transport.connection import Wire
    from loopkit.session.session import Session

__all__ = ["Watch", "reusable_without_a_loss"]

T = TypeVar("T")

TIMEOUT = 2.0
"Seconds to wait for each response. A busy server answers between two batches."


def reusable_without_a_loss(expected: Expectation, cached: int | None) -> int | None:
    """Return the expected tokens of a request if they are exact and all were cached; otherwise None.

    Without a loss, this is the number of reusable tokens, so the server need not be asked for tokens.

    Parameters
    ----------
    expected : Expectation
        What was expected of the request.
    cached : int or None
        Cached tokens that the server reported.
    """
    whole = expected.expected_exact and expected.shortfall != GENERATION
    known = whole and cached is not None and expected.expected_tokens is not None
    return expected.expected_tokens if known and cached is not None and cached >= (expected.expected_tokens or 0) else None


def _whole(count: float | None) -> int | None:
    return None if count is None else int(count)


class Watch:
    """Reader of a server's counters around each request, which diagnoses losses with them.

    Parameters
    ----------
    server : Server
        The server to watch. Counters are read only if its engine has slots (llama.cpp).
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._unanswered: list[object] = [] if engines.find(server.engine).has_slots else [llama_api.slots, llama_api.metrics]
        self._earlier: Counters | None = None  # before the previous request
        self._before: Counters | None = None
        self._after: Counters | None = None
        self._prompts_alone: bool | None = None

    def sending(self) -> None:
        """Read and remember the server's counters. Call this just before a request is sent."""
        self._earlier, self._before = self._before, self._counted()

    def answered(self) -> Counters | None:
        """Read, remember and return the server's counters; None if unknown. Call this after the response is logged."""
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
            return question(self._server.wire, TIMEOUT)
        except (ServerError, ValueError, KeyError, TypeError):  # the endpoint is missing or differs: do without it
            self._unanswered.append(question)
            return None

    def observation(
        self, record: UsageRecord | ReplayRecord, body: bytes | None, session: str | None, epoch: int, slot: int | None
    ) -> Observation:
        """Return the observation of a request from its record and facts about the server. This sends no request."""
        return Observation(
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
        """Return False if a recorded loss of the session shows that the engine does not keep completions; otherwise True."""
        if engines.find(self._server.engine).keeps_completions:
            return True
        if self._prompts_alone is None:  # read the log once only: reading it every turn gets slower as it grows
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
        """Diagnose a loss in a session and return its record.

        Parameters
        ----------
        session : Session
            The session. The last request in its log is the one before `request`.
        request : Request
            The request that lost its cache.
        now, last : UsageRecord
            Usage records of this request and of the previous one.
        expected : Expectation
            The expected and lost tokens of the request.
        restored : int or None
            Tokens restored into the slot from a file before the request; None if nothing was restored.
        """
        before = deque(replayed(session.start, session.baseline, session.records), maxlen=1)
        bodies = before[0].request.body if before else None, request.body
        where = session.id, session.epoch, session.start.slot
        previous, sent = (self.observation(record, body, *where) for record, body in zip((last, now), bodies, strict=True))
        loss = self.diagnosed(previous, replace(sent, restored=restored), expected)
        self._prompts_alone = self._prompts_alone or loss.cause == GENERATION
        return loss

    def diagnosed(
        self, previous: Observation, now: Observation, expected: Expectation, between: Sequence[Observation] = ()
    ) -> CacheLoss:
        """Diagnose a loss and return its record.

        The diagnosis uses the counters that `sending` and `answered` read. The tokens of both prompts are requested from the
        server.
        """
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

    def reusable(self, previous: Observation, now: Observation) -> int | None:
        """Return how many tokens of `now` could be reused after `previous`; None if the server does not return tokens.

        The tokens of both prompts are requested from the server.
        """
        rendered = rendered_of(*self._with_tokens(previous, now))
        return None if rendered is None else rendered.reusable

    def _with_tokens(self, previous: Observation, now: Observation) -> tuple[Observation, Observation]:
        previous = replace(previous, tokens=self._tokens(previous.body))
        return previous, now if previous.tokens is None else replace(now, tokens=self._tokens(now.body))

    def _tokens(self, body: bytes | None) -> TokenView | None:
        try:
            return None if body is None else self._server.tokens(body)
        except ServerError:
            return None
