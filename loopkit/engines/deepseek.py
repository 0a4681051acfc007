"""DeepSeek. Facts from its documentation on context caching (V4), November 2026. It gives no rule that predicts a count."""

from __future__ import annotations

from typing import ClassVar

from loopkit.engines.rules.hosted import HostedProvider

__all__ = ["DeepSeek"]


class DeepSeek(HostedProvider):
    """DeepSeek: a cache on disk. loopkit can give only a lower bound of its cached tokens.

    The cache stores prefixes in units, and reuses a unit only as a whole. A unit ends where the user's input ends, where the
    model's output ends, at fixed intervals, or where the service finds a prefix that several requests share. A shared prefix
    gives its first cache hit on the third request. Storing a unit takes seconds. An unused unit is removed after hours to days,
    at no fixed time. DeepSeek does not guarantee cache hits.

    ``usage.prompt_cache_hit_tokens`` and ``usage.prompt_cache_miss_tokens`` add up to ``usage.prompt_tokens``.
    """

    name: ClassVar[str] = "deepseek"
    log_names: ClassVar[frozenset[str]] = frozenset(["deepseek"])
