"""Google's Gemini. Its implicit caching has no documented rule that counts could be checked against (November 2026)."""

from __future__ import annotations

from typing import ClassVar

from loopkit.engines.rules.hosted import HostedProvider

__all__ = ["Gemini"]


class Gemini(HostedProvider):
    """Gemini: implicit caching, with lower bounds only."""

    name: ClassVar[str] = "gemini"
    log_names: ClassVar[frozenset[str]] = frozenset(
        ["gemini", "vertex_ai", "google", "google-vertex", "gcp.gemini", "gcp.vertex_ai", "gcp.gen_ai"]
    )
