"""Resuming warm: a session's KV state, saved when it is parked and put back when it is resumed.

The state stands in ``<home>/slots/<session>.bin`` (0600) beside a side-car that names baseline, model and template by hash. It is
put back only when all three are the same; what differs, and what a cold start costs, is said. Only a llama-server with a slot
directory can do this, for a session that is pinned to a slot. On a remote server the file stays there, and only the side-car is
ours. What was put back is worth only what the first request finds of it: models with a sliding window or a recurrent state find
little or nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from loopkit.contract.records import Usage
from loopkit.encoding import decode, encode, sha256
from loopkit.errors import InvalidConfig, ServerError, SessionIOError, describe
from loopkit.loop.epochs import last_usage_record
from loopkit.reprs import Card

if TYPE_CHECKING:
    from loopkit.server.client import Server
    from loopkit.session.session import Session

__all__ = ["Parked", "Unparked", "not_found", "park", "unpark"]


class Parked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The side-car of a saved slot."""

    session: str
    epoch: int
    baseline_sha256: str
    model: str | None
    model_sha256: str
    "Of its name and of what the server says of its size, parameters and vocabulary; the weights are not read."
    template_sha256: str | None
    build: str | None
    tokens: int
    "How many the slot held."
    state_sha256: str | None
    "Of the saved state; None where it stayed on its server."

    def _card(self) -> Card:
        facts = [("epoch", str(self.epoch)), ("tokens", f"{self.tokens:,}"), ("model", str(self.model))]
        return Card(f"Parked {self.session}", facts)

    def __repr__(self) -> str:
        return self._card().text()

    def _repr_html_(self) -> str:
        return self._card().html()


class Unparked(NamedTuple):
    """What became of a saved slot."""

    restored: int | None
    "Tokens that were put back; None where none were."
    said: str
    "What a person should know: why nothing was put back, and what the first request will read. Empty where it is warm."


def park(session: Session, server: Server) -> Parked:
    """Save the session's slot, so that :func:`loopkit.resume` finds its cache warm; see ``Loop.park``.

    Raises
    ------
    InvalidConfig
        When the session is not pinned to a slot, the slot does not hold the session, or the server is no llama-server.
    ServerError
        When the server cannot save slots.
    SessionIOError
        When the files cannot be written.
    """
    slot, last = session.start.slot, last_usage_record(session.records)
    if slot is None:
        why = "the session is not pinned to a slot, so it is not known which of them holds it"
        raise InvalidConfig("park", why, "Start a session with slot=, or on the embedded server")
    if server.engine != "llama.cpp":
        raise InvalidConfig("park", f"{server.engine or 'this server'} has no slots to save: only a llama-server has")
    held = _held(server, slot)
    least = None if last is None else last.usage.prompt_tokens
    if least is None or (held is not None and held < least):
        what = "nothing of this epoch" if least is None else f"{held} tokens, not this session"
        raise InvalidConfig("park", f"slot {slot} holds {what}", "Ask something, or loop.warm(), then park")
    state, sidecar = _paths(session)
    tokens = server.save_slot(slot, state.name)
    parked = Parked(
        session=str(session.id),
        epoch=session.epoch,
        baseline_sha256=session.start.baseline_sha256,
        model=server.model,
        model_sha256=_model_sha256(server),
        template_sha256=_template_sha256(server),
        build=server.build,
        tokens=tokens,
        state_sha256=None,
    )
    fresh = state.with_suffix(".part")
    try:
        state.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if server.slot_dir is not None:
            saved = server.slot_dir / state.name
            saved.chmod(0o600)
            shutil.move(saved, fresh)  # over a border between file systems it is copied, and may stop half-way
            fresh.replace(state)
            parked = msgspec.structs.replace(parked, state_sha256=_digest(state))
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(encode(parked))
        fresh.replace(sidecar)
    except OSError as error:
        with contextlib.suppress(OSError):  # the first is what happened
            fresh.unlink(missing_ok=True)
        raise SessionIOError(str(state), "park the session", describe(error)) from error
    return parked


