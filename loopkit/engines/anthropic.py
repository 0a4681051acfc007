"""Anthropic. Facts from its documentation on prompt caching and the types of its SDK 2.14.0, November 2026."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import Raw

from loopkit.contract.records import Usage
from loopkit.encoding import decode
from loopkit.engines.base import Kept, Retention
from loopkit.engines.evidence.diagnosis import Diagnosis, FixableBy
from loopkit.engines.rules.hosted import HostedProvider

__all__ = ["FIVE_MINUTES", "ONE_HOUR", "Anthropic"]

FIVE_MINUTES, ONE_HOUR = 300.0, 3600.0
"The two times to live that a request can ask for, in seconds."
LOOKBACK = 20
"Number of content blocks before a break point that Anthropic searches for the end of a cached prefix."


class Anthropic(HostedProvider):
    """Anthropic: prefixes that end at a break point, kept for 5 minutes or an hour.

    A request can set up to 4 break points (``cache_control``). A prompt is cached in the order tools, system, messages. For each
    break point, the cache is searched for a prefix that ends there or up to 20 content blocks earlier. The next request can find
    the tokens that this request read from the cache or wrote to it.

    The time to live starts when the request starts, and each read renews it. Other requests can read an entry as soon as the
    first response has begun. Parallel requests with a new prefix therefore all write it.

    ``usage.input_tokens`` excludes cached tokens: the prompt is ``input_tokens + cache_creation_input_tokens +
    cache_read_input_tokens``. If the prompt is shorter than the model's minimum, both cache counts are 0.
    """

    name: ClassVar[str] = "anthropic"
    minimums: ClassVar[Mapping[str, int]] = {
        **dict.fromkeys(("opus-5", "fable-5.1", "mythos-5.1"), 512),
        **dict.fromkeys(("opus-4.8", "opus-4.1", "opus-4", "sonnet-5", "sonnet-4.6", "sonnet-4.5", "sonnet-4"), 1024),
        **dict.fromkeys(("opus-4.7", "haiku-3.5"), 2048),
        **dict.fromkeys(("opus-4.6", "opus-4.5", "haiku-4.5"), 4096),
    }
    retentions: ClassVar[Mapping[str, Retention]] = {
        "5m": Retention(kept_at_least=None, gone_after=FIVE_MINUTES, counted_from="request"),
        "1h": Retention(kept_at_least=None, gone_after=ONE_HOUR, counted_from="request"),
    }
    retention: ClassVar[Retention] = retentions["5m"]
    header_prefix: ClassVar[str] = "anthropic-"
    log_names: ClassVar[frozenset[str]] = frozenset(["anthropic"])
    verdicts: ClassVar[Mapping[str, tuple[str, FixableBy]]] = {
        "model_changed": ("model_changed", "client"),
        "system_changed": ("system_changed", "client"),
        "tools_changed": ("tools_changed", "client"),
        "messages_changed": ("history_changed", "client"),
        "previous_message_not_found": ("expired", "provider"),
    }

    def kept(self, previous: Usage, block: int | None = None) -> Kept:
        if previous.cached_tokens is not None and previous.cache_write_tokens is not None:
            return Kept(previous.cached_tokens + previous.cache_write_tokens, 1, exact=True)
        return super().kept(previous, block)

    def cache_write_seconds(self, *, one_hour: bool = False) -> float | None:
        return self.retentions["1h" if one_hour else "5m"].gone_after

    def wrote_response(self, response: Mapping[str, Any]) -> bool:
        usage = response.get("usage")
        return isinstance(usage, dict) and "input_tokens" in usage and "cache_read_input_tokens" in usage

    def from_bodies(self, previous: bytes, now: bytes, evidence: dict[str, Any]) -> Diagnosis | None:
        were, are = _content_blocks(previous), _content_blocks(now)
        blocks = 0 if were is None or are is None else are - were
        if blocks <= LOOKBACK:
            return None
        return Diagnosis("lookback", "confirmed", "client", "break points", {**evidence, "blocks_since": blocks})


def _content_blocks(body: bytes) -> int | None:
    """Return the number of content blocks in the messages of a body; None if the body is not a chat request.

    A message whose content is a plain text counts as one block.
    """
    try:
        messages = decode(decode(body, dict[str, Raw])["messages"], list[dict[str, Any]])
    except (ValueError, KeyError):
        return None
    return sum(len(content) if isinstance(content := message.get("content"), list) else 1 for message in messages)
