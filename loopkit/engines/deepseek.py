"""DeepSeek. Its documentation gives no rule that counts could be checked against (November 2026)."""

from __future__ import annotations

from typing import ClassVar

from loopkit.engines.rules.hosted import HostedProvider

__all__ = ["DeepSeek"]


class DeepSeek(HostedProvider):
    """DeepSeek: a cache on disk, with lower bounds only."""

    name: ClassVar[str] = "deepseek"
    log_names: ClassVar[frozenset[str]] = frozenset(["deepseek"])
