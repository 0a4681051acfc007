"""Prompt caches: prefix reuse, cache losses and their causes, cost. Pure functions over usage, bodies and tokens."""

from typing import Any

from loopkit.cache.losses.findings import Coverage, Findings, Loss, diagnose
from loopkit.cache.losses.session_observations import observations
from loopkit.cache.losses.token_comparison import reusable_tokens
from loopkit.cache.prefixes.divergence import Divergence, Side, divergence
from loopkit.cache.prefixes.prompt_parts import Prompt
from loopkit.cache.prefixes.reuse import Reuse, Shared, reuse
from loopkit.cache.prefixes.volatile import Volatile, find_volatile
from loopkit.cache.pricing import Cost, Prices, cost
from loopkit.cache.reading_speed import ReadingLine, reading_line
from loopkit.cache.templates import TemplateLoss, TemplateMatrix, template_matrix
from loopkit.deprecation import renamed_names
from loopkit.engines.evidence.observation import Counters, Observation, TokenComparison
from loopkit.engines.evidence.tokens import TokenView

__all__ = [
    "Cost",
    "Counters",
    "Coverage",
    "Divergence",
    "Findings",
    "Loss",
    "Observation",
    "Prices",
    "Prompt",
    "ReadingLine",
    "Reuse",
    "Shared",
    "Side",
    "TemplateLoss",
    "TemplateMatrix",
    "TokenComparison",
    "TokenView",
    "Volatile",
    "cost",
    "diagnose",
    "divergence",
    "find_volatile",
    "observations",
    "reading_line",
    "reusable_tokens",
    "reuse",
    "template_matrix",
]


_renamed = renamed_names(__name__, {"Seen": "Observation", "seen_in": "observations"})


def __getattr__(name: str) -> Any:
    return _renamed(name)


def __dir__() -> list[str]:
    return list(__all__)