def unpark(session: Session, server: Server) -> Unparked:
    """Put a parked slot back where it fits, and where the server no longer holds the session."""
    last, slot = last_usage_record(session.records), session.start.slot
    if last is None or last.usage.prompt_tokens is None or session.ended:
        return Unparked(None, "")
    held = _held(server, slot)
    if held is None or held >= last.usage.prompt_tokens:
        return Unparked(None, "")
    whole = last.usage.prompt_tokens + max(0, (last.usage.completion_tokens or 0) - 1)
    why = "another conversation took this session's slot" if held else "the server no longer holds this session"
    cost = f"the first request will read the whole prompt, {whole:,} tokens and what is new"
    if held:  # it was not started anew, and what a slot loses it may keep elsewhere
        cost += ", unless the server's host cache still has it"
    state, sidecar = _paths(session)
    if slot is None or not sidecar.exists():
        return Unparked(None, f"{why}, and no saved slot is here: {cost}")
    try:
        parked = decode(sidecar.read_bytes(), Parked)
    except (OSError, ValueError) as error:
        return Unparked(None, f"{sidecar} cannot be used: {describe(error)}; {cost}")
    now = {
        "baseline": parked.baseline_sha256 == session.start.baseline_sha256,
        "model": parked.model_sha256 == _model_sha256(server),
        "template": parked.template_sha256 == _template_sha256(server),
    }
    if differs := [name for name, same in now.items() if not same]:
        verb = "differs" if len(differs) == 1 else "differ"
        return Unparked(None, f"the saved slot was not put back, for its {' and '.join(differs)} {verb}: {cost}")
    try:
        if server.slot_dir is not None and _digest(state) != parked.state_sha256:  # llama.cpp dies of a state that is cut
            return Unparked(None, f"{state} is not what was saved, and was not put back: {cost}")
        restored = _put_back(server, slot, state)
    except (ServerError, OSError) as error:
        return Unparked(None, f"the saved slot could not be put back: {describe(error)}; {cost}")
    if parked.epoch != session.epoch:
        what = "the first request will find no more than the baseline in it, and read the rest"
        return Unparked(None, f"the saved slot is of epoch {parked.epoch}: {what}")
    if restored < whole:
        return Unparked(restored, f"the saved slot held {restored:,} of {whole:,} tokens: the first request will read the others")
    return Unparked(restored, "")


def not_found(restored: int, usage: Usage) -> str:
    """What to say where the first request did not find in the cache what was put back; empty where it did, or nobody knows.

    Examples
    --------
    >>> not_found(603, Usage(prompt_tokens=640, cached_tokens=603))
    ''
    >>> not_found(603, Usage(prompt_tokens=640, cached_tokens=0))[:79]
    'of 603 tokens that were put back into the slot, the first request could use 0: '
    """
    if usage.cached_tokens is None or usage.prompt_tokens is None:
        return ""
    if usage.cached_tokens >= min(restored, usage.prompt_tokens - 1):
        return ""
    why = "a model with a sliding window or a recurrent state cannot use all of a saved slot"
    return f"of {restored:,} tokens that were put back into the slot, the first request could use {usage.cached_tokens:,}: {why}"


def _paths(session: Session) -> tuple[Path, Path]:
    folder = session.home / "slots"
    return folder / f"{session.id}.bin", folder / f"{session.id}.json"


def _digest(state: Path) -> str:
    with state.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _put_back(server: Server, slot: int, state: Path) -> int:
    if server.slot_dir is None or (copy := server.slot_dir / state.name) == state:
        return server.restore_slot(slot, state.name)
    try:
        shutil.copyfile(state, copy)
        return server.restore_slot(slot, state.name)
    finally:
        copy.unlink(missing_ok=True)


def _held(server: Server, slot: int | None) -> int | None:
    """Tokens that the session's slot holds; without a slot 0 where all are empty, and None where it is not known."""
    if server.engine != "llama.cpp":
        return None
    try:
        held = {state.id: state.tokens or 0 for state in server.slots()}
    except ServerError:
        return None
    if slot is not None:
        return held.get(slot, 0)
    return None if any(held.values()) else 0


def _model_sha256(server: Server) -> str:
    try:
        listed = decode(server.wire.ask(f"{server.wire.address.api}/models"))["data"]
        meta = dict(listed[0].get("meta") or {}) if len(listed) == 1 else {}
    except (ServerError, ValueError, LookupError, TypeError, AttributeError):
        meta = {}
    meta.pop("n_ctx", None)  # of the server's start, not of the model
    return sha256(encode([server.model, meta]))


def _template_sha256(server: Server) -> str | None:
    try:
        template = server.props().get("chat_template")
    except ServerError:
        return None
    return sha256(template.encode()) if isinstance(template, str) else None
