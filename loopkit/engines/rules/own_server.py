"""Causes at servers that one runs oneself: restart, other build or model, truncated prompts, completions not kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loopkit.engines.base import Engine
from loopkit.engines.evidence.diagnosis import Certainty, Diagnosis, server_loss
from loopkit.engines.evidence.observation import Observation
from loopkit.engines.rules import llama_slots

__all__ = ["GENERATION", "OwnServer"]

GENERATION = "generation_not_cached"
"Cause of a loss if the engine keeps prompts but not completions. It is reported once per session."
KEPT_IN_BLOCKS = 16
"Tolerance in tokens when cached tokens are compared with the length of the previous prompt. It is vLLM's default block."


class OwnServer(Engine):
    """Base class of engines that one runs oneself. `diagnose` contains the rules that such servers share.

    The rules are tried in a fixed order, and the first that applies gives the cause.
    """

    def diagnose(
        self, previous: Observation, now: Observation, between: Sequence[Observation], reusable: int
    ) -> Diagnosis | None:
        evidence: dict[str, Any] = {"slot": previous.used_slot}
        return (
            llama_slots.restored_without_checkpoints(previous, now, evidence)
            or _restarted(previous, now, evidence)
            or _truncated(previous, now, between, evidence)
            or (None if self.keeps_completions else _completion_not_kept(previous, now, evidence))
            or llama_slots.taken(previous, now, between, reusable, evidence)
        )


def _restarted(previous: Observation, now: Observation, evidence: dict[str, Any]) -> Diagnosis | None:
    before, after = now.before, previous.after
    for name, was, is_now in (("build", previous.build, now.build), ("model", previous.model, now.model)):
        if None not in (was, is_now) and was != is_now:
            return server_loss("server_changed", "confirmed", name, evidence, was=was, now_is=is_now)
    unused = before is not None and before.tokens == 0  # the server process has processed nothing yet
    if unused or (after is not None and before is not None and before.went_back(after)):
        return server_loss("server_restarted", "confirmed", "counters", evidence)
    if before is not None and before.slots and set(before.slots) == {None} and previous.slot_tokens and before.tokens is None:
        return server_loss("server_restarted", "suspected", "slots", evidence)  # no slot has had a conversation yet
    return None


def _truncated(
    previous: Observation, now: Observation, between: Sequence[Observation], evidence: dict[str, Any]
) -> Diagnosis | None:
    """Check whether the server itself dropped tokens: by a context shift during the previous completion, or from this prompt."""
    if now.tokens is not None and now.usage.prompt_tokens is not None and now.usage.prompt_tokens < len(now.tokens):
        return server_loss("server_truncated", "confirmed", "prompt", evidence, rendered_tokens=len(now.tokens))
    slot, size = previous.used_slot, previous.context_size
    remaining = None if previous.after is None else previous.after.tokens_in(slot)
    shrank = remaining is not None and previous.slot_tokens is not None and 0 < remaining < previous.slot_tokens
    # A context shift happens only when the slot is full. Otherwise another request used the slot.
    may_shift = (
        not llama_slots.possible_takers(between, slot)
        if size is None or previous.slot_tokens is None
        else previous.slot_tokens >= size
    )
    if shrank and may_shift:
        sure: Certainty = "suspected" if size is None else "confirmed"
        facts = {"held_tokens": remaining, "written_tokens": previous.slot_tokens, "context_size": size}
        return server_loss("context_shifted", sure, f"slot {slot}", evidence, **facts)
    shorter = (now.usage.prompt_tokens or 0) < (previous.usage.prompt_tokens or 0)
    bodies = previous.body is not None and now.body is not None and len(now.body) > len(previous.body)
    if shorter and now.tokens is None and bodies:
        return server_loss("server_truncated", "suspected", "prompt", evidence)
    return None


def _completion_not_kept(previous: Observation, now: Observation, evidence: dict[str, Any]) -> Diagnosis | None:
    """Check whether the cached tokens end where the previous prompt ends, which shows that the completion was not kept."""
    prompt, cached, written = previous.usage.prompt_tokens, now.usage.cached_tokens, previous.usage.completion_tokens
    if prompt is None or not cached or (written or 0) < 2 * KEPT_IN_BLOCKS:
        return None
    if not prompt - KEPT_IN_BLOCKS < cached <= prompt:
        return None
    return server_loss(GENERATION, "suspected", "completion", evidence)
