"""Differences between the baseline of an epoch and today's baseline, and between two versions of a tool's schema."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, Self

from loopkit.contract.baseline import Baseline
from loopkit.contract.messages import ToolSchema
from loopkit.encoding import decode, encode

__all__ = ["Drift", "schema_difference"]

_SHOWN = 5


@dataclass(frozen=True, repr=False)
class Drift:
    """Differences between the baseline of an epoch and the baseline that a new epoch would get. False if there are none.

    Examples
    --------
    >>> Drift.between(Baseline("Be brief.", ()), Baseline("Be kind.", ()))
    system: -Be brief.
    system: +Be kind.
    >>> bool(Drift.between(Baseline("Be brief.", ()), Baseline("Be brief.", ())))
    False
    """

    lines: tuple[str, ...]
    """One line of text for each removed or added line of the system prompt, and for each changed tool."""

    @classmethod
    def between(cls, pinned: Baseline, today: Baseline) -> Self:
        """Compare two baselines.

        Parameters
        ----------
        pinned : Baseline
            Baseline of the current epoch.
        today : Baseline
            Baseline that a new epoch would get.

        Returns
        -------
        Drift
            The differences, from ``pinned`` to ``today``.
        """
        diff = difflib.ndiff(pinned.system.split("\n"), today.system.split("\n"))
        lines = [f"system: {line[0]}{line[2:]}" for line in diff if line[0] in "+-"]
        before, after = ({tool.function.name: tool for tool in baseline.tools} for baseline in (pinned, today))
        for name in before | after:
            if name not in after:
                lines.append(f"tool {name}: removed")
            elif name not in before:
                lines.append(f"tool {name}: added")
            elif difference := schema_difference(before[name], after[name]):
                lines.append(f"tool {name}: {difference}")
        if not lines and pinned != today:
            lines.append("tools: same tools in a different order")
        return cls(tuple(lines))

    def __bool__(self) -> bool:
        return bool(self.lines)

    def __str__(self) -> str:
        return "\n".join(self.lines) or "no drift: a new epoch would have the same baseline"

    __repr__ = __str__


def schema_difference(before: ToolSchema, after: ToolSchema) -> str:
    """Describe the first 5 members that differ, as ``path: before → after``. Empty if both have the same JSON bytes."""
    then, now = encode(before.function), encode(after.function)
    if then == now:
        return ""
    found: list[str] = []
    _collect_differences(decode(then), decode(now), "", found)
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return "; ".join(found[:_SHOWN]) + more or "same members in a different order"


def _collect_differences(then: Any, now: Any, path: str, found: list[str]) -> None:
    if isinstance(then, dict) and isinstance(now, dict):
        for key in {**then, **now}:
            inner = f"{path}.{key}".removeprefix(".")
            if key not in now:
                found.append(f"{inner}: {_short(then[key])} → removed")
            elif key not in then:
                found.append(f"{inner}: added {_short(now[key])}")
            else:
                _collect_differences(then[key], now[key], inner, found)
    elif encode(then) != encode(now):
        found.append(f"{path}: {_short(then)} → {_short(now)}")


def _short(value: Any) -> str:
    text = encode(value).decode("utf-8")
    return text if len(text) <= 60 else f"{text[:40]}…{text[-19:]}"
