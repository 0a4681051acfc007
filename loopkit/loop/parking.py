"""Parking: a session's KV state, saved to disk when it is parked and restored when it is resumed.

The KV state is the content of a server slot: the processed tokens of a conversation. It is saved as
``<home>/slots/<session>.bin`` (mode 0600). A second file, ``<session>.json``, contains the hashes of baseline, model and chat
template. The state is restored only if all three match. The session must be pinned to a slot of a llama-server that has a slot
directory. A remote server keeps the state on its own disk, and only ``<session>.json`` is written here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from loopkit import engines
from loopkit.contract.records import Usage
from loopkit.encoding import decode, encode, sha256
from loopkit.errors import InvalidConfig, ServerError, SessionIOError, describe
from loopkit.loop.epochs import last_usage_record
from loopkit.reprs import Card
from loopkit.server import llama_api

if TYPE_CHECKING:
    from loopkit.server.client import Server
    from loopkit.session.session import Session

__all__ = ["Parked", "Restored", "park", "restore", "unused_after_restore"]


class Parked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Description of a saved slot, written as JSON next to the state.

    The saved state is restored only if the hashes of baseline, model and chat template still match.
    """

    session: str
    epoch: int
    baseline_sha256: str
    model: str | None
    model_sha256: str
    "SHA-256 of the model's name and metadata (such as size and vocabulary) as the server reports them. The weights are not read."
    template_sha256: str | None
    build: str | None
    tokens: int
    "Number of tokens in the saved slot."
    state_sha256: str | None
    "SHA-256 of the state file; None if the file is on a remote server."

    def _card(self) -> Card:
        facts = [("epoch", str(self.epoch)), ("tokens", f"{self.tokens:,}"), ("model", str(self.model))]
        return Card(f"Parked {self.session}", facts)

    def __repr__(self) -> str:
        return self._card().text()

    def _repr_html_(self) -> str:
        return self._card().html()


class Restored(NamedTuple):
    """Result of :func:`restore`."""

    tokens: int | None
    "Number of tokens restored into the slot; None if nothing was restored."
    message: str
    "Why the cache is cold, and how many tokens the first request will process. Empty if the cache is warm."


def park(session: Session, server: Server) -> Parked:
    """Save the content of the session's slot to disk and describe it in a JSON file beside it; see ``Loop.park``.

    Raises
    ------
    InvalidConfig
        If the session is not pinned to a slot, if the slot does not contain this session's prompt, or if the server has no slots
        to save (only llama-servers have).
    ServerError
        If the server cannot save slots.
    SessionIOError
        If the files cannot be written.
    """
    slot, last = session.start.slot, last_usage_record(session.records)
    if slot is None:
        why = "the session is not pinned to a slot, so its slot is unknown"
        raise InvalidConfig("park", why, "Start the session with slot=, or on the embedded server")
    if not engines.find(server.engine).has_slots:
        raise InvalidConfig("park", f"{server.engine or 'this server'} has no slots to save", "Use a llama-server")
    tokens_now = _slot_tokens(server, slot)
    least = None if last is None else last.usage.prompt_tokens
    if least is None or (tokens_now is not None and tokens_now < least):
        what = "contains nothing of this epoch" if least is None else f"contains {tokens_now} tokens, not this session"
        raise InvalidConfig("park", f"slot {slot} {what}", "Ask something or call loop.warm(), then park")
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
            shutil.move(saved, fresh)  # a copy between file systems may stop half-way, so it gets a temporary name
            fresh.replace(state)
            parked = msgspec.structs.replace(parked, state_sha256=_digest(state))
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(encode(parked))
        fresh.replace(sidecar)
    except OSError as error:
        with contextlib.suppress(OSError):  # the first error is the one to report
            fresh.unlink(missing_ok=True)
        raise SessionIOError(str(state), "park the session", describe(error)) from error
    return parked


