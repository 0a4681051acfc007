"""What a replay sends: requests of the past, checked against their SHA-256, and what another server needs changed in them.

Knows nothing of answers or logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from msgspec import Raw

from loopkit.cache.prefixes.prompt_parts import Prompt
from loopkit.cache.prefixes.splice import spliced
from loopkit.contract.request import Request, replayed
from loopkit.encoding import decode, encode
from loopkit.errors import InvalidConfig, LogError, kind_of
from loopkit.ids import Timestamp
from loopkit.logs.collection import Logs
from loopkit.replay.variants import Variant, applied
from loopkit.server.client import Server
from loopkit.session.session import Session

__all__ = ["Recorded", "Requests", "Survey", "kept", "recorded", "survey"]

Requests: TypeAlias = Session | Iterable[Request | Prompt]
LLAMA_ONLY: Final = ("id_slot", "cache_prompt", "return_progress")
"Members that loopkit writes for a llama-server, and that others may refuse."


class Recorded(NamedTuple):
    """A request of the past."""

    session: str | None
    epoch: int
    slot: int | None
    "That its body pins it to."
    request: Request


class Survey(NamedTuple):
    """What is known of requests before the first is sent."""

    sessions: list[str | None]
    "That each is of, where that is known."
    slots: list[int]
    "That they are pinned to; empty where some are pinned to none."

    @property
    def session(self) -> str | None:
        """The session that all are of; None where there are several, or it is not known."""
        return self.sessions[0] if len(set(self.sessions)) == 1 else None


def kept(requests: Requests) -> Session | list[Request | Prompt]:
    """Requests that can be gone through more than once.

    Raises
    ------
    InvalidConfig
        When what was given holds requests, and is none itself.
    """
    if isinstance(requests, Session):
        return requests
    if isinstance(requests, Logs):
        raise InvalidConfig("requests", "Logs are more than requests", "Use logs.requests()")
    if isinstance(requests, (str, bytes, Path)) or not isinstance(requests, Iterable):
        then = "Give a session, such as loop.session, or lk.load(…).requests()"
        raise InvalidConfig("requests", f"{kind_of(requests)} holds none that could be sent", then)
    return list(requests)


def recorded(requests: Session | list[Request | Prompt], server: Server) -> Iterator[Recorded]:
    """Every request, in order, as the server needs it.

    Raises
    ------
    LogError
        When there is none, or one of a session, rebuilt from the log, is not the one that was sent.
    InvalidConfig
        When one holds no body.
    """
    one = None
    for one in _of_session(requests) if isinstance(requests, Session) else _of_prompts(requests):
        yield one._replace(request=_adapted(one.request, server))
    if one is None:
        if isinstance(requests, Session):
            raise LogError(str(requests.dir), "there is no request in it to replay", "Ask something first")
        why = "none is there to replay: what was given is empty, or of a log that holds counts and no bodies"
        raise LogError("requests", why, "Give a session, a recording, or a log whose lines hold the requests' bodies")


def survey(requests: Session | list[Request | Prompt], server: Server, variants: Sequence[Variant]) -> Survey:
    """Go through the requests once, before anything is sent.

    Raises
    ------
    LogError, InvalidConfig
        As `recorded` does, and where a variant changes nothing: what it costs was not measured then.
    """
    idle = {variant.name for variant in variants}
    sessions: list[str | None] = []
    slots: set[int | None] = set()
    for number, one in enumerate(recorded(requests, server), 1):
        sessions.append(one.session)
        slots.add(one.slot)
        body = one.request.body if variants else b""
        # each of each, for one that fails at the last request is better known now than hours later
        idle -= {variant.name for variant in variants if applied(variant, body, number, Timestamp.now()) != body}
    if idle:
        raise InvalidConfig("variant", f"{min(idle)} changes none of the {len(sessions)} requests", "Leave it out")
    pinned = sorted(slot for slot in slots if slot is not None)
    return Survey(sessions, [] if None in slots else pinned)


def _of_session(session: Session) -> Iterator[Recorded]:
    for epoch in session.epochs:
        for _, record, request in replayed(epoch.start, epoch.baseline, epoch.records):
            if request.sha256 != record.request_sha256:
                why = f"request {record.request} of epoch {epoch.start.epoch}, rebuilt from the log, is not the one that was sent"
                raise LogError(str(session.dir), why, "loopkit verify names the first that differs")
            yield Recorded(session.id, epoch.start.epoch, epoch.start.slot, request)


def _of_prompts(prompts: list[Request | Prompt]) -> Iterator[Recorded]:
    for number, prompt in enumerate(prompts, 1):
        if not isinstance(prompt, Request | Prompt):
            raise InvalidConfig("requests", f"number {number} is {kind_of(prompt)}", "Give Request or Prompt objects")
        if prompt.body is None:
            raise InvalidConfig("requests", f"request {number} holds no body", "Only what holds its bytes can be sent again")
        request = prompt if isinstance(prompt, Request) else Request.of(prompt.body)
        yield Recorded(prompt.session, 0, _pinned(prompt.body), request)


def _pinned(body: bytes) -> int | None:
    try:
        slot = decode(decode(body, dict[str, Raw]).get("id_slot", b"null"))
    except ValueError:
        return None
    return slot if isinstance(slot, int) and slot >= 0 else None


def _adapted(request: Request, server: Server) -> Request:
    """The very request where the server can take it; else one with another model's name, or asking for usage."""
    body = request.body
    try:
        values = decode(body, dict[str, Raw])
    except ValueError:
        return request  # the server says what it thinks of it
    changes: dict[str, bytes | None] = {}
    if server.engine != "llama.cpp":  # which answers to any name
        changes |= dict.fromkeys(name for name in LLAMA_ONLY if name in values)
        if server.model is not None and values.get("model") != Raw(encode(server.model)):
            changes["model"] = encode(server.model)
    if bytes(values.get("stream", b"")) == b"true":
        options = decode(values.get("stream_options", b"null")) or {}
        if isinstance(options, dict) and options.get("include_usage") is not True:
            changes["stream_options"] = encode({**options, "include_usage": True})
    return Request.of(spliced(body, changes)) if changes else request
