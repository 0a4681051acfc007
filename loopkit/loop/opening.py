"""`start` and `resume`: open a session, new or from its log, and return a `Loop` for it.

Model, options, control tags, slot and tools are fixed when an epoch begins. `resume` refuses another model or option. It warns
about changed tools, which apply from the next epoch on.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from msgspec import UNSET

from loopkit.cache.prefixes.volatile import find_volatile
from loopkit.contract.baseline import Baseline
from loopkit.contract.neutralise import Tags
from loopkit.contract.records import TagsFacts
from loopkit.contract.request import head
from loopkit.deprecation import warn_renamed
from loopkit.errors import InvalidConfig
from loopkit.ids import SessionId
from loopkit.loop.epochs import Carry, OnFull
from loopkit.loop.limits import Limits, max_tokens
from loopkit.loop.loop import Loop
from loopkit.loop.parking import restore
from loopkit.loop.settings import Settings, check_system, with_shared_parameters
from loopkit.loop.tools.changes import called_found_tools, compare
from loopkit.loop.tools.execution import Allow, ToolPort
from loopkit.loop.tools.registry import Registry, SearchableMemory
from loopkit.loop.tools.schemas import AnyTool
from loopkit.server.client import Server
from loopkit.session.session import Session

__all__ = ["resume", "resume_like", "start"]

P = ParamSpec("P")
R = TypeVar("R")


def _accept_old_order(function: Callable[P, R]) -> Callable[P, R]:
    """Return a wrapper of `resume` that also accepts the argument order of version 0.1, ``(id, server)``, with a warning."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        id_first = bool(args) and isinstance(args[0], str)
        if id_first or "id" in kwargs:
            warn_renamed("resume(id, server)", "resume(server, session_id)")
            kwargs["session_id"] = args[0] if id_first else kwargs.pop("id")
            args = args[1:] if id_first else args
        return function(*args, **kwargs)

    return call


@with_shared_parameters
def start(
    server: Server,
    *,
    system: str | Path,
    tools: Iterable[AnyTool] | Registry = (),
    home: str | Path = "runs",
    id: SessionId | str | None = None,
    memory: str | SearchableMemory | None = None,
    options: Mapping[str, Any] | None = None,
    slot: int | None = None,
    limits: Limits | None = None,
    allow: Allow | None = None,
    port: ToolPort | None = None,
    on_full: OnFull = "stop",
    carry: Carry = "turn",
) -> Loop:
    """Start a session and return a loop for it.

    The baseline (system prompt, memory block and tool schemas, with which every request begins) and the log are written to
    ``home``. Environment variables and ``loopkit.toml`` are not read, so they cannot change a request.

    Parameters
    ----------
    server : Server
        A server from :func:`loopkit.serve` or :func:`loopkit.connect`.
    system : str or Path
        The system prompt: text, or the path of a UTF-8 file. Control tags in it are not neutralised.
    id : SessionId or str, optional
        Name of the session. The default is a new name that sorts by time.
    options : mapping, optional
        Members of every request body, such as ``temperature``, ``seed`` and ``max_tokens``. They stay the same for the whole
        epoch.
    slot : int, optional
        llama-server slot that all requests of the session use. By default, a session on the embedded server gets a free slot. On
        other servers, the server chooses a slot for each request.
    {shared}

    Returns
    -------
    Loop
        A loop that is ready for :meth:`Loop.ask`.

    Raises
    ------
    InvalidConfig
        If a tool, an option, a limit or another argument cannot be used.
    BaselineError
        If the system prompt or the memory block cannot be read.
    SessionExists
        If ``home`` already contains a session of this name.

    Warns
    -----
    UserWarning
        If the system prompt or the memory block contains a time, a date, an id or a counter: it becomes outdated, and changing it
        costs the cache. Also if no slot is free on the embedded server.

    Examples
    --------
    >>> from loopkit.server.opening import serve
    >>> import tempfile
    >>> with serve("tiny") as server, start(server, system="Be brief.", home=tempfile.mkdtemp(), memory="") as loop:
    ...     turn = loop.ask("Hello.")
    Done.
    >>> turn.stop, turn.usage.cached_tokens
    ('done', 0)
    """
    settings = Settings(server, tools, home, memory, limits or Limits(), allow, port, on_full, carry)
    check_system(system)
    pinned = {**server.default_options(), **(options or {})}
    if settings.limits.completion_tokens is not None and max_tokens(pinned) is None:
        pinned["max_tokens"] = settings.limits.completion_tokens
    settings.check_completion_limit(pinned)
    tags = Tags.default() | server.tags()
    registry = settings.registry(tags)
    baseline = settings.baseline(system, registry, tags)
    for found in find_volatile(baseline.system):
        why = "It becomes outdated, and changing it costs the cache. Let the model ask for it with a tool."
        _warn(f"The system prompt contains {found.text!a} ({found.kind}). {why}")
    head(baseline, pinned, slot)  # raises an error for reserved members, before the session is created
    pin = _choose_slot(server, slot)
    try:
        session = Session.create(
            Path(home),
            SessionId.new() if id is None else SessionId(id),
            baseline,
            slot=pin,
            options=pinned,
            server=server.facts(),
            tags=TagsFacts(id=tags.id, literals=tags.literals or UNSET, cuts=tags.cuts or UNSET),
        )
    except BaseException:
        server.release_slot(pin)
        raise
    return settings.loop(session, pin, registry, tags, lambda: settings.baseline(system, registry, tags))


