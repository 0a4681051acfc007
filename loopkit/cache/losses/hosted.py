"""What a provider did to tokens that it had, as far as its documents and its own verdicts say; more is never confirmed.

Times that a provider keeps a prefix and its look-back are those of its documentation (2026-11); they change. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, Literal

from msgspec import Raw

from loopkit.cache.losses.diagnosis import Diagnosis
from loopkit.cache.losses.observation import Seen
from loopkit.encoding import decode

__all__ = ["HOSTED", "at_provider", "with_verdict"]

HOSTED: Final = {"openai": 3600.0, "anthropic": 300.0, "deepseek": None, "gemini": None}
"Seconds for which a provider says that it keeps an idle prefix at the most; None where it does not say."
LOOKBACK: Final = 20
"Content blocks that Anthropic looks back from a break point."

VERDICTS: Final[dict[str, tuple[str, Literal["client", "server", "provider"]]]] = {
    "model_changed": ("model_changed", "client"),
    "system_changed": ("system_changed", "client"),
    "tools_changed": ("tools_changed", "client"),
    "messages_changed": ("history_changed", "client"),
    "input_changed": ("history_changed", "client"),
    "context_compacted": ("history_changed", "client"),
    "prompt_cache_key_changed": ("options_changed", "client"),
    "text_format_changed": ("options_changed", "client"),
    "reasoning_effort_changed": ("options_changed", "client"),
    "verbosity_changed": ("options_changed", "client"),
    "service_tier_changed": ("options_changed", "client"),
    "previous_message_not_found": ("expired", "provider"),
    "no_checkpoint": ("no_checkpoint", "server"),
}
"What Anthropic's and OpenAI's cache diagnostics and llama-server's log say, in the words used here."


def with_verdict(verdict: str | None, ours: Diagnosis) -> Diagnosis:
    """Let the provider's own verdict win, and keep ours beside it."""
    if verdict is None or verdict not in VERDICTS:
        return ours
    cause, mendable = VERDICTS[verdict]
    evidence = {**ours.evidence, "provider_verdict": verdict}
    if cause == ours.cause:
        return ours._replace(certainty="confirmed", evidence=evidence)
    evidence["ours"] = {name: getattr(ours, name) for name in ("cause", "certainty", "fixable_by", "location")}
    return Diagnosis(cause, "confirmed", mendable, None, evidence)


def at_provider(previous: Seen, now: Seen, between: Sequence[Seen], reusable: int) -> Diagnosis | None:
    """Judge tokens that a provider had."""
    kept = previous.kept_seconds or HOSTED.get(now.engine or "")
    idle = _idle(previous, now)
    evidence: dict[str, Any] = {"reusable_tokens": reusable, "idle_seconds": idle, "kept_seconds": kept}
    if None not in (previous.model, now.model) and previous.model != now.model:
        return Diagnosis("model_changed", "confirmed", "client", "model", {**evidence, "was": previous.model, "now": now.model})
    if idle is not None and idle < 0:
        return Diagnosis("concurrent_first_write", "suspected", "client", "time", evidence)
    if kept is not None and idle is not None and idle > kept:
        return Diagnosis("expired", "suspected", "provider", "idle gap", evidence)
    if previous.body is None or now.body is None:
        return _by_counts(previous, now, evidence)
    if now.engine == "anthropic":
        were, are = _blocks(previous.body), _blocks(now.body)
        blocks = 0 if were is None or are is None else are - were
        if blocks > LOOKBACK:
            return Diagnosis("lookback", "confirmed", "client", "break points", {**evidence, "blocks_since": blocks})
    if not now.usage.cached_tokens:
        return Diagnosis("routed_elsewhere", "suspected", "provider", None, evidence)
    return Diagnosis("evicted", "suspected", "provider", None, evidence)


def _by_counts(previous: Seen, now: Seen, evidence: dict[str, Any]) -> Diagnosis:
    """Judge without the bodies: a shorter prompt is another history, and all else may be the client's doing or the provider's."""
    was, prompt = previous.usage.prompt_tokens, now.usage.prompt_tokens
    if was is not None and prompt is not None and prompt < was:
        return Diagnosis("history_changed", "suspected", "client", "prompt_tokens", {**evidence, "was": was, "now": prompt})
    ruled_out = {
        "expired": None not in (evidence["idle_seconds"], evidence["kept_seconds"]),
        "model_changed": None not in (previous.model, now.model),
    }
    evidence = {**evidence, "ruled_out": [cause for cause, known in ruled_out.items() if known], "not_known": ["the bodies"]}
    return Diagnosis("unexplained", "unexplained", None, None, evidence)


def _idle(previous: Seen, now: Seen) -> float | None:
    """Seconds between an answer and the next request being sent; below 0 where they were under way together."""
    answered, ended = previous.answered, now.answered
    if answered is None or ended is None:
        return None
    sent = ended - timedelta(milliseconds=now.elapsed_ms or 0.0)
    return (sent - answered).total_seconds()


def _blocks(body: bytes) -> int | None:
    """Content blocks of the messages; a text by itself is one. None where the body is no chat request."""
    try:
        messages = decode(decode(body, dict[str, Raw])["messages"], list[dict[str, Any]])
    except (ValueError, KeyError):
        return None
    return sum(len(content) if isinstance(content := message.get("content"), list) else 1 for message in messages)
