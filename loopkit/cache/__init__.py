"""What prompt caches do and why: pure functions over usage, bodies and tokens; no disk, no network.

A function and the module that it is in have different names, so that each can be reached.
"""

from loopkit.cache.findings import Findings, diagnose
from loopkit.cache.parting import Divergence, divergence
from loopkit.cache.prefixes import Reuse, Shared, reuse
from loopkit.cache.prices import Cost, Prices, cost
from loopkit.cache.prompts import Prompt
from loopkit.cache.reading import ReadingLine, reading_line
from loopkit.cache.rendered import reusable_tokens
from loopkit.cache.seen import Counters, Seen, seen_in
from loopkit.cache.templates import TemplateMatrix, template_matrix
from loopkit.cache.volatile import Volatile, find_volatile

__all__ = [
    "Cost",
    "Counters",
    "Divergence",
    "Findings",
    "Prices",
    "Prompt",
    "ReadingLine",
    "Reuse",
    "Seen",
    "Shared",
    "TemplateMatrix",
    "Volatile",
    "cost",
    "diagnose",
    "divergence",
    "find_volatile",
    "reading_line",
    "reusable_tokens",
    "reuse",
    "seen_in",
    "template_matrix",
]


def __dir__() -> list[str]:
    return list(__all__)
