"""One turn: requests and tool calls until the model stops or a limit ends the turn.

A request is logged only after its whole completion has arrived. A failed, refused, cut or interrupted request leaves the log
unchanged, so sending it again sends the same bytes. When a turn ends for any reason, every logged tool call gets a result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET, structs

from loopkit.cache.losses.expected import expect
from loopkit.cache.losses.watch import reusable_without_a_loss
from loopkit.contract.messages import ToolCall
from loopkit.contract.neutralise import neutralise_report
from loopkit.contract.records import Assistant, CacheLoss, EpochEnd, LogRecord, ToolResult, UsageRecord, User
from loopkit.contract.request import Request
from loopkit.encoding import replace_surrogates
from loopkit.errors import ContextExceeded, PendingCalls, ServerError, SessionError
from loopkit.ids import Timestamp
from loopkit.loop.epochs import carry_over, epoch_end, fits, last_usage_record, must_fit
from loopkit.loop.events import OnEvent, RequestSent, Stopped, ToolCalled, Turn
from loopkit.loop.limits import INTERRUPTED, LIMIT_REACHED, REPEATED, Repeats, is_json, max_tokens
from loopkit.loop.state import State
from loopkit.loop.tools.execution import Denied, Outcome
from loopkit.loop.tools.results import cap
from loopkit.server.completion.deltas import Delta, ReasoningDelta, TextDelta

if TYPE_CHECKING:
    from loopkit.server.completion.assembly import Completion
    from loopkit.session.session import Session

__all__ = ["TurnRun"]


class _Stop(Exception):
    """Raised inside a callback to leave the turn, because the user stopped it."""


class _ReasoningLimit(Exception):
    """Raised inside a callback to leave a completion with more reasoning tokens than the limit."""


class TurnRun:
    """One run of a turn. Create a new object for each turn.

    Parameters
    ----------
    state : State
        Session, server and settings of the loop.
    emit : callable
        Called with every event.
    """

    def __init__(self, state: State, emit: OnEvent) -> None:
        self._state, self._emit = state, emit
        self._logged: list[LogRecord] = []
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._reasoning_chunks = 0

    def run(self, newest: User | None) -> Turn:
        """Run the turn to its end; see ``Loop.ask`` and ``Loop.go_on``."""
        started = time.monotonic()
        self._state.update_encoder()
        if pending := self._state.session.pending:
            raise PendingCalls(self._state.session.id, tuple(call.function.name for call in pending))
        stop = self._run_and_settle(lambda: self._run(newest))
        self._emit(Stopped(stop))
        logged = self._logged
        return Turn(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            stop=stop,
            requests=tuple(record for record in logged if isinstance(record, UsageRecord)),
            tool_calls=tuple(record for record in logged if isinstance(record, ToolResult)),
            losses=tuple(record for record in logged if isinstance(record, CacheLoss)),
            elapsed=time.monotonic() - started,
        )

    def settle(self, how: str) -> tuple[ToolResult, ...]:
        """Run the pending tool calls again, or log that they were interrupted. Return the logged results; see ``Loop.settle``."""
        if how == "rerun":
            self._run_and_settle(lambda: self._call_tools(Repeats(self._state.limits.repeats)))
        else:
            self._answer_pending()
        return tuple(record for record in self._logged if isinstance(record, ToolResult))

    def _run_and_settle(self, work: Callable[[], str]) -> str:
        """Call ``work`` and return why the turn ends. If ``work`` raises an error, first log a result for each pending call."""
        try:
            return work()
        except _Stop:
            self._answer_pending()
            return "interrupted"
        except BaseException as error:
            self._state.stopping.set()  # closes the connection, wherever in the code the interrupt arrived
            if not isinstance(error, SessionError):  # a log that cannot be written cannot take results either
                try:
                    self._answer_pending()
                except SessionError as second:  # the first error is the one to report
                    error.add_note(f"The results of its pending tool calls could not be logged: {second}")
            raise

    def end_epoch(self) -> None:
        """Close the epoch at the user's request."""
        session = self._state.session
        if pending := session.pending:
            raise PendingCalls(session.id, tuple(call.function.name for call in pending))
        if not session.ended:
            self._log([epoch_end("asked", last_usage_record(session.records), None, self._state.server)])

    def _run(self, newest: User | None) -> str:
        session, repeats = self._state.session, Repeats(self._state.limits.repeats)
        for _ in range(self._state.limits.max_requests):
            self._check_stop()
            request = self._next_request(newest)
            if request is None:
                return "context_full"
            try:
                stop = self._send(request, newest)
            except ContextExceeded as error:
                if last_usage_record(session.records) is None:
                    raise  # the epoch is new: there is nothing to leave out
                if not self._end_full_epoch(error, newest):
                    return "context_full"
                stop = self._send(self._encode(newest), newest)
            if stop:
                self._answer_pending(Denied(LIMIT_REACHED))
                return stop
            newest = None
            if not session.pending:
                return "done"
            if stop := self._call_tools(repeats):
                return stop
        return "request_limit"

    # requests

    def _encode(self, newest: User | None) -> Request:
        return self._state.encoder.request(self._state.session.records, newest)

    def _send(self, request: Request, newest: User | None) -> str:
        """Send a request, and log it with its completion. Return why the turn must end now; ``""`` if it continues."""
        state = self._state
        last = last_usage_record(state.session.records)
        number = 1 if last is None else last.request + 1
        first_call = int(state.session.next_call())
        for _ in range(1 + state.limits.malformed_retries):
            self._text, self._reasoning, self._reasoning_chunks = [], [], 0
            self._emit(RequestSent(number, request.size, request.size - (0 if last is None else last.request_bytes)))
            state.watch.sending()
            try:
                completion = state.server.complete(request, self._on_delta, first_call=first_call, cancellation=state.stopping)
            except _ReasoningLimit:
                return "reasoning_limit"
            except ServerError:
                self._check_stop()  # `Loop.stop` cuts the connection
                raise
            self._text = [completion.text]
            self._reasoning = [completion.reasoning_content or ""]
            assistant = completion.assistant(Timestamp.now())
            stop = self._why_not_final(completion, assistant.calls())
            if stop != "malformed_call":
                break
        if stop:
            return stop
        self._log_completion(newest, request, number, last, completion, assistant)
        return "server_truncated" if last is not None and _has_shrunk(last, completion, state.session) else ""

    def _on_delta(self, delta: Delta) -> None:
        self._check_stop()
        if isinstance(delta, TextDelta):
            self._text.append(delta.text)
        elif isinstance(delta, ReasoningDelta):
            self._reasoning.append(delta.text)
            self._reasoning_chunks += 1
            limit = self._state.limits.reasoning_tokens
            if limit is not None and self._reasoning_chunks > limit:
                raise _ReasoningLimit
        self._emit(delta)

    def _check_stop(self) -> None:
        if self._state.stopping.is_set():
            raise _Stop

    def _why_not_final(self, completion: Completion, calls: Sequence[ToolCall]) -> str:
        """Return why a completion is not logged (a reason of ``Turn.stop``); ``""`` if it can be logged."""
        limits, usage = self._state.limits, completion.usage
        if limits.reasoning_tokens is not None and (usage.reasoning_tokens or 0) > limits.reasoning_tokens:
            return "reasoning_limit"
        most = max_tokens(self._state.session.options)
        at_limit = completion.finish_reason == "length" or (most is not None and usage.completion_tokens == most)
        # llama.cpp returns an empty message for a call that was cut off before its name
        empty = not (calls or completion.text or completion.reasoning_content)
        if completion.finish_reason == "length" and (calls or empty):
            return "cut_off"
        if all(is_json(call.function.arguments) for call in calls):
            return ""
        return "cut_off" if at_limit else "malformed_call"

    def _log_completion(
        self,
        newest: User | None,
        request: Request,
        number: int,
        last: UsageRecord | None,
        completion: Completion,
        assistant: Assistant,
    ) -> None:
        session = self._state.session
        before = None if last is None else last.usage
        kept = self._state.watch.completions_kept(session)
        engine = session.start.server.engine
        expected = expect(before, completion.usage, engine, epoch=session.epoch, completions_kept=kept)
        reusable = reusable_without_a_loss(expected, completion.usage.cached_tokens)
        usage = UsageRecord(
            time=assistant.time,
            request=number,
            request_sha256=request.sha256,
            request_bytes=request.size,
            usage=completion.usage,
            expected_tokens=expected.expected_tokens,
            expected_exact=expected.expected_exact,
            reusable_tokens=UNSET if reusable is None else reusable,
            shortfall=expected.shortfall or UNSET,
            reported=completion.reported,
            finish_reason=completion.finish_reason,
            response_id=completion.response_id,
            attempts=completion.attempts,
            elapsed_ms=completion.elapsed_ms,
        )
        group: list[LogRecord] = [*([] if newest is None else [newest]), assistant, usage]
        if expected.lost_tokens and last is not None:
            loss = self._state.watch.lost(session, request, usage, last, expected, self._state.restored)
            group[-1:] = [structs.replace(usage, reusable_tokens=loss.reusable_tokens), loss]
        self._log(group, request)
        self._state.watch.answered()
        self._state.check_restored(completion.usage)

    def _log(self, records: list[LogRecord], request: Request | None = None) -> None:
        self._state.session.extend(records)
        if request is not None:
            self._state.encoder.sent(request)
        self._logged += records
        for record in records:
            if isinstance(record, UsageRecord | CacheLoss | ToolResult | EpochEnd):
                self._emit(record)

    # epochs

    def _next_request(self, newest: User | None) -> Request | None:
        """Return the next request; None if the turn must stop. If the epoch has ended or is full, first open the next one."""
        state, session = self._state, self._state.session
        if session.ended:
            return self._encode(newest) if self._open_epoch(newest) else None
        last, request = last_usage_record(session.records), self._encode(newest)
        if fits(state.server, state.limits, request, last):
            return request
        if last is None:
            must_fit(state.server, state.limits, session, session.baseline, [*session.records, *([newest] if newest else [])])
            return request
        return self._encode(newest) if self._end_full_epoch(None, newest) else None

    def _end_full_epoch(self, error: ContextExceeded | None, newest: User | None) -> bool:
        """End the epoch because the context is full. Return True if the next epoch was opened, False if the turn must stop."""
        state = self._state
        self._log([epoch_end("context_full", last_usage_record(state.session.records), error, state.server)])
        return state.on_full == "roll" and self._open_epoch(newest)

    def _open_epoch(self, newest: User | None) -> bool:
        """Open the next epoch and return True. If there is no message for the model to answer, return False instead."""
        state, session = self._state, self._state.session
        new = [] if newest is None else [newest]
        baseline = state.next_baseline()
        must_fit(state.server, state.limits, session, baseline, new)  # before the model writes a summary
        carried = carry_over(state.carry, session, state.server, state.tags, self._complete_summary)
        if not carried.records and newest is None:
            return False
        must_fit(state.server, state.limits, session, baseline, [*carried.records, *new])
        session.next_epoch(baseline, carried.records, kind=carried.kind, server=state.server.facts())
        state.restored = None
        state.update_encoder()
        return True

    def _complete_summary(self, request: Request) -> Completion:
        """Send the request for a summary. The user can stop it like any other request."""
        try:
            return self._state.server.complete(request, lambda _: self._check_stop(), cancellation=self._state.stopping)
        except ServerError:
            self._check_stop()
            raise

    # tools

    def _call_tools(self, repeats: Repeats) -> str:
        """Run or deny every pending call, in order. Return ``"repeated_call"`` if repeated calls end the turn, else ``""``."""
        ended = False
        for call in self._state.session.pending:
            self._check_stop()
            name, arguments = call.function.name, call.function.arguments
            number = int(self._state.session.next_call())
            self._emit(ToolCalled(number, name, arguments))
            verdict = "end" if ended else repeats.before(name, arguments)
            if verdict == "run":
                outcome = self._state.port.call(name, arguments)
            else:
                outcome = Denied(LIMIT_REACHED if ended else REPEATED)
                ended = verdict == "end"
            result = self._result(number, call, outcome)
            if verdict == "run":
                repeats.after(name, arguments, result.content)
            self._log([result])
        return "repeated_call" if ended else ""

    def _answer_pending(self, outcome: Outcome | None = None) -> None:
        """Log the same result for every pending call, in one write. If ``outcome`` is None, log that the call was interrupted."""
        if pending := self._state.session.pending:
            first = int(self._state.session.next_call())
            self._log([self._result(number, call, outcome) for number, call in enumerate(pending, first)])

    def _result(self, number: int, call: ToolCall, outcome: Outcome | None) -> ToolResult:
        """Return the record of a tool's result. Its text has lone surrogates replaced, is capped, and then neutralised."""
        whole, replaced = replace_surrogates(INTERRUPTED if outcome is None else outcome.content)
        capped = cap(whole, self._state.limits.result_bytes)
        content, tags = neutralise_report(capped.text, self._state.tags)
        return ToolResult(
            time=Timestamp.now(),
            call=number,
            tool_call_id=call.id,
            name=call.function.name,
            content=content,
            truncated=capped.truncated,
            status="interrupted" if outcome is None else outcome.status,
            neutralised=tags or UNSET,
            replaced=replaced or UNSET,
        )


def _has_shrunk(last: UsageRecord, completion: Completion, session: Session) -> bool:
    """Return True if the server has dropped messages: the request grew, but its prompt has fewer tokens than the last one.

    Some chat templates drop earlier reasoning, which also shortens the prompt. So the result is False for sessions with
    reasoning.
    """
    before, now = last.usage.prompt_tokens, completion.usage.prompt_tokens
    if before is None or now is None or now >= before:
        return False
    return not any(getattr(record, "reasoning_content", None) for record in session.records)
