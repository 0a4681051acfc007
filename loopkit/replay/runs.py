"""Replay runs: recorded requests sent again in order, unchanged or with one deliberate change.

The log of a replay is ``<home>/replays/<id>.jsonl``, with one line per request. A session refuses requests that do not begin with
the previous request; a replay sends them, because variants change earlier text on purpose. The server may write other completions
than the recorded ones, so expected tokens are counted from the previous prompt of the replay and its new completion.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import UNSET, Raw, structs

from loopkit import engines
from loopkit.cache.losses.expected import expect
from loopkit.cache.losses.watch import Watch, reusable_without_a_loss
from loopkit.cache.prefixes.prompt_parts import Prompt
from loopkit.contract.records import ReplayRecord, encode_record
from loopkit.contract.request import Request
from loopkit.encoding import decode
from loopkit.engines.evidence.observation import Observation
from loopkit.engines.rules.own_server import GENERATION
from loopkit.errors import ServerRefused
from loopkit.ids import SessionId, Timestamp
from loopkit.logs.collection import Logs
from loopkit.logs.loading import load
from loopkit.replay.recorded_requests import PlacedRequest, Requests, as_repeatable, recorded, survey
from loopkit.replay.variants import Change, Variant, applied, variant_of
from loopkit.server.client import Server
from loopkit.server.completion.assembly import Completion
from loopkit.server.completion.deltas import Delta
from loopkit.server.transport.cancellation import Cancellation
from loopkit.session.line_file import LineFile
from loopkit.session.session import Session

__all__ = ["empty_slots", "run", "send_all"]

JUDGED = ("reusable_tokens", "cause", "certainty", "fixable_by", "location", "evidence")


def run(
    requests: Requests,
    server: Server,
    variant: Variant | Change | str | None = None,
    *,
    home: str | Path | None = None,
    on_request: Callable[[ReplayRecord], object] | None = None,
) -> Logs:
    """Send recorded requests again, in order.

    Parameters
    ----------
    requests : Logs, Session, or iterable of Request or Prompt
        The requests of a session are rebuilt from its log, and the SHA-256 of each body is checked before the body is sent. Other
        requests must have a body. Requests with the same ``session`` form one conversation.
    server : Server
        If possible, the slots that the requests name are erased first, so that the first request finds an empty cache. On engines
        other than llama.cpp, bodies get the server's model name and lose the members that only llama.cpp knows. If a stream would
        report no usage, ``stream_options`` asks for it.
    variant : Variant, function or str, optional
        The change to make in each request: a name such as ``"tools_shuffled"`` or ``"window(4)"``, or a function that takes and
        returns a `loopkit.replay.EditableRequest`. None sends the recorded bytes.
    home : str or Path, optional
        Directory in which ``replays/`` is created. By default, the loopkit directory of the session, or ``runs``.
    on_request : callable, optional
        Called after each request with its `ReplayRecord`.

    Returns
    -------
    Logs
        The log of this replay, with one row per request. Cached tokens are what the server reported; expected and reusable
        tokens are loopkit's predictions.

    Raises
    ------
    LogError
        If there is no request, or a request rebuilt from a log differs from the one that was sent.
    InvalidConfig
        If the variant is unknown or changes none of the requests, or if a request has no body.
    ServerError
        If a request fails. The log keeps the earlier requests; if the first request fails, there is no log.
    SessionIOError
        If the log cannot be written. The log then ends with the previous record.

    Notes
    -----
    Each body keeps its own limits, such as ``max_tokens``. The next request contains the recorded completion, not the new one, so
    the length of new completions changes neither the processed tokens nor the time to first token.

    Examples
    --------
    >>> import tempfile, loopkit as lk
    >>> server, home = lk.serve("tiny"), tempfile.mkdtemp()
    >>> bodies = [b'{"messages":[{"role":"user","content":"Hi."}]}']
    >>> run([lk.cache.Prompt(body=body) for body in bodies * 2], server, home=home).usage["cached_tokens"].tolist()
    [0, 22]
    >>> run([lk.cache.Prompt(body=body) for body in bodies], server, "tools_shuffled", home=home)
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidConfig: variant: tools_shuffled changes none of the 1 requests. Leave this variant out
    >>> server.close()
    """
    requests = as_repeatable(requests)
    chosen = None if variant is None else variant_of(variant)
    found = survey(requests, server, [] if chosen is None else [chosen])
    why_not = empty_slots(server, found.slots)
    if why_not is not None and found.slots:
        message = f"The first request may find part of its prompt in the cache: {why_not}."
        warnings.warn(message, UserWarning, stacklevel=2)
    return send_all(requests, server, chosen, found.session, home=home, on_request=on_request)


def send_all(
    requests: Session | list[Request | Prompt],
    server: Server,
    variant: Variant | None,
    session: str | None,
    *,
    home: str | Path | None,
    on_request: Callable[[ReplayRecord], object] | None,
    on_delta: Callable[[Delta], object] | None = None,
    cancellation: Cancellation | None = None,
) -> Logs:
    """Send the requests in order and return the log of the replay. The caller has emptied the slots.

    Setting ``cancellation`` from another thread cancels the current request and ends the replay with an error.
    """
    home = Path(home or (requests.home if isinstance(requests, Session) else "runs"))
    path = home / "replays" / f"{SessionId.new()}.jsonl"
    replay = _Replay(server, variant, session, on_delta, cancellation)
    with contextlib.closing(LineFile(path)) as log:
        for number, one in enumerate(recorded(requests, server), 1):
            record = replay.send(one, number)
            log.write(encode_record(record))
            if on_request is not None:
                on_request(record)
    return load(path)


def empty_slots(server: Server, slots: list[int]) -> str | None:
    """Erase the cached prompts of slots. Return None, or the reason why they could not be erased."""
    if not engines.find(server.engine).has_slots or not slots:
        return "the server has no slot that can be erased"
    try:
        for slot in slots:
            server.erase_slot(slot)
    except ServerRefused as error:
        return f"slot {slot} could not be erased: {error}"
    return None


class _Past(NamedTuple):
    """The previous request of the same conversation: what the server reported, and the new completion."""

    observation: Observation
    written: Completion
    place: int
    "Number of requests that the replay had sent by then, including this one."


class _Replay:
    """Sends the requests of a replay, and finds cache losses by comparing each with the previous one of its conversation."""

    def __init__(
        self,
        server: Server,
        variant: Variant | None,
        session: str | None,
        on_delta: Callable[[Delta], object] | None,
        cancellation: Cancellation | None,
    ) -> None:
        self._on_delta = on_delta
        self._server, self._variant, self._session, self._cancellation = server, variant, session, cancellation
        self._watch = Watch(server)
        self._last: dict[tuple[str | None, int], _Past] = {}
        self._all: list[Observation] = []
        self._prompts_alone: set[str | None] = set()

    def send(self, one: PlacedRequest, number: int) -> ReplayRecord:
        body = one.request.body
        changed = body if self._variant is None else applied(self._variant, body, number, Timestamp.now())
        request = one.request if changed == body else Request.of(changed)
        past = self._last.get((one.session, one.epoch))
        previous = None if past is None else past.observation
        if past is not None and not _repeats_completion(body, past.written):
            # the new completion differs from the recorded one: only the prompt can be reused
            previous = replace(past.observation, usage=structs.replace(past.observation.usage, completion_tokens=None))
        self._watch.sending()
        completion = self._server.complete(request, self._on_delta, cancellation=self._cancellation)
        expected = expect(
            None if previous is None else previous.usage,
            completion.usage,
            self._server.engine,
            epoch=one.epoch,
            completions_kept=one.session not in self._prompts_alone,
        )
        lost = expected.lost_tokens if completion.usage.cached_tokens is not None else None
        record = ReplayRecord(
            time=Timestamp.now(),
            session=self._session,
            variant=self._variant.name if self._variant else None,
            request=number,
            request_sha256=request.sha256,
            request_bytes=request.size,
            usage=completion.usage,
            expected_tokens=expected.expected_tokens,
            expected_exact=expected.expected_exact,
            reusable_tokens=reusable_without_a_loss(expected, completion.usage.cached_tokens),
            shortfall=expected.shortfall or UNSET,
            reported=completion.reported,
            lost_tokens=lost,
            finish_reason=completion.finish_reason,
            elapsed_ms=completion.elapsed_ms,
            model=self._server.model,
            engine=self._server.engine,
        )
        now = self._watch.observation(record, changed, one.session, one.epoch, one.slot)
        if lost and past is not None and previous is not None:
            found = self._watch.diagnosed(previous, now, expected, self._all[past.place :])
            record = structs.replace(record, **{name: getattr(found, name) for name in JUDGED})
            if found.cause == GENERATION:
                self._prompts_alone.add(one.session)
        elif previous is not None and record.reusable_tokens is None:
            record = structs.replace(record, reusable_tokens=self._watch.reusable(previous, now))
        now = replace(now, after=self._watch.answered())
        self._all.append(replace(now, body=None))
        self._last[one.session, one.epoch] = _Past(now, completion, len(self._all))
        return record


def _repeats_completion(body: bytes, written: Completion) -> bool:
    """Return True if the last assistant message in a recorded body equals the completion of the replay."""
    try:
        messages = decode(decode(body, dict[str, Raw]).get("messages", b"[]"), list[dict[str, Any]])
    except ValueError:  # the server accepted a body that is not valid JSON
        return False
    said: dict[str, Any] = next((message for message in reversed(messages) if message.get("role") == "assistant"), {})
    ours = written.assistant(Timestamp.now())
    calls = [call.get("function", {}).get("arguments") for call in said.get("tool_calls") or ()]
    texts = [(said.get(name) or "") == (getattr(ours, name) or "") for name in ("reasoning_content", "content")]
    return all(texts) and calls == [call.function.arguments for call in ours.calls()]
