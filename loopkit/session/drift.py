"""What has changed outside since an epoch's baseline was taken. Two baselines in, a small diff out; reads and changes nothing."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Self

from loopkit.contract.baseline import Baseline
from loopkit.contract.messages import ToolSchema
from loopkit.encoding import encode

__all__ = ["Drift"]


@dataclass(frozen=True, repr=False)
class Drift:
    """The difference between a running epoch's baseline and today's; false when there is none.

    Examples
    --------
    >>> Drift.between(Baseline("Be brief.", ()), Baseline("Be kind.", ()))
    system: -Be brief.
    system: +Be kind.
    >>> bool(Drift.between(Baseline("Be brief.", ()), Baseline("Be brief.", ())))
    False
    """

    lines: tuple[str, ...]
    """One for each changed line of the system prompt, and one for each tool."""

    @classmethod
    def between(cls, pinned: Baseline, today: Baseline) -> Self:
        """Compare two baselines."""
        diff = difflib.ndiff(pinned.system.split("\n"), today.system.split("\n"))
        lines = [f"system: {line[0]}{line[2:]}" for line in diff if line[0] in "+-"]
        before, after = _by_name(pinned), _by_name(today)
        for name in before | after:
            if name not in after:
                lines.append(f"tool {name}: is gone")
            elif name not in before:
                lines.append(f"tool {name}: is new")
            elif before[name] != after[name]:
                lines.append(f"tool {name}: -{encode(before[name]).decode()}")
                lines.append(f"tool {name}: +{encode(after[name]).decode()}")
        if not lines and pinned != today:
            lines.append("tools: they come in another order")
        return cls(tuple(lines))

    def __bool__(self) -> bool:
        return bool(self.lines)

    def __str__(self) -> str:
        return "\n".join(self.lines) or "no drift: a new epoch would have the same baseline"

    __repr__ = __str__


def _by_name(baseline: Baseline) -> dict[str, ToolSchema]:
    return {tool.function.name: tool for tool in baseline.tools}
