"""Today's tools against those that an epoch was opened with, and that its requests go on sending.

Pure: compares and names; the loop refuses, prints and goes on. Knows records and a registry, nothing of sessions or servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from loopkit.contract.messages import ToolSchema
from loopkit.contract.records import Assistant, LogRecord, ToolResult
from loopkit.encoding import decode, encode
from loopkit.errors import InvalidConfig
from loopkit.loop.tools import Registry

__all__ = ["Change", "Drift", "differences", "found_tools"]

_SHOWN = 5


class Change(NamedTuple):
    """A core tool that is described anew."""

    name: str
    diff: str
    "The members that differ: ``path: then → now``."


@dataclass(frozen=True)
class Drift:
    """How today's tools differ from an epoch's; false where they do not."""

    missing: tuple[str, ...] = ()
    "Core tools of the epoch that are not given: an error."
    changed: tuple[Change, ...] = ()
    "Core tools described anew: what the epoch began with goes on being sent."
    added: tuple[str, ...] = ()
    "Core tools that the epoch does not know: to be found, until the next one."
    removed: tuple[str, ...] = ()
    "Found tools that the model has called and that are not given."

    def __bool__(self) -> bool:
        return bool(self.missing or self.changed or self.added or self.removed)

    def require(self) -> None:
        """Refuse to go on without a core tool.

        Raises
        ------
        InvalidConfig
            Names the tools that are missing.
        """
        if self.missing:
            why = f"the model was told of {', '.join(self.missing)} when the epoch began, and may call it"
            raise InvalidConfig("tools", why, "Give these functions again, or start a new session")

    def lines(self) -> tuple[str, ...]:
        """One sentence for each difference that is no error."""
        return (
            *(f"tool {name} is described anew; the epoch goes on with what it began with: {diff}" for name, diff in self.changed),
            *(f"tool {name} is new: until the next epoch the model can only find it" for name in self.added),
            *(f"tool {name}, which the model has found and called, is gone" for name in self.removed),
        )


def differences(snapshot: Sequence[ToolSchema], registry: Registry, used: Iterable[str] = ()) -> Drift:
    """Compare the tools of a baseline with a registry.

    Parameters
    ----------
    snapshot : sequence of ToolSchema
        The baseline's.
    registry : Registry
        Today's tools, with the tags that the session has pinned.
    used : iterable of str
        Found tools that the model has called; see :func:`found_tools`.

    Examples
    --------
    >>> def now_in(city: str) -> str:
    ...     "The time in a city."
    >>> then = Registry([now_in]).core_schemas()
    >>> now_in.__doc__ = "The time of day in a city."
    >>> differences(then, Registry([now_in])).changed
    (Change(name='now_in', diff='description: "The time in a city." → "The time of day in a city."'),)
    """
    before = {schema.function.name: schema for schema in snapshot}
    today = registry.schemas()
    both = [(name, _diff(before[name], today[name])) for name in before if name in today]
    core = {schema.function.name for schema in registry.core_schemas()}
    return Drift(
        missing=tuple(name for name in before if name not in today),
        changed=tuple(Change(name, diff) for name, diff in both if diff),
        added=tuple(name for name in registry.names if name in core and name not in before),
        removed=tuple(name for name in dict.fromkeys(used) if name not in today and name not in before),
    )


def found_tools(records: Iterable[LogRecord]) -> tuple[str, ...]:
    """Names of the tools that the model has called through ``call_tool`` with a result."""
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


def _diff(before: ToolSchema, after: ToolSchema) -> str:
    """Say which members differ; empty where the bytes are the same."""
    then, now = encode(before.function), encode(after.function)
    if then == now:
        return ""
    found: list[str] = []
    _compare(decode(then), decode(now), "", found)
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return "; ".join(found[:_SHOWN]) + more or "the same members in another order"


def _compare(then: Any, now: Any, path: str, found: list[str]) -> None:
    if isinstance(then, dict) and isinstance(now, dict):
        for key in {**then, **now}:
            inner = f"{path}.{key}".removeprefix(".")
            if key not in now:
                found.append(f"{inner}: {_short(then[key])} → gone")
            elif key not in then:
                found.append(f"{inner}: new, {_short(now[key])}")
            else:
                _compare(then[key], now[key], inner, found)
    elif encode(then) != encode(now):
        found.append(f"{path}: {_short(then)} → {_short(now)}")


def _short(value: Any) -> str:
    text = encode(value).decode("utf-8")
    return text if len(text) <= 60 else f"{text[:40]}…{text[-19:]}"
