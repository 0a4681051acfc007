"""Prompt caches: prefix reuse, cache losses and their causes, cost. Pure functions over usage, bodies and tokens."""

from loopkit.cache.losses.findings import Findings, diagnose
from loopkit.cache.losses.observation import Counters, Seen, seen_in
from loopkit.cache.losses.token_comparison import reusable_tokens
from loopkit.cache.prefixes.divergence import Divergence, divergence
from loopkit.cache.prefixes.prompt_parts import Prompt
from loopkit.cache.prefixes.reuse import Reuse, Shared, reuse
from loopkit.cache.prefixes.volatile import Volatile, find_volatile
from loopkit.cache.pricing import Cost, Prices, cost
from loopkit.cache.reading_speed import ReadingLine, reading_line
from loopkit.cache.templates import TemplateMatrix, template_matrix

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
