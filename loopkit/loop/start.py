"""How a loop begins: a new session with today's baseline, or one that is taken up where its log ends.

What an epoch has pinned (model, sampling, template options, neutralising set, slot, tools) comes from its first record ever
after; what has changed since is said, never taken over silently. Knows nothing of turns.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import UNSET

from loopkit.cache.prefixes.volatile import find_volatile
from loopkit.config import Config
from loopkit.contract.baseline import Baseline
from loopkit.contract.neutralise import Tags
from loopkit.contract.records import TagsFacts
from loopkit.contract.request import RequestEncoder, head
from loopkit.errors import InvalidConfig, kind_of
from loopkit.ids import SessionId
from loopkit.loop.drift import differences, found_tools
from loopkit.loop.epochs import Carry, OnFull, check_ways
from loopkit.loop.limits import Limits, most_tokens
from loopkit.loop.loop import Loop
from loopkit.loop.park import unpark
from loopkit.loop.port import Allow, PythonPort, ToolPort
from loopkit.loop.schemas import AnyTool
from loopkit.loop.tools import Recalls, Registry
from loopkit.loop.turn import State
from loopkit.server.client import Server
from loopkit.session.session import Session

__all__ = ["resume", "resume_like", "start"]


def start(
    server: Server,
    *,
    system: str | Path,
    tools: Iterable[AnyTool] | Registry = (),
    home: str | Path = "runs",
    id: SessionId | str | None = None,
    memory: str | Recalls | None = None,
    options: Mapping[str, Any] | None = None,
    slot: int | None = None,
    limits: Limits | None = None,
    allow: Allow | None = None,
    port: ToolPort | None = None,
    on_full: OnFull = "stop",
    carry: Carry = "turn",
) -> Loop:
    """Begin a session: take a snapshot of the baseline and open its log.

    Parameters
    ----------
    server : Server
        From :func:`loopkit.serve` or :func:`loopkit.connect`.
    system : str or Path
        The system prompt: text, or a UTF-8 file. Never neutralised, for it is the owner's.
    tools : iterable of callable or JsonTool, or Registry
        Functions with a docstring and type hints, or JSON schemas with a callable. With at least one, ``find_tool``,
        ``call_tool`` and ``clock`` join.
    home : str or Path
        The directory that holds sessions.
    id : SessionId or str, optional
        The session's name; a new one that sorts by time where not given.
    memory : str or Memory, optional
        The memory block; None reads ``<home>/memory/core.md`` if that is a file, ``""`` means none. With a memory
        (`loopkit.memory.open`) the block is its own, and the tool ``recall`` joins.
    options : mapping, optional
        Members of every request body, such as ``temperature``, ``seed``, ``max_tokens``; fixed for the epoch.
    slot : int, optional
        The slot to pin the session to; where not given, one that the embedded server hands out, and none on other servers.
    limits : Limits, optional
        What bounds a turn.
    allow : callable, optional
        Asked before every tool call, with name and arguments: True allows, False or a reason denies.
    port : ToolPort, optional
        Runs the calls instead of this process.
    on_full : str
        When the context is full: ``"stop"`` ends the epoch and the turn, ``"roll"`` opens the next epoch at once.
    carry : str, callable or None
        What the next epoch begins with: the last ``"turn"``, a ``"summary"`` by the model, None, or a function of the ended
        epoch's records that gives text.

    Returns
    -------
    Loop
        Ready for :meth:`Loop.ask`.

    Raises
    ------
    InvalidConfig
        When a tool, an option or a limit cannot be used.
    BaselineError
        When the system prompt or the memory block cannot be read.
    SessionExists
        When the home holds a session of that name.

    Warns
    -----
    UserWarning
        When the system prompt or the memory block holds a time, a date, an id or a counter: it will be stale, and in any other
        tool it would cost the cache.

    Examples
    --------
    >>> from loopkit.server.client import serve
    >>> import tempfile
    >>> with serve("tiny") as server, start(server, system="Be brief.", home=tempfile.mkdtemp(), memory="") as loop:
    ...     turn = loop.ask("Hello.")
    Done.
    >>> turn.stop, turn.usage.cached_tokens
    ('done', 0)
    """
    limits = limits or Limits()
    check_ways(on_full, carry)
    _need_server(server)
    text, file = (None, system) if isinstance(system, Path) else (system, None)
    pinned = {**server.default_options(), **(options or {})}
    if limits.completion_tokens is not None and most_tokens(pinned) is None:
        pinned["max_tokens"] = limits.completion_tokens
    _check_limit(limits, pinned)
    config = Config(home=Path(home), system=text, system_file=file, options=pinned)
    tags = Tags.default() | server.tags()
    registry = tools if isinstance(tools, Registry) else Registry(tools)
    registry.use_tags(tags)
    _use_memory(registry, memory)
    baseline = Baseline.assemble(config, registry, _block(memory), tags)
    for found in find_volatile(baseline.system):
        _say(f"the system prompt holds {found.kind} {found.text!a}: it will be stale; let the model ask for it with a tool")
    head(baseline, config.options, slot)  # refuses a member that loopkit writes itself, before there is a session
    pin = _pin(server, slot)
    try:
        session = Session.create(
            config.home,
            SessionId.new() if id is None else SessionId(id),
            baseline,
            slot=pin,
            options=config.options,
            server=server.facts(),
            tags=TagsFacts(id=tags.id, literals=tags.literals or UNSET, cuts=tags.cuts or UNSET),
        )
    except BaseException:
        server.release_slot(pin)
        raise
    next_baseline = lambda: Baseline.assemble(config, registry, _block(memory), tags)  # noqa: E731
    return _loop(session, server, pin, registry, limits, allow, port, on_full, carry, tags, next_baseline)


def resume(
    id: SessionId | str,
    server: Server,
    *,
    tools: Iterable[AnyTool] | Registry = (),
    home: str | Path = "runs",
    system: str | Path | None = None,
    memory: str | Recalls | None = None,
    options: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    allow: Allow | None = None,
    port: ToolPort | None = None,
    on_full: OnFull = "stop",
    carry: Carry = "turn",
) -> Loop:
    """Go on with a session where its log ends, in any process.

    Parameters
    ----------
    id : SessionId or str
        The session's name.
    server : Server
        The same server, or another that has the session's model.
    tools : iterable of callable or JsonTool, or Registry
        The functions behind the epoch's tools. One that is missing is an error; what is described anew, new or gone is said.
    home : str or Path
        The directory that holds sessions.
    system : str or Path, optional
        The system prompt of the next epoch; the running one keeps its snapshot. None keeps its text for the next one as well,
        with the memory block in it.
    memory : str or Memory, optional
        The memory block of the next epoch, for which ``system`` is needed too; see :func:`start`. A memory whose ``recall`` the
        epoch has is given again, as its other tools are.
    options : mapping, optional
        Members of the request body: only those that the epoch has pinned, with the same values.
    limits, allow, port, on_full, carry
        See :func:`start`.

    Raises
    ------
    SessionNotFound, SessionLocked, TornLog, BaselineMismatch
        See :meth:`Session.open`.
    ContractBroken
        When the last request, rebuilt from the log, is not the one that was sent.
    InvalidConfig
        When a core tool is missing, or the model or an option differs from what the epoch has pinned; names both values.

    Warns
    -----
    UserWarning
        When tools have changed, when the slot is held by another session, and when the server has lost the session's cache: with
        the number of tokens that the first request will read.

    Examples
    --------
    >>> from loopkit.server.client import serve
    >>> import tempfile
    >>> home = tempfile.mkdtemp()
    >>> with serve("tiny") as server:
    ...     with start(server, system="Be brief.", home=home, id="s", memory="") as loop:
    ...         before = loop.ask("Hello.").usage
    ...     with resume("s", server, home=home) as loop:
    ...         now = loop.ask("Hello again.").usage
    Done.
    Done.
    >>> now.cached_tokens == before.prompt_tokens + before.completion_tokens - 1
    True
    """
    limits = limits or Limits()
    check_ways(on_full, carry)
    _need_server(server)
    if isinstance(memory, str) and system is None:
        why = "without system= the next epoch keeps the text of this one, its memory block with it"
        raise InvalidConfig("memory", why, "Give today's system prompt as well")
    session = Session.open(home, SessionId(id))
    held = None
    try:
        facts = session.start.tags
        tags = Tags.pinned(facts.id, facts.literals or (), facts.cuts or ())
        began = session.start.server.model
        if None not in (began, server.model) and began != server.model:
            why = f"the epoch was begun on {began!r}, and the server has {server.model!r}"
            raise InvalidConfig("server", why, "Serve that model, or start a new session")
        for name, value in (options or {}).items():
            if name in session.options and session.options[name] != value:
                why = f"the epoch was begun with {session.options[name]!r}, and {value!r} is given now"
                raise InvalidConfig(f"options.{name}", why, "It is fixed for the epoch: leave it out, or start a new session")
            if name not in session.options:
                raise InvalidConfig(f"options.{name}", "the epoch was begun without it", "Leave it out, or start a new session")
        _check_limit(limits, session.options)
        registry = tools if isinstance(tools, Registry) else Registry(tools)
        registry.use_tags(tags)
        _use_memory(registry, memory)
        drift = differences(session.baseline.tools, registry, found_tools(session.records))
        drift.require()
        for line in drift.lines():
            _say(line)
        next_baseline = _next_baseline(session, registry, system, memory, tags)
        slot = session.start.slot
        held = None if slot is None else server.take_slot(slot)
        loop = _loop(session, server, held, registry, limits, allow, port, on_full, carry, tags, next_baseline)
        if slot is not None and server.embedded and held is None:
            why = "is held by another open session, each of which takes the other's cache, or this server has no such slot"
            _say(f"slot {slot}, to which the session is pinned, {why}")
        loop._state.restored, said = unpark(session, server)
        if said:
            _say(said)
    except BaseException:
        server.release_slot(held)
        session.close()
        raise
    return loop


def resume_like(loop: Loop, id: SessionId | str) -> Loop:
    """Close a loop and go on with another session of its home, or with the same one again.

    Parameters
    ----------
    loop : Loop
        Its server, tools, port (and with it ``allow``), limits, ``on_full``, ``carry`` and ``on_event`` are the new one's too.
    id : SessionId or str
        The session's name.

    Returns
    -------
    Loop
        For what is raised and warned of see :func:`resume`; ``loop`` is closed then, too.
    """
    loop.close()  # first: both may be pinned to the same slot
    state = loop._state
    made = resume(
        id,
        loop.server,
        tools=loop.tools,
        home=loop.session.home,
        limits=state.limits,
        port=loop.port,
        on_full=state.on_full,
        carry=loop.carry,
    )
    made.on_event = loop.on_event
    return made


def _need_server(server: Server) -> None:
    """Refuse what cannot be asked, before there is a session, or one is opened."""
    if not isinstance(server, Server):
        raise InvalidConfig("server", f"{kind_of(server)} is not a Server", "Use lk.serve(…) or lk.connect(url)")
    server.wire.need_open()


def _next_baseline(
    session: Session, registry: Registry, system: str | Path | None, memory: str | Recalls | None, tags: Tags
) -> Callable[[], Baseline]:
    if system is None:
        return lambda: Baseline(session.baseline.system, registry.core_schemas())
    text, file = (None, system) if isinstance(system, Path) else (system, None)
    config = Config(home=session.home, system=text, system_file=file)
    return lambda: Baseline.assemble(config, registry, _block(memory), tags)


def _use_memory(registry: Registry, memory: str | Recalls | None) -> None:
    """Have a memory's tool join."""
    if memory is None or isinstance(memory, str):
        return
    if not hasattr(memory, "block"):
        then = "Give the block as a str, or lk.memory.open(…)"
        raise InvalidConfig("memory", f"{kind_of(memory)} is no memory", then)
    registry.use_memory(memory)