@_accept_old_order
@with_shared_parameters
def resume(
    server: Server,
    session_id: SessionId | str,
    *,
    tools: Iterable[AnyTool] | Registry = (),
    home: str | Path = "runs",
    system: str | Path | None = None,
    memory: str | SearchableMemory | None = None,
    options: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    allow: Allow | None = None,
    port: ToolPort | None = None,
    on_full: OnFull = "stop",
    carry: Carry = "turn",
) -> Loop:
    """Continue a session at the end of its log, in the same process or another one.

    The current epoch keeps its baseline (system prompt, memory block and tool schemas) and its options. The log does not contain
    functions, so pass the functions of the baseline's tools again. Warnings report changed, new and removed tools.

    Parameters
    ----------
    server : Server
        The same server, or another one with the session's model.
    session_id : SessionId or str
        Name of the session.
    system : str or Path, optional
        System prompt of the next epoch. None keeps the text of the current epoch, including its memory block. If ``memory`` is a
        str, ``system`` is required.
    options : mapping, optional
        Members of the request body, to check that they are the ones of the current epoch. Others, and other values, are refused.
    {shared}

    Returns
    -------
    Loop
        A loop that continues the session.

    Raises
    ------
    SessionNotFound, SessionLocked, TornLog, BaselineMismatch
        See :meth:`Session.open`.
    ContractBroken
        If the last request, rebuilt from the log, differs from the request that was sent.
    InvalidConfig
        If a core tool is missing, or if the model or an option differs from the epoch's. The message contains both values.

    Warns
    -----
    UserWarning
        If tools have changed, or if another session uses the slot. Also if the server no longer caches the session: this warning
        says how many tokens the first request will process.

    Examples
    --------
    >>> from loopkit.server.opening import serve
    >>> import tempfile
    >>> home = tempfile.mkdtemp()
    >>> with serve("tiny") as server:
    ...     with start(server, system="Be brief.", home=home, id="s", memory="") as loop:
    ...         before = loop.ask("Hello.").usage
    ...     with resume(server, "s", home=home) as loop:
    ...         now = loop.ask("Hello again.").usage
    Done.
    Done.
    >>> now.cached_tokens == before.prompt_tokens + before.completion_tokens - 1
    True
    """
    settings = Settings(server, tools, home, memory, limits or Limits(), allow, port, on_full, carry)
    if system is not None:
        check_system(system)
    elif isinstance(memory, str):
        why = "without system= the next epoch keeps the text of this one, including its memory block"
        raise InvalidConfig("memory", why, "Pass system= as well")
    session = Session.open(home, SessionId(session_id))
    slot = None
    try:
        facts = session.start.tags
        tags = Tags.pinned(facts.id, facts.literals or (), facts.cuts or ())
        _check_pinned(session, server, options or {})
        settings.check_completion_limit(session.options)
        registry = settings.registry(tags)
        changes = compare(session.baseline.tools, registry, called_found_tools(session.records))
        changes.refuse_missing()
        for line in changes.lines():
            _warn(line)
        slot = None if session.start.slot is None else server.take_slot(session.start.slot)
        loop = settings.loop(
            session,
            slot,
            registry,
            tags,
            lambda: (
                Baseline(session.baseline.system, registry.core_schemas())
                if system is None
                else settings.baseline(system, registry, tags)
            ),
        )
        if session.start.slot is not None and server.embedded and slot is None:
            why = "Another open session uses it, or the server has no such slot. Sessions in one slot evict each other's cache."
            _warn(f"The session is pinned to slot {session.start.slot}, which is not free. {why}")
        loop._state.restored, message = restore(session, server)
        if message:
            _warn(message)
    except BaseException:
        server.release_slot(slot)
        session.close()
        raise
    return loop


