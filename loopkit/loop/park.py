"""Resuming warm: a session's KV state, saved when it is parked and restored when it is resumed.

The state stands in ``<home>/slots/<session>.bin`` (0600) beside a side-car that names baseline, model and template by hash. It is
put back only when all three are the same; what differs, and what a cold start costs, is said. Only a llama-server with a slot
directory can do this, for a session that is pinned to a slot. On a remote server the file stays there, and only the side-car is
ours.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from loopkit.encoding import decode, encode, sha256
from loopkit.errors import InvalidConfig, ServerError, SessionIOError, describe
from loopkit.loop.epochs import last_usage_record

if TYPE_CHECKING:
    from loopkit.server.client import Server
    from loopkit.session.session import Session

__all__ = ["Parked", "park", "unpark"]


class Parked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The side-car of a saved slot."""

    session: str
    epoch: int
    baseline_sha256: str
    model: str | None
    build: str | None
    template_sha256: str | None
    tokens: int
    "How many the slot held."


def _paths(session: Session) -> tuple[Path, Path]:
    folder = session.home / "slots"
    return folder / f"{session.id}.bin", folder / f"{session.id}.json"


def _template(server: Server) -> str | None:
    try:
        template = server.props().get("chat_template")
    except ServerError:
        return None
    return sha256(template.encode()) if isinstance(template, str) else None


def park(session: Session, server: Server) -> Parked:
    """Save the session's slot, so that :func:`loopkit.resume` finds its cache warm; see ``Loop.park``.

    Raises
    ------
    InvalidConfig
        When the session is not pinned to a slot.
    ServerError
        When the server cannot save slots.
    SessionIOError
        When the files cannot be written.
    """
    slot = session.start.slot
    if slot is None:
        raise InvalidConfig(
            "park", "the session is not pinned to a slot", "Only on a pinned session is it known what a slot holds"
        )
    state, sidecar = _paths(session)
    tokens = server.save_slot(slot, state.name)
    parked = Parked(
        session=str(session.id),
        epoch=session.epoch,
        baseline_sha256=session.start.baseline_sha256,
        model=server.model,
        build=server.build,
        template_sha256=_template(server),
        tokens=tokens,
    )
    try:
        state.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if server.slot_dir is not None:
            shutil.move(server.slot_dir / state.name, state)
            state.chmod(0o600)
        fresh = sidecar.with_suffix(".new")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(encode(parked))
        fresh.replace(sidecar)
    except OSError as error:
        raise SessionIOError(str(state), "park the session", describe(error)) from error
    return parked


def unpark(session: Session, server: Server) -> Iterator[str]:
    """Put a parked slot back where it fits; yields what a person should know.

    Yields
    ------
    str
        Why nothing was restored, and how many tokens the first request will read.
    """
    last = last_usage_record(session.records)
    slot = session.start.slot
    if last is None or last.usage.prompt_tokens is None:
        return
    whole = last.usage.prompt_tokens + (last.usage.completion_tokens or 1) - 1
    held = _held(server, slot)
    if held is None or held >= whole or slot is None:
        return
    state, sidecar = _paths(session)
    if not sidecar.is_file():
        yield f"the server holds nothing of this session: the first request will read its whole prompt, {whole:,} tokens and more"
        return
    try:
        parked = decode(sidecar.read_bytes(), Parked)
    except (OSError, ValueError) as error:
        yield f"{sidecar}: it cannot be used: {describe(error)}; the first request will read {whole:,} tokens and more"
        return
    now = {"baseline_sha256": session.start.baseline_sha256, "model": server.model, "template_sha256": _template(server)}
    differs = [name.removesuffix("_sha256") for name, value in now.items() if getattr(parked, name) != value]
    if differs:
        yield (
            f"the saved slot was not restored, for its {' and '.join(differs)} differ{'s' if len(differs) == 1 else ''}: "
            f"the first request will read {whole:,} tokens and more"
        )
        return
    try:
        if server.slot_dir is not None:
            shutil.copyfile(state, server.slot_dir / state.name)
        restored = server.restore_slot(slot, state.name)
    except (ServerError, OSError) as error:
        yield f"the saved slot could not be restored: {describe(error)}; the first request will read {whole:,} tokens and more"
        return
    if restored < parked.tokens:
        yield f"the server restored {restored:,} of the {parked.tokens:,} tokens that were saved"


def _held(server: Server, slot: int | None) -> int | None:
    """Tokens that the session's slot holds, where the server says so."""
    if slot is None or server.engine != "llama.cpp":
        return None
    try:
        return next((state.tokens for state in server.slots() if state.id == slot), None)
    except ServerError:
        return None