def _block(memory: str | Recalls | None) -> str | None:
    """The memory block as it is today."""
    return memory if memory is None or isinstance(memory, str) else memory.block()


def _loop(
    session: Session,
    server: Server,
    held: int | None,
    registry: Registry,
    limits: Limits,
    allow: Allow | None,
    port: ToolPort | None,
    on_full: OnFull,
    carry: Carry,
    tags: Tags,
    next_baseline: Callable[[], Baseline],
) -> Loop:
    state = State(
        session=session,
        server=server,
        encoder=RequestEncoder.resume(session.start, session.baseline, session.records),
        port=port or PythonPort(registry, allow=allow, seconds=limits.tool_seconds),
        limits=limits,
        tags=tags,
        next_baseline=next_baseline,
        on_full=on_full,
        carry=carry,
        slot=held,
    )
    return Loop(state, registry)


def _check_limit(limits: Limits, options: Mapping[str, Any]) -> None:
    most, asked = limits.completion_tokens, most_tokens(options)
    if most is not None and most != asked:
        why = f"it is {most}, and the epoch's options ask for {'no limit' if asked is None else asked}"
        raise InvalidConfig("limits.completion_tokens", why, "It is fixed for the epoch: leave one of them out")


def _pin(server: Server, slot: int | None) -> int | None:
    """Choose the slot of a new session."""
    taken = server.take_slot(slot)
    if slot is not None and server.embedded and taken is None:
        raise InvalidConfig("slot", f"{slot} is held by an open session, or the server has no such slot", "Leave it out")
    if slot is None and server.embedded and taken is None:
        said = "every slot is held by an open session: this one is not pinned, and others may take its cache (serve has slots=)"
        _say(said, above=4)
    return slot if slot is not None else taken


def _say(what: str, *, above: int = 3) -> None:
    warnings.warn(what, UserWarning, stacklevel=above)
