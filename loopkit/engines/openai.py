"""OpenAI. Facts from its documentation on prompt caching, November 2026."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from loopkit.engines.base import Retention
from loopkit.engines.evidence.diagnosis import FixableBy
from loopkit.engines.rules.hosted import HostedProvider

__all__ = ["OpenAI"]


class OpenAI(HostedProvider):
    """OpenAI: prefixes of at least 1,024 tokens, in steps of 128, kept for 5 to 10 minutes and at most for an hour."""

    name: ClassVar[str] = "openai"
    block: ClassVar[int] = 128
    minimum: ClassVar[int] = 1024
    retention: ClassVar[Retention] = Retention(kept_at_least=300.0, gone_after=3600.0)
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
