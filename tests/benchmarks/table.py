"""What a benchmark gives back, and how the table is printed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple


class Row(NamedTuple):
    """One comparison, made in one run."""

    work: str
    ours: str
    theirs: str
    value: float
    bar: float
    at_most: bool = True

    @property
    def holds(self) -> bool:
        return self.value <= self.bar if self.at_most else self.value >= self.bar

    def line(self) -> str:
        sign = "≤" if self.at_most else "≥"
        verdict = "holds" if self.holds else "MISSED"
        return f"| {self.work} | {self.ours} | {self.theirs} | {self.value:.2f} | {sign} {self.bar:g} | {verdict} |"


HEADER = "| work | ours | instead | ratio | bar | |\n|---|---|---|---|---|---|"


def seconds(function: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Time of one call: of the wall, or with ``time.process_time`` of the processor, where other processes do not count."""
    start = clock()
    function()
    return clock() - start


def interleaved(
    ours: Callable[[], object], theirs: Callable[[], object], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, float]:
    """Median seconds of two functions, run in turn so that the machine's drift meets both."""
    pairs = [(seconds(ours, clock), seconds(theirs, clock)) for _ in range(rounds)]
    return statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)