def resume_like(loop: Loop, session_id: SessionId | str) -> Loop:
    """Close a loop, and resume a session in the same home directory with the same settings.

    Parameters
    ----------
    loop : Loop
        The loop to close. The new loop takes over this loop's server, tools, port, limits, ``on_full``, ``carry`` and
        ``on_event``.
    session_id : SessionId or str
        Name of the session to resume, which may be the session of ``loop``.

    Returns
    -------
    Loop
        A loop of the resumed session. See :func:`resume` for errors and warnings. ``loop`` is closed even after an error.
    """
    loop.close()  # first, because both may be pinned to the same slot
    state = loop._state
    resumed = resume(
        loop.server,
        session_id,
        tools=loop.tools,
        home=loop.session.home,
        limits=state.limits,
        port=loop.port,
        on_full=state.on_full,
        carry=loop.carry,
    )
    resumed.on_event = loop.on_event
    return resumed


def _check_pinned(session: Session, server: Server, options: Mapping[str, Any]) -> None:
    """Raise `InvalidConfig` if the server's model or an option differs from the one that the epoch started with."""
    model = session.start.server.model
    if None not in (model, server.model) and model != server.model:
        why = f"the epoch uses the model {model!r}, but the server has {server.model!r}"
        raise InvalidConfig("server", why, "Serve that model, or start a new session")
    for name, value in options.items():
        if name not in session.options:
            raise InvalidConfig(f"options.{name}", "the epoch started without it", "Leave it out, or start a new session")
        if session.options[name] != value:
            why = f"the epoch uses {session.options[name]!r}; got {value!r}"
            raise InvalidConfig(f"options.{name}", why, "It is fixed for the epoch: leave it out, or start a new session")


def _choose_slot(server: Server, slot: int | None) -> int | None:
    """Take a slot for a new session and return its number; None if the session is not pinned to a slot."""
    taken = server.take_slot(slot)
    if taken is None and server.embedded:
        if slot is not None:
            raise InvalidConfig("slot", f"an open session uses slot {slot}, or the server has no such slot", "Leave slot= out")
        _warn(
            "Open sessions use every slot, so this session is not pinned. Other sessions may evict its cache. "
            "Serve with more slots (slots=)."
        )
    return slot if slot is not None else taken


def _warn(message: str) -> None:
    """Issue a warning that points to the caller's line: the first stack frame outside this module."""
    level = next(level for level, frame in enumerate(inspect.stack(0), 1) if frame.filename != __file__)
    warnings.warn(message, UserWarning, stacklevel=level)
