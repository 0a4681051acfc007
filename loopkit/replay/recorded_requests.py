"""The requests of a replay: recorded bodies, checked by SHA-256 and adapted to the server where needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from msgspec import Raw

from loopkit import engines
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

__all__ = ["PlacedRequest", "Requests", "Survey", "as_repeatable", "recorded", "survey"]

Requests: TypeAlias = Session | Logs | Iterable[Request | Prompt]
LLAMA_ONLY: Final = ("id_slot", "cache_prompt", "return_progress")
"Body members that only llama-server knows. They are removed for other servers, which may refuse them."


class PlacedRequest(NamedTuple):
    """A recorded request, with its session, epoch and slot."""

    session: str | None
    epoch: int
    slot: int | None
    "Slot of a llama-server that the body names (``id_slot``), or None."
    request: Request


class Survey(NamedTuple):
    """Sessions and slots of the requests, collected before the first request is sent."""

    sessions: list[str | None]
    "Session id of each request; None if it is unknown."
    slots: list[int]
    "Slots that the requests name, sorted; empty if at least one request names no slot."

    @property
    def session(self) -> str | None:
        """The session id if all requests belong to the same session, otherwise None."""
        return self.sessions[0] if len(set(self.sessions)) == 1 else None


def as_repeatable(requests: Requests) -> Session | list[Request | Prompt]:
    """Return the session itself, or the requests as a list, so that they can be read more than once.

    Raises
    ------
    InvalidConfig
        If `requests` is neither a session, nor logs, nor an iterable of requests.
    """
    if isinstance(requests, Session):
        return requests
    if isinstance(requests, Logs):
        return list(requests.requests())
    if isinstance(requests, (str, bytes, Path)) or not isinstance(requests, Iterable):
        fix = "Give a session, such as loop.session, or lk.load(…)"
        raise InvalidConfig("requests", f"expected requests; got {kind_of(requests)}", fix)
    return list(requests)


def recorded(requests: Session | list[Request | Prompt], server: Server) -> Iterator[PlacedRequest]:
    """Yield every request in order, with its body adapted if the server could not accept it.

    Raises
    ------
    LogError
        If there is no request, or a request rebuilt from a session's log differs from the one that was sent.
    InvalidConfig
        If a request has no body.
    """
    one = None
    for one in _of_session(requests) if isinstance(requests, Session) else _of_prompts(requests):
        yield one._replace(request=_adapted(one.request, server))
    if one is None:
        if isinstance(requests, Session):
            raise LogError(str(requests.dir), "the session has no request to replay", "Call loop.ask first")
        why = "there is no request to replay: the input is empty, or its log has counts without bodies"
        raise LogError("requests", why, "Give a session, a recording, or a log with request bodies")


def survey(requests: Session | list[Request | Prompt], server: Server, variants: Sequence[Variant]) -> Survey:
    """Check all requests and variants before the first request is sent, and return their sessions and slots.

    Raises
    ------
    LogError, InvalidConfig
        As for `recorded`, or if a variant changes none of the requests.
    """
    idle = {variant.name for variant in variants}
    sessions: list[str | None] = []
    slots: set[int | None] = set()
    for number, one in enumerate(recorded(requests, server), 1):
        sessions.append(one.session)
        slots.add(one.slot)
        body = one.request.body if variants else b""
        # every variant is applied to every request, so that a failure shows now and not after hours
        idle -= {variant.name for variant in variants if applied(variant, body, number, Timestamp.now()) != body}
    if idle:
        raise InvalidConfig("variant", f"{min(idle)} changes none of the {len(sessions)} requests", "Leave this variant out")
    pinned = sorted(slot for slot in slots if slot is not None)
    return Survey(sessions, [] if None in slots else pinned)


def _of_session(session: Session) -> Iterator[PlacedRequest]:
    for epoch in session.epochs:
        for _, record, request in replayed(epoch.start, epoch.baseline, epoch.records):
            if request.sha256 != record.request_sha256:
                number = f"request {record.request} of epoch {epoch.start.epoch}"
                why = f"{number}, rebuilt from the log, differs from the one that was sent"
                raise LogError(str(session.dir), why, "Run `loopkit verify` to find the first difference")
            yield PlacedRequest(session.id, epoch.start.epoch, epoch.start.slot, request)


def _of_prompts(prompts: list[Request | Prompt]) -> Iterator[PlacedRequest]:
    for number, prompt in enumerate(prompts, 1):
        if not isinstance(prompt, Request | Prompt):
            raise InvalidConfig("requests", f"item {number} is {kind_of(prompt)}", "Give Request or Prompt objects")
        if prompt.body is None:
            raise InvalidConfig("requests", f"request {number} has no body", "Only requests with their bytes can be replayed")
        request = prompt if isinstance(prompt, Request) else Request.of(prompt.body)
        yield PlacedRequest(prompt.session, 0, _pinned(prompt.body), request)


def _pinned(body: bytes) -> int | None:
    try:
        slot = decode(decode(body, dict[str, Raw]).get("id_slot", b"null"))
    except ValueError:
        return None
    return slot if isinstance(slot, int) and slot >= 0 else None


def _adapted(request: Request, server: Server) -> Request:
    """Return the request as recorded, or changed where the server could not accept it or would report no usage.

    On engines other than llama.cpp, llama.cpp's members are removed and the model name is the server's. A streamed request asks
    for usage.
    """
    body = request.body
    try:
        values = decode(body, dict[str, Raw])
    except ValueError:
        return request  # the server reports what is wrong with the body
    changes: dict[str, bytes | None] = {}
    if not engines.find(server.engine).any_model_name:  # llama-server answers to any model name
        changes |= dict.fromkeys(name for name in LLAMA_ONLY if name in values)
        if server.model is not None and values.get("model") != Raw(encode(server.model)):
            changes["model"] = encode(server.model)
    if bytes(values.get("stream", b"")) == b"true":
        options = decode(values.get("stream_options", b"null")) or {}
        if isinstance(options, dict) and options.get("include_usage") is not True:
            changes["stream_options"] = encode({**options, "include_usage": True})
    return Request.of(spliced(body, changes)) if changes else request
