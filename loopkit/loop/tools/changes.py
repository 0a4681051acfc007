"""Changes between the tools of an epoch and the tools given on resume."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from loopkit.contract.drift import schema_difference
from loopkit.contract.messages import ToolSchema
from loopkit.contract.records import Assistant, LogRecord, ToolResult
from loopkit.encoding import decode
from loopkit.errors import InvalidConfig
from loopkit.loop.tools.registry import Registry

__all__ = ["ChangedTool", "ToolChanges", "called_found_tools", "compare"]


class ChangedTool(NamedTuple):
    """A tool of the baseline whose schema has changed since the epoch began."""

    name: str
    diff: str
    "Members that differ: ``path: before → now``."


@dataclass(frozen=True)
class ToolChanges:
    """Differences between the tools of an epoch and the tools passed to `resume`. False if they are the same.

    Core tools have their schemas in the baseline. The model finds the other tools with ``find_tool``.
    """

    missing: tuple[str, ...] = ()
    "Core tools of the epoch that were not passed. `resume` then raises an error."
    changed: tuple[ChangedTool, ...] = ()
    "Core tools with a new schema. The epoch keeps sending the old one."
    added: tuple[str, ...] = ()
    "New core tools. Until the next epoch, the model has to find them with ``find_tool``."
    removed: tuple[str, ...] = ()
    "Tools that the model has found and called in this epoch, and that were not passed."

    def __bool__(self) -> bool:
        return bool(self.missing or self.changed or self.added or self.removed)

    def refuse_missing(self) -> None:
        """Raise `InvalidConfig` if a core tool is missing; the message names it."""
        if self.missing:
            why = f"missing: {', '.join(self.missing)}. The epoch started with these tools, and the model may call them"
            raise InvalidConfig("tools", why, "Pass these functions again, or start a new session")

    def lines(self) -> tuple[str, ...]:
        """Return one sentence for each change other than a missing core tool."""
        return (
            *(f"Tool {name!r} has changed. The epoch keeps its old schema: {diff}." for name, diff in self.changed),
            *(f"Tool {name!r} is new. Until the next epoch the model has to find it with find_tool." for name in self.added),
            *(f"Tool {name!r} is missing. The model has found and called it in this epoch." for name in self.removed),
        )


def compare(pinned: Sequence[ToolSchema], registry: Registry, called: Iterable[str] = ()) -> ToolChanges:
    """Compare the tools of a baseline with a registry.

    Parameters
    ----------
    pinned : sequence of ToolSchema
        Tools of the baseline.
    registry : Registry
        Tools passed to `resume`, with the control tags of the session; see ``Registry.use_tags``.
    called : iterable of str
        Names of the tools that the model has called through ``call_tool``; see :func:`called_found_tools`.

    Examples
    --------
    >>> def now_in(city: str) -> str:
    ...     "The time in a city."
    >>> then = Registry([now_in]).core_schemas()
    >>> now_in.__doc__ = "The time of day in a city."
    >>> compare(then, Registry([now_in])).changed
    (ChangedTool(name='now_in', diff='description: "The time in a city." → "The time of day in a city."'),)
    """
    before = {schema.function.name: schema for schema in pinned}
    today = registry.schemas()
    both = [(name, schema_difference(before[name], today[name])) for name in before if name in today]
    core = {schema.function.name for schema in registry.core_schemas()}
    return ToolChanges(
        missing=tuple(name for name in before if name not in today),
        changed=tuple(ChangedTool(name, diff) for name, diff in both if diff),
        added=tuple(name for name in registry.names if name in core and name not in before),
        removed=tuple(name for name in dict.fromkeys(called) if name not in today and name not in before),
    )


def called_found_tools(records: Iterable[LogRecord]) -> tuple[str, ...]:
    """Return the names of the tools that the model has called through ``call_tool`` with success, without repeats."""
    names: dict[str, None] = {}
    waiting: list[tuple[str, str]] = []
    for record in records:
        if isinstance(record, Assistant):
            waiting = [(call.function.name, call.function.arguments) for call in record.calls()]
        elif isinstance(record, ToolResult) and waiting:
            name, arguments = waiting.pop(0)
            if name == "call_tool" and record.status == "ok":
                names[str(decode(arguments)["name"])] = None
    return tuple(names)
