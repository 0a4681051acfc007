"""OpenAI. Facts from its documentation on prompt caching and the docstrings of its SDK 3.57.0, November 2026."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from loopkit.engines.base import Retention
from loopkit.engines.evidence.diagnosis import FixableBy
from loopkit.engines.rules.hosted import HostedProvider

__all__ = ["OpenAI"]


class OpenAI(HostedProvider):
    """OpenAI: prefixes of at least 1,024 tokens, in steps of 128, kept for 5 to 10 minutes and at most for an hour.

    These rules apply to models up to GPT-5.5. OpenAI chooses the machine by a hash of about the first 256 tokens and by
    ``prompt_cache_key``. If more than about 15 requests a minute have the same prefix and key, some go to other machines, which
    may not have the prefix in their cache. With ``prompt_cache_retention: "24h"``, a prefix is kept for up to 24 hours.

    From GPT-5.6 on, a request sets break points, with a time to live of 30 minutes or 12 hours in ``prompt_cache_options``.
    Cached tokens are not rounded to 128. A shorter prefix is found only if it ends at a break point. Expected tokens do not take
    these rules into account yet.
    """

    name: ClassVar[str] = "openai"
    block: ClassVar[int] = 128
    minimum: ClassVar[int] = 1024
    retentions: ClassVar[Mapping[str, Retention]] = {
        "in_memory": Retention(kept_at_least=300.0, gone_after=3600.0),
        "24h": Retention(kept_at_least=None, gone_after=86_400.0),
    }
    retention: ClassVar[Retention] = retentions["in_memory"]
    header_prefix: ClassVar[str] = "openai-"
    log_names: ClassVar[frozenset[str]] = frozenset(
        [
            *("openai", "azure", "azure_openai", "azure.ai.openai", "openai-chat", "openai-responses"),
            *("openai-codex", "azure-openai-responses"),
        ]
    )
    verdicts: ClassVar[Mapping[str, tuple[str, FixableBy]]] = {
        "input_changed": ("history_changed", "client"),
        "context_compacted": ("history_changed", "client"),
        "prompt_cache_key_changed": ("options_changed", "client"),
        "text_format_changed": ("options_changed", "client"),
        "reasoning_effort_changed": ("options_changed", "client"),
        "verbosity_changed": ("options_changed", "client"),
        "service_tier_changed": ("options_changed", "client"),
    }

    def wrote_response(self, response: Mapping[str, Any]) -> bool:
        return str(response.get("system_fingerprint")).startswith("fp_")
