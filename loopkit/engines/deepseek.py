"""DeepSeek. Facts from its documentation on context caching (V4), November 2026. It gives no rule that predicts a count."""

from __future__ import annotations

from typing import ClassVar

from loopkit.engines.rules.hosted import HostedProvider

__all__ = ["DeepSeek"]


class DeepSeek(HostedProvider):
    """DeepSeek: a cache on disk, with lower bounds only.

    A cached unit is reused only as a whole. Units end where the user's input ends, where the model's output ends, at fixed
    intervals, and where the service finds a prefix that several requests share. Such a shared prefix gives its first hit on the
    third request. A unit takes seconds to build and is cleared after hours to days of disuse, at no fixed time. There is no
    guarantee of a hit.

    ``usage.prompt_cache_hit_tokens`` and ``usage.prompt_cache_miss_tokens`` add up to ``usage.prompt_tokens``.
    """

    name: ClassVar[str] = "deepseek"
    log_names: ClassVar[frozenset[str]] = frozenset(["deepseek"])
