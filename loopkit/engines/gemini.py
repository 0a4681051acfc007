"""Google's Gemini. Facts from its documentation and the types of google-genai 3.6.1, November 2026.

The documentation gives minimums for implicit caching, but no rule that predicts the number of cached tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from loopkit.engines.base import Retention
from loopkit.engines.rules.hosted import HostedProvider

__all__ = ["Gemini"]


class Gemini(HostedProvider):
    """Gemini: implicit caching from version 2.5 on. loopkit can give only a lower bound of the cached tokens.

    `minimums` are the minimums of implicit caching. An earlier version of the documentation gave 1,024 tokens for 2.5 Flash and
    4,096 for 2.5 Pro. An explicit cache is kept for an hour unless the request sets another time, and its storage is billed.

    ``usageMetadata.promptTokenCount`` includes ``cachedContentTokenCount``. ``candidatesTokenCount`` excludes
    ``thoughtsTokenCount``.
    """

    name: ClassVar[str] = "gemini"
    minimums: ClassVar[Mapping[str, int]] = {
        **dict.fromkeys(("2.5-flash", "2.5-pro"), 2048),
        "3-flash": 1024,
        **dict.fromkeys(("3.5-flash", "3-pro", "3.1-pro"), 4096),
    }
    retentions: ClassVar[Mapping[str, Retention]] = {"explicit": Retention(kept_at_least=3600.0, gone_after=3600.0)}
    log_names: ClassVar[frozenset[str]] = frozenset(
        ["gemini", "vertex_ai", "google", "google-vertex", "gcp.gemini", "gcp.vertex_ai", "gcp.gen_ai"]
    )