def restore(session: Session, server: Server) -> Restored:
    """Restore the saved slot of a session, if the server no longer caches the session and the saved hashes match.

    If the cache stays cold, the message of the result says why, and how many tokens the first request will process.
    """
    last, slot = last_usage_record(session.records), session.start.slot
    if last is None or last.usage.prompt_tokens is None or session.ended:
        return Restored(None, "")
    tokens_now = _slot_tokens(server, slot)
    if tokens_now is None or tokens_now >= last.usage.prompt_tokens:
        return Restored(None, "")
    whole = last.usage.prompt_tokens + max(0, (last.usage.completion_tokens or 0) - 1)
    cost = f"The first request will process the whole prompt: {whole:,} tokens and the new message"
    # A server that was not restarted may still have the slot's state in its host cache.
    cost += ", unless the server's host cache still contains it." if tokens_now else "."
    state, sidecar = _paths(session)
    if slot is None or not sidecar.exists():
        why = "Another conversation took this session's slot" if tokens_now else "The server no longer caches this session"
        return Restored(None, f"{why}, and no saved slot exists. {cost}")
    try:
        parked = decode(sidecar.read_bytes(), Parked)
    except (OSError, ValueError) as error:
        return Restored(None, f"The saved slot cannot be used: {sidecar}: {describe(error)}. {cost}")
    matches = {
        "baseline": parked.baseline_sha256 == session.start.baseline_sha256,
        "model": parked.model_sha256 == _model_sha256(server),
        "template": parked.template_sha256 == _template_sha256(server),
    }
    if differs := [name for name, same in matches.items() if not same]:
        verb = "differs" if len(differs) == 1 else "differ"
        return Restored(None, f"The saved slot was not restored because its {' and '.join(differs)} {verb}. {cost}")
    try:
        if server.slot_dir is not None and _digest(state) != parked.state_sha256:  # llama.cpp crashes on a truncated state
            return Restored(None, f"The saved slot was not restored because {state} has changed since it was saved. {cost}")
        tokens = _restore_state(server, slot, state)
    except (ServerError, OSError) as error:
        return Restored(None, f"The saved slot could not be restored: {describe(error)}. {cost}")
    if parked.epoch != session.epoch:
        what = "The first request can use the baseline at most, and will process the rest."
        return Restored(None, f"The saved slot belongs to epoch {parked.epoch}. {what}")
    if tokens < whole:
        what = f"The saved slot contained {tokens:,} of {whole:,} tokens. The first request will process the others."
        return Restored(tokens, what)
    return Restored(tokens, "")


def unused_after_restore(restored: int, usage: Usage) -> str:
    """Return a message if the first request after :func:`restore` did not use all restored tokens.

    The message is empty if the request used them all, or if the server did not report its cached tokens.

    Examples
    --------
    >>> unused_after_restore(603, Usage(prompt_tokens=640, cached_tokens=603))
    ''
    >>> unused_after_restore(603, Usage(prompt_tokens=640, cached_tokens=0)).partition(" Models")[0]
    'The first request used 0 of the 603 tokens restored into its slot.'
    """
    if usage.cached_tokens is None or usage.prompt_tokens is None:
        return ""
    if usage.cached_tokens >= min(restored, usage.prompt_tokens - 1):
        return ""
    why = "Models with a sliding window or a recurrent state cannot use all of a saved slot."
    return f"The first request used {usage.cached_tokens:,} of the {restored:,} tokens restored into its slot. {why}"


def _paths(session: Session) -> tuple[Path, Path]:
    folder = session.home / "slots"
    return folder / f"{session.id}.bin", folder / f"{session.id}.json"


def _digest(state: Path) -> str:
    with state.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _restore_state(server: Server, slot: int, state: Path) -> int:
    if server.slot_dir is None or (copy := server.slot_dir / state.name) == state:
        return server.restore_slot(slot, state.name)
    try:
        shutil.copyfile(state, copy)
        return server.restore_slot(slot, state.name)
    finally:
        copy.unlink(missing_ok=True)


def _slot_tokens(server: Server, slot: int | None) -> int | None:
    """Return the number of tokens in a slot; None if the server does not say.

    If ``slot`` is None, return 0 if all slots are empty. Otherwise return None, because the session may be in any of them.
    """
    if not engines.find(server.engine).has_slots:
        return None
    try:
        tokens = {state.id: state.tokens or 0 for state in server.slots()}
    except ServerError:
        return None
    if slot is not None:
        return tokens.get(slot, 0)
    return None if any(tokens.values()) else 0


def _model_sha256(server: Server) -> str:
    try:
        listed = llama_api.models(server.wire)
        meta = dict(listed[0].meta or {}) if len(listed) == 1 else {}
    except ServerError:
        meta = {}
    meta.pop("n_ctx", None)  # a setting of the server, not a property of the model
    return sha256(encode([server.model, meta]))


def _template_sha256(server: Server) -> str | None:
    try:
        template = server.props().get("chat_template")
    except ServerError:
        return None
    return sha256(template.encode()) if isinstance(template, str) else None
