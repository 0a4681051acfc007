"""One turn: requests and tool calls until the model stops, or a limit ends it.

Nothing is written for a request until its completion is final: a failed, refused, cut or interrupted request leaves the log as it
was, and sending again sends the same bytes. Every way out leaves the log at a record boundary with every open call answered.
Knows a session, a server, a port; nothing of how they were opened, or of what is shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import UNSET, structs

from loopkit.cache.losses.expected import expect
from loopkit.cache.losses.watch import reusable_without_a_loss
from loopkit.contract.messages import ToolCall
from loopkit.contract.neutralise import neutralise_report
from loopkit.contract.records import CacheLoss, EpochEnd, LogRecord, ToolResult, UsageRecord, User
from loopkit.contract.request import Request
from loopkit.encoding import mend_surrogates
from loopkit.errors import ContextExceeded, PendingCalls, ServerError, SessionError
from loopkit.ids import Timestamp
from loopkit.loop.epochs import carry_over, epoch_end, fits, last_usage_record, must_fit
from loopkit.loop.events import OnEvent, RequestSent, Stopped, ToolCalled, Turn
from loopkit.loop.limits import INTERRUPTED, LIMIT_REACHED, REPEATED, Repeats, is_json, max_tokens
from loopkit.loop.state import State
from loopkit.loop.tools.execution import Denied, Outcome
from loopkit.loop.tools.results import cap
from loopkit.server.completion.assembly import Delta, ReasoningDelta, TextDelta

if TYPE_CHECKING:
    from loopkit.server.completion.assembly import Completion
    from loopkit.session.session import Session

__all__ = ["TurnRun"]


class _StoppedByUser(Exception):  # no error: how a turn is left from inside a callback
    pass


class _ReasoningLimit(Exception):  # as above
    pass


class TurnRun:
    """A turn that is running.

    Parameters
    ----------
    state : State
        The loop's.
    tell : callable
        Told of every event.
    """

    def __init__(self, state: State, tell: OnEvent) -> None:
        self._state, self._tell = state, tell
        self._logged: list[LogRecord] = []
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._reasoned = 0

    def run(self, newest: User | None) -> Turn:
        """Run to the end; see ``Loop.ask`` and ``Loop.go_on``."""
        began = time.monotonic()
        self._state.update_encoder()
        if pending := self._state.session.pending:
            raise PendingCalls(self._state.session.id, tuple(call.function.name for call in pending))
        stop = self._to_the_end(lambda: self._run(newest))
        self._tell(Stopped(stop))
        logged = self._logged
        return Turn(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            stop=stop,
            requests=tuple(record for record in logged if isinstance(record, UsageRecord)),
            tool_calls=tuple(record for record in logged if isinstance(record, ToolResult)),
            losses=tuple(record for record in logged if isinstance(record, CacheLoss)),
            elapsed=time.monotonic() - began,
        )

    def settle(self, how: str) -> tuple[ToolResult, ...]:
        """Answer the calls that a kill left open; see ``Loop.settle``."""
        if how == "rerun":
            self._to_the_end(lambda: self._call_tools(Repeats(self._state.limits.repeats)))
        else:
            self._answer_open()
        return tuple(record for record in self._logged if isinstance(record, ToolResult))

    def _to_the_end(self, work: Callable[[], str]) -> str:
        """Work that may leave calls open; gives why the turn ends, and answers them when it is left in the middle."""
        try:
            return work()
        except _StoppedByUser:
            self._answer_open()
            return "interrupted"
        except BaseException as error:
            self._state.stopping.set()  # hangs up, wherever an interrupt came
            if not isinstance(error, SessionError):  # a log that cannot be written to takes no answers either
                try:
                    self._answer_open()
                except SessionError as second:  # the first is what happened
                    error.add_note(f"Its open calls could not be answered: {second}")
            raise

    def end_epoch(self) -> None:
        """Close the epoch because it was asked for."""
        session = self._state.session
        if pending := session.pending:
            raise PendingCalls(session.id, tuple(call.function.name for call in pending))
        if not session.ended:
            self._log([epoch_end("asked", last_usage_record(session.records), None, self._state.server)])

    def _run(self, newest: User | None) -> str:
        session, repeats = self._state.session, Repeats(self._state.limits.repeats)
        for _ in range(self._state.limits.max_requests):
            self._check_stop()
            if not self._make_room(newest):
                return "context_full"
            try:
                stop = self._request(newest)
            except ContextExceeded as error:
                if last_usage_record(session.records) is None:
                    raise  # a fresh epoch: nothing could be left out
                if not self._end_full(error, newest):
                    return "context_full"
                stop = self._request(newest)
            if stop:
                self._answer_open(Denied(LIMIT_REACHED))
                return stop
            newest = None
            if not session.pending:
                return "done"
            if stop := self._call_tools(repeats):
                return stop
        return "request_limit"

    # requests

    def _request(self, newest: User | None) -> str:
        """Send the next request and log it; gives why the turn ends with it, or ``""``."""
        state = self._state
        last = last_usage_record(state.session.records)
        request = state.encoder.request(state.session.records, newest)
        number = 1 if last is None else last.request + 1
        first_call = int(state.session.next_call())
        for _ in range(1 + state.limits.malformed_retries):
            self._text, self._reasoning, self._reasoned = [], [], 0
            self._tell(RequestSent(number, request.size, request.size - (0 if last is None else last.request_bytes)))
            state.watch.sending()
            try:
                completion = state.server.complete(request, self._on_delta, first_call=first_call, hang_up=state.stopping)
            except _ReasoningLimit:
                return "reasoning_limit"
            except ServerError:
                self._check_stop()  # it was cut from here
                raise
            self._text = [completion.text]
            self._reasoning = [completion.reasoning_content or ""]
            stop = self._not_final(completion)
            if stop != "malformed_call":
                break
        if stop:
            return stop
        self._log_completion(newest, request, number, last, completion)
        return "server_truncated" if last is not None and _shrank(last, completion, state.session) else ""

    def _on_delta(self, delta: Delta) -> None:
        self._check_stop()
        if isinstance(delta, TextDelta):
            self._text.append(delta.text)
        elif isinstance(delta, ReasoningDelta):
            self._reasoning.append(delta.text)
            self._reasoned += 1
            limit = self._state.limits.reasoning_tokens
            if limit is not None and self._reasoned > limit:
                raise _ReasoningLimit
        self._tell(delta)

    def _check_stop(self) -> None:
        if self._state.stopping.is_set():
            raise _StoppedByUser

    def _not_final(self, completion: Completion) -> str:
        """Why a completion can neither be logged nor replayed, or ``""``."""
        limits, usage = self._state.limits, completion.usage
        if limits.reasoning_tokens is not None and (usage.reasoning_tokens or 0) > limits.reasoning_tokens:
            return "reasoning_limit"
        calls = completion.assistant(Timestamp.now()).calls()
        most = max_tokens(self._state.session.options)
        at_limit = completion.finish_reason == "length" or (most is not None and usage.completion_tokens == most)
        silent = not (calls or completion.text or completion.reasoning_content)  # so does llama.cpp show a call without its name
        if completion.finish_reason == "length" and (calls or silent):
            return "cut_off"
        if all(is_json(call.function.arguments) for call in calls):
            return ""
        return "cut_off" if at_limit else "malformed_call"

    def _log_completion(
        self, newest: User | None, request: Request, number: int, last: UsageRecord | None, completion: Completion
    ) -> None:
        session, now = self._state.session, Timestamp.now()
        before = None if last is None else last.usage
        kept = self._state.watch.completions_kept(session)
        engine = session.start.server.engine
        expected = expect(before, completion.usage, engine, epoch=session.epoch, completions_kept=kept)
        reusable = reusable_without_a_loss(expected, completion.usage.cached_tokens)
        usage = UsageRecord(
            time=now,
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
        group: list[LogRecord] = [*([] if newest is None else [newest]), completion.assistant(now), usage]
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
                self._tell(record)

    # epochs

    def _make_room(self, newest: User | None) -> bool:
        """Open the next epoch where this one has ended or is full; False where the turn is to stop instead."""
        state, session = self._state, self._state.session
        if session.ended:
            return self._open_epoch(newest)
        last = last_usage_record(session.records)
        if fits(state.server, state.limits, state.encoder.request(session.records, newest), last):
            return True
        if last is None:
            must_fit(state.server, state.limits, session, session.baseline, [*session.records, *([newest] if newest else [])])
            return True
        return self._end_full(None, newest)

    def _end_full(self, error: ContextExceeded | None, newest: User | None) -> bool:
        state = self._state
        self._log([epoch_end("context_full", last_usage_record(state.session.records), error, state.server)])
        return state.on_full == "roll" and self._open_epoch(newest)

    def _open_epoch(self, newest: User | None) -> bool:
        """Open the next epoch; False where nothing would stand in it that the model could answer."""
        state, session = self._state, self._state.session
        new = [] if newest is None else [newest]
        baseline = state.next_baseline()
        must_fit(state.server, state.limits, session, baseline, new)  # before a summary is asked for
        carried = carry_over(state.carry, session, state.server, state.tags, self._summed_up)
        if not carried.records and newest is None:
            return False
        must_fit(state.server, state.limits, session, baseline, [*carried.records, *new])
        session.next_epoch(baseline, carried.records, kind=carried.kind, server=state.server.facts())
        state.restored = None
        state.update_encoder()
        return True

    def _summed_up(self, request: Request) -> Completion:
        """Ask for a summary, which can be stopped like any other answer."""
        try:
            return self._state.server.complete(request, lambda _: self._check_stop(), hang_up=self._state.stopping)
        except ServerError:
            self._check_stop()
            raise

    # tools

    def _call_tools(self, repeats: Repeats) -> str:
        """Run every open call, in order; gives why the turn ends with them, or ``""``."""
        ended = False
        for call in self._state.session.pending:
            self._check_stop()
            name, arguments = call.function.name, call.function.arguments
            number = int(self._state.session.next_call())
            self._tell(ToolCalled(number, name, arguments))
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

    def _answer_open(self, outcome: Outcome | None = None) -> None:
        """Answer every open call with a fixed sentence, in one write; None says that it was interrupted."""
        if pending := self._state.session.pending:
            first = int(self._state.session.next_call())
            self._log([self._result(number, call, outcome) for number, call in enumerate(pending, first)])

    def _result(self, number: int, call: ToolCall, outcome: Outcome | None) -> ToolResult:
        """A tool's answer as it is logged: made encodable, capped, then neutralised; never touched again."""
        whole, replaced = mend_surrogates(INTERRUPTED if outcome is None else outcome.content)
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


def _shrank(last: UsageRecord, completion: Completion, session: Session) -> bool:
    """Whether the prompt got shorter although the bytes were extended: the server dropped something without a word.

    A template that drops earlier reasoning does the same openly; where there was reasoning, nothing is said.
    """
    before, now = last.usage.prompt_tokens, completion.usage.prompt_tokens
    if before is None or now is None or now >= before:
        return False
    return not any(getattr(record, "reasoning_content", None) for record in session.records)
