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
    Directory of the sessions (in ``sessions``), the memory and saved slots.
memory : str or Memory, optional
    Memory block: text that is appended to the system prompt. None reads ``<home>/memory/core.md`` if that file exists; ``""``
    means no block. A memory from `loopkit.memory.open` supplies its own block and adds the tool ``recall``.
limits : Limits, optional
    Limits of a turn. The default is ``Limits()``.
allow : callable, optional
    Called before each tool call with the tool's name and arguments. It returns True to allow the call, and False or a str with
    the reason to deny it.
port : ToolPort, optional
    Runs the tool calls. By default they run as Python functions in this process.
on_full : {"stop", "roll"}
    Action when the context is full. ``"stop"`` ends the epoch and the turn. ``"roll"`` ends the epoch, opens the next one and
    continues the turn.
carry : {"turn", "summary"}, callable or None
    Messages that the next epoch starts with. ``"turn"``: those of the last turn. ``"summary"``: a summary that the model writes.
    None: no messages. A function gets the records of the ended epoch and returns the text of one message."""


def with_shared_parameters(function: Callable[P, R]) -> Callable[P, R]:
    """Replace ``{shared}`` in the function's docstring by the parameters that `start` and `resume` share."""
    function.__doc__ = inspect.cleandoc(function.__doc__ or "").replace("{shared}", _SHARED)
    return function


@dataclass(frozen=True)
class Settings:
    """Arguments that `start` and `resume` share. The methods make registry, baseline and loop from them."""

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
        """Raise `InvalidConfig` for arguments that cannot be used, before a session is created or opened."""
        check_epoch_options(self.on_full, self.carry)
        if not isinstance(self.server, Server):
            why = f"expected a Server; got {kind_of(self.server)}"  # type: ignore[unreachable]  # callers without a type checker
            raise InvalidConfig("server", why, "Use lk.serve(…) or lk.connect(url)")
        self.server.wire.need_open()
        if not (self.memory is None or isinstance(self.memory, str) or hasattr(self.memory, "block")):
            why = f"expected a str or a Memory; got {kind_of(self.memory)}"
            raise InvalidConfig("memory", why, "Pass the block as a str, or lk.memory.open(…)")

    def registry(self, tags: Tags) -> Registry:
        """Return a registry of the tools. If a memory was passed, the registry has the tool ``recall``."""
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
        """Raise `InvalidConfig` if ``limits.completion_tokens`` differs from the limit in the options of the epoch."""
        limit, pinned = self.limits.completion_tokens, max_tokens(options)
        if limit is not None and limit != pinned:
            why = f"it is {limit}, but the options of the epoch set {'no limit' if pinned is None else pinned}"
            raise InvalidConfig("limits.completion_tokens", why, "The options are fixed for the epoch: leave one of the two out")

    def loop(
        self, session: Session, slot: int | None, registry: Registry, tags: Tags, next_baseline: Callable[[], Baseline]
    ) -> Loop:
        """Return a loop for an open session. ``next_baseline`` assembles the baseline of the next epoch."""
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
    """Raise `InvalidConfig` if a system prompt is neither a str nor a Path."""
    if not isinstance(system, str | Path):
        raise InvalidConfig("system", f"expected a str or a Path; got {kind_of(system)}", "Pass text, or the Path of a file")
