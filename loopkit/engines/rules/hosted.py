"""Causes at hosted providers: another model, expiry by idle time, overlapping requests, routing, eviction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

from loopkit.engines.base import Engine
from loopkit.engines.evidence.diagnosis import Diagnosis
from loopkit.engines.evidence.observation import Observation

__all__ = ["HostedProvider"]


class HostedProvider(Engine):
    """Base class of engines that are a provider's API. `diagnose` contains the rules that all providers share."""

    hosted: ClassVar[bool] = True

    def diagnose(
        self, previous: Observation, now: Observation, between: Sequence[Observation], reusable: int
    ) -> Diagnosis | None:
        kept = previous.kept_seconds or (None if self.retention is None else self.retention.gone_after)
        idle = _idle_seconds(previous, now)
        evidence: dict[str, Any] = {"reusable_tokens": reusable, "idle_seconds": idle, "kept_seconds": kept}
        if None not in (previous.model, now.model) and previous.model != now.model:
            changed = {**evidence, "was": previous.model, "now": now.model}
            return Diagnosis("model_changed", "confirmed", "client", "model", changed)
        if idle is not None and idle < 0:
            return Diagnosis("concurrent_first_write", "suspected", "client", "time", evidence)
        if kept is not None and idle is not None and idle > kept:
            return Diagnosis("expired", "suspected", "provider", "idle gap", evidence)
        if previous.body is None or now.body is None:
            return _without_bodies(previous, now, evidence)
        found = self.from_bodies(previous.body, now.body, evidence)
        if found is not None:
            return found
        if not now.usage.cached_tokens:
            return Diagnosis("routed_elsewhere", "suspected", "provider", None, evidence)
        return Diagnosis("evicted", "suspected", "provider", None, evidence)

    def from_bodies(self, previous: bytes, now: bytes, evidence: dict[str, Any]) -> Diagnosis | None:
        """Return a cause found by comparing the two request bodies, or None. Providers with such a rule override this method."""
        return None


def _without_bodies(previous: Observation, now: Observation, evidence: dict[str, Any]) -> Diagnosis:
    """Diagnose a loss when one of the bodies is unknown.

    If the prompt is shorter than the previous one, the history was probably changed. Otherwise the loss stays unexplained.
    """
    was, prompt = previous.usage.prompt_tokens, now.usage.prompt_tokens
    if was is not None and prompt is not None and prompt < was:
        return Diagnosis("history_changed", "suspected", "client", "prompt_tokens", {**evidence, "was": was, "now": prompt})
    ruled_out = {
        "expired": None not in (evidence["idle_seconds"], evidence["kept_seconds"]),
        "model_changed": None not in (previous.model, now.model),
    }
    evidence = {**evidence, "ruled_out": [cause for cause, known in ruled_out.items() if known], "not_known": ["the bodies"]}
    return Diagnosis("unexplained", "unexplained", None, None, evidence)


def _idle_seconds(previous: Observation, now: Observation) -> float | None:
    """Return the seconds from the end of one response to the start of the next request.

    The number is negative if the next request was sent before the response ended. None if a time is unknown.
    """
    answered, ended = previous.answered, now.answered
    if answered is None or ended is None:
        return None
    sent = ended - timedelta(milliseconds=now.elapsed_ms or 0.0)
    return (sent - answered).total_seconds()
