"""Replay: a session's requests sent again, unchanged or with one thing changed on purpose, and what the cache did.

A replay is not a session: it is a log of its own, ``<home>/replays/<id>.jsonl``, one line a request, written without the contract
check, for a variant breaks the contract on purpose. The server writes other words than it did; expected tokens are taken against
the previous prompt of the replay and what was written now.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import UNSET, Raw, structs

from loopkit.cache.expect import expect
from loopkit.cache.seen import Seen
from loopkit.cache.variants import VARIANTS, Variant
from loopkit.encoding import decode, encode
from loopkit.errors import InvalidConfig, LogError, ServerRefused
from loopkit.ids import SessionId, Timestamp
from loopkit.logs.load import Logs, load
from loopkit.loop.losses import Watch, reusable_without_a_loss
from loopkit.records import ReplayRecord, encode_record
from loopkit.request import Request, replayed
from loopkit.server.client import Server
from loopkit.server.stream import Completion
from loopkit.session.lines import LineFile
from loopkit.session.session import Session

__all__ = ["run"]

JUDGED = ("reusable_tokens", "cause", "certainty", "mendable_by", "where", "evidence")


def run(
    session: Session,
    server: Server,
    variant: Variant | str | None = None,
    *,
    home: str | Path | None = None,
    on_request: Callable[[ReplayRecord], object] | None = None,
) -> Logs:
    """Send every request of a session again, in order.

    Parameters
    ----------
    session : Session
        Its requests are rebuilt from the log; each body's SHA-256 is checked against the recorded one before it is sent.
    server : Server
        The session's slot on it is emptied first, where it allows that, so that the first request reads everything.
    variant : Variant or str, optional
        What to change; None sends the very bytes.
    home : str or Path, optional
        Where ``replays/`` lies; the session's own home where not given.
    on_request : callable, optional
        Told of each request as it is logged.

    Returns
    -------
    Logs
        Of this replay, with source ``replay``.

    Raises
    ------
    LogError
        When the session has no request, or one, rebuilt from the log, is not the one that was sent.
    ServerError
        What was replayed before it stands in the log; where it was the first request, there is none.
    SessionIOError
        When the log cannot be written; it ends with the record before.
    """
    if isinstance(variant, str):
        if variant not in VARIANTS:
            raise InvalidConfig("variant", f"no variant {variant!r}", f"There are {', '.join(sorted(VARIANTS))}")
        variant = VARIANTS[variant]
    path = Path(home or session.home) / "replays" / f"{SessionId.new()}.jsonl"
    if next(_checked(session), None) is None:
        raise LogError(str(session.dir), "there is no request in it to replay", "Ask something first")
    _empty(server, session.start.slot)
    watch = Watch(server)
    previous: Seen | None = None
    written: Completion | None = None
    with contextlib.closing(LineFile(path)) as log:
        for number, (epoch, request) in enumerate(_checked(session), 1):
            sent = request if variant is None else _changed(request, variant)
            if previous is not None and previous.epoch != epoch:
                previous = written = None
            if previous is not None and written is not None and not _gives_back(sent.body, written):
                # other words than the session's were written: what can be used again is the prompt
                previous = replace(previous, usage=structs.replace(previous.usage, completion_tokens=None))
            watch.sending()
            completion = server.complete(sent)
            expected = expect(None if previous is None else previous.usage, completion.usage, server.engine, epoch=epoch)
            lost = expected.lost_tokens if completion.usage.cached_tokens is not None else None
            reusable = reusable_without_a_loss(expected, completion.usage.cached_tokens)
            record = ReplayRecord(
                time=Timestamp.now(),
                session=session.id,
                variant=variant.name if variant else None,
                request=number,
                request_sha256=sent.sha256,
                request_bytes=sent.size,
                usage=completion.usage,
                expected_tokens=expected.expected_tokens,
                expected_exact=expected.expected_exact,
                reusable_tokens=reusable,
                shortfall=expected.shortfall or UNSET,
                lost_tokens=lost,
                finish_reason=completion.finish_reason,
                elapsed_ms=completion.elapsed_ms,
                model=server.model,
                engine=server.engine,
            )
            now = watch.seen(record, sent.body, session.id, epoch, request.slot)
            if lost and previous is not None:
                found = watch.judged(previous, now, expected)
                record = structs.replace(record, **{name: getattr(found, name) for name in JUDGED})
            watch.answered()
            previous, written = now, completion
            log.write(encode_record(record))
            if on_request is not None:
                on_request(record)
    return load(path)


def _gives_back(body: bytes, written: Completion) -> bool:
    """Whether a body has, as its last answer, what was written just now."""
    messages = decode(decode(body, dict[str, Raw])["messages"], list[dict[str, Any]])
    said: dict[str, Any] = next((message for message in reversed(messages) if message.get("role") == "assistant"), {})
    calls = [call.get("function", {}).get("arguments") for call in said.get("tool_calls") or ()]
    ours = [call.function.arguments for call in written.assistant(Timestamp.now()).calls()]
    return (said.get("content") or "") == written.text and calls == ours


def _empty(server: Server, slot: int | None) -> None:
    """Empty the session's slot, or say that it could not be done."""
    if slot is None or server.engine != "llama.cpp":
        return
    try:
        server.erase_slot(slot)
    except ServerRefused as error:
        said = f"slot {slot} could not be emptied, so the first request may find some of its prompt cached: {error}"
        warnings.warn(said, UserWarning, stacklevel=3)


def _checked(session: Session) -> Iterator[tuple[int, Request]]:
    for epoch in session.epochs:
        for _, record, request in replayed(epoch.start, epoch.baseline, epoch.records):
            if request.sha256 != record.request_sha256:
                why = f"request {record.request} of epoch {epoch.start.epoch}, rebuilt from the log, is not the one that was sent"
                raise LogError(str(session.dir), why, "loopkit verify names the first that differs")
            request.slot = epoch.start.slot
            yield epoch.start.epoch, request


def _changed(request: Request, variant: Variant) -> Request:
    members = decode(request.body, dict[str, Raw])
    messages = decode(bytes(members.pop("messages")), list[Raw])
    changed: dict[str, Any] = {**members, "messages": variant.change(messages, Timestamp.now())}
    return Request.of(encode(changed, "request"))
