"""Arguments that `start` and `resume` share: their documentation, their checks, and the loop made from them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from loopkit.config import Config
from loopkit.contract.baseline import Baseline
from loopkit.contract.neutralise import Tags
from loopkit.contract.request import RequestEncoder
from loopkit.errors import InvalidConfig, kind_of
from loopkit.loop.epochs import Carry, OnFull, check_epoch_options
from loopkit.loop.limits import Limits, max_tokens
from loopkit.loop.loop import Loop
from loopkit.loop.state import State
from loopkit.loop.tools.execution import Allow, PythonPort, ToolPort
from loopkit.loop.tools.registry import Registry, SearchableMemory
from loopkit.loop.tools.schemas import AnyTool
from loopkit.server.client import Server
from loopkit.session.session import Session

__all__ = ["Settings", "check_system", "with_shared_parameters"]

P = ParamSpec("P")
R = TypeVar("R")

_SHARED = """tools : iterable of callable or JsonTool, or Registry
    Python functions with a docstring and type hints, or JSON schemas with a callable. With at least one tool, the tools
    ``find_tool``, ``call_tool`` and ``clock`` are added.
home : str or Path
    Directory that contains the sessions.
memory : str or Memory, optional
    Memory block of the baseline. None reads ``<home>/memory/core.md`` if that file exists; ``""`` means no block. A memory from
    `loopkit.memory.open` supplies its own block and adds the tool ``recall``.
limits : Limits, optional
    Limits of a turn. The default is ``Limits()``.
allow : callable, optional
    Called before each tool call with the tool's name and arguments. It returns True to allow the call, and False or a str with
    the reason to deny it.
port : ToolPort, optional
    Runs the tool calls. By default they run as Python functions in this process.
on_full : {"stop", "roll"}
    Action when the context is full: ``"stop"`` ends the epoch and the turn, ``"roll"`` opens the next epoch at once.
carry : {"turn", "summary"}, callable or None
    First messages of the next epoch: the last ``"turn"``, a ``"summary"`` by the model, or none. A function receives the
    records of the ended epoch and returns text."""


def with_shared_parameters(function: Callable[P, R]) -> Callable[P, R]:
    """Write the parameters that `start` and `resume` share into a docstring."""
    function.__doc__ = inspect.cleandoc(function.__doc__ or "").replace("{shared}", _SHARED)
    return function


@dataclass(frozen=True)
class Settings:
    """Arguments that `start` and `resume` share, and what both do with them."""

    server: Server
    tools: Iterable[AnyTool] | Registry
    home: str | Path
    memory: str | SearchableMemory | None
    limits: Limits
    allow: Allow | None
    port: ToolPort | None
    on_full: OnFull
    carry: Carry

    def __post_init__(self) -> None:
        """Refuse what cannot be used, before a session is created or opened."""
        check_epoch_options(self.on_full, self.carry)
        if not isinstance(self.server, Server):
            why = f"expected a Server; got {kind_of(self.server)}"  # type: ignore[unreachable]  # callers without a type checker
            raise InvalidConfig("server", why, "Use lk.serve(…) or lk.connect(url)")
        self.server.wire.need_open()
        if not (self.memory is None or isinstance(self.memory, str) or hasattr(self.memory, "block")):
            why = f"expected a str or a Memory; got {kind_of(self.memory)}"
            raise InvalidConfig("memory", why, "Pass the block as a str, or lk.memory.open(…)")

    def registry(self, tags: Tags) -> Registry:
        """Return the tools, with a memory's ``recall`` among them."""
        registry = self.tools if isinstance(self.tools, Registry) else Registry(self.tools)
        registry.use_tags(tags)
        if not (self.memory is None or isinstance(self.memory, str)):
            registry.use_memory(self.memory)
        return registry

    def baseline(self, system: str | Path, registry: Registry, tags: Tags) -> Baseline:
        """Assemble a baseline from the present system prompt, tools and memory."""
        text, file = (None, system) if isinstance(system, Path) else (system, None)
        # Not validated, because validation reads the environment and loopkit.toml, which must not change a request.
        config = Config.model_construct(home=Path(self.home), system=text, system_file=file)
        block = self.memory if self.memory is None or isinstance(self.memory, str) else self.memory.block()
        return Baseline.assemble(config, registry, block, tags)

    def check_completion_limit(self, options: Mapping[str, Any]) -> None:
        """Refuse a limit on completion tokens that differs from the pinned one."""
        limit, pinned = self.limits.completion_tokens, max_tokens(options)
        if limit is not None and limit != pinned:
            why = f"it is {limit}, but the options of the epoch set {'no limit' if pinned is None else pinned}"
            raise InvalidConfig("limits.completion_tokens", why, "The options are fixed for the epoch: leave one of the two out")

    def loop(
        self, session: Session, slot: int | None, registry: Registry, tags: Tags, next_baseline: Callable[[], Baseline]
    ) -> Loop:
        """Return the loop of an open session."""
        state = State(
            session=session,
            server=self.server,
            encoder=RequestEncoder.resume(session.start, session.baseline, session.records),
            port=self.port or PythonPort(registry, allow=self.allow, seconds=self.limits.tool_seconds),
            limits=self.limits,
            tags=tags,
            next_baseline=next_baseline,
            on_full=self.on_full,
            carry=self.carry,
            slot=slot,
        )
        return Loop(state, registry)


def check_system(system: object) -> None:
    """Refuse a system prompt that is neither text nor a path."""
    if not isinstance(system, str | Path):
        raise InvalidConfig("system", f"expected a str or a Path; got {kind_of(system)}", "Pass text, or the Path of a file")
