"""Causes at llama.cpp's slots: taken by others, host cache thresholds, missing checkpoints, restored from a file.

A cause is ``confirmed`` if the server's counters show it, and ``suspected`` if it only fits what was recorded. The host cache is
llama-server's prompt cache in main memory: it saves the tokens of a slot when another conversation takes the slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from loopkit.engines.evidence.diagnosis import Certainty, Diagnosis, server_loss
from loopkit.engines.evidence.observation import Counters, Observation

__all__ = ["not_cut_back", "possible_takers", "restored_without_checkpoints", "taken"]

KEPT_BY_SLOT = 0.5
"""If a prompt begins with at least this share of a slot's tokens, the slot is reused and the host cache is not searched
(llama.cpp, server-context.cpp, October 2026)."""
KEPT_BY_ENTRY = 0.25
"""An entry of the host cache is loaded only if the prompt begins with at least this share of the entry's tokens
(llama.cpp, server-task.cpp, October 2026)."""
BEFORE_END = 4
"llama.cpp makes a checkpoint this many tokens before the end of a prompt, and another one batch earlier (October 2026)."
BATCH = 512
"Default size of llama.cpp's physical batch in tokens."


def taken(
    previous: Observation, now: Observation, between: Sequence[Observation], reusable: int, evidence: dict[str, Any]
) -> Diagnosis | None:
    """Diagnose a loss because other requests used the slot in between, and the host cache did not return its tokens.

    Return None if there is no sign that another request used the slot.
    """
    slot, before, after = previous.used_slot, now.before, previous.after
    takers = possible_takers(between, slot)
    held = None if before is None else before.tokens_in(slot)
    known = before is not None and after is not None and held is not None and previous.slot_tokens is not None
    traffic = _tokens_between(after, before)
    evidence = {**evidence, "others_tokens": traffic, "others": [_label(other) for other in takers]}
    if known and held == 0:
        if now.slot is None:
            return server_loss("evicted", "suspected", f"slot {slot}", evidence)
        sure: Certainty = "confirmed" if traffic or between else "suspected"
        return server_loss(
            "pinned_empty_slot", sure, f"slot {slot}", {**evidence, "others": [_label(other) for other in between]}
        )
    changed = known and held != previous.slot_tokens
    if known and not changed:
        # The slot still has the expected number of tokens. Either another conversation has this length by chance, or
        # another request used the slot after the counters were read.
        more = _served_others(now, slot)
        takers = [other for other in takers if other.used_slot == slot and (traffic or _answered_during(other, now))]
        changed = more is True and (bool(takers) or not _at_checkpoint(previous, now))
        if not changed and not (takers and (traffic or more is None)):
            return None
        evidence["others"] = [_label(other) for other in takers]
    elif not (changed or takers or traffic):
        return None
    location = _label(takers[-1]) if takers else f"slot {slot}"
    sure = "confirmed" if changed or (not known and any(other.used_slot == slot is not None for other in takers)) else "suspected"
    if now.restored:  # the tokens came from a file, so the rules of the host cache are not checked
        return server_loss("slot_taken", sure, location, evidence)
    host = None if before is None else before.host_cache_mib
    rules = _thresholds(previous, now, takers, between, reusable)
    evidence = {**evidence, "host_cache_mib": host, "thresholds": rules}
    found = _at_checkpoint(previous, now)
    if host != 0 and found and rules.get("shared_with_taker", 0) < (now.usage.cached_tokens or 0):
        # The host cache returned the tokens, but this model can only continue from a checkpoint.
        return server_loss("no_checkpoint", sure if rules else "suspected", "memory", evidence, **found)
    if host != 0 and rules:
        if rules["rule"]:
            return server_loss("host_cache_rule", sure if host else "suspected", location, evidence)
        if host:
            return server_loss("evicted", sure, "host cache", evidence)
    return server_loss("slot_taken", sure, location, evidence)


def restored_without_checkpoints(previous: Observation, now: Observation, evidence: dict[str, Any]) -> Diagnosis | None:
    """Diagnose a loss because tokens that were restored into the slot from a file could not all be used.

    Such a file contains no checkpoints, which some models need. Return None if nothing was restored or all of it was used.
    """
    cached = now.usage.cached_tokens or 0
    if not now.restored or cached >= now.restored:  # all restored tokens were used: the lost ones are newer than the file
        return None
    # An older file may contain tokens of this prompt that are not at its start, and these cannot be reused.
    sure: Certainty = "confirmed" if not cached or now.restored == previous.slot_tokens else "suspected"
    return server_loss("restored_without_checkpoints", sure, "restore", evidence, restored_tokens=now.restored)


def possible_takers(between: Sequence[Observation], slot: int | None) -> list[Observation]:
    """Return the requests of `between` that used the slot, or whose slot is unknown. All of them if `slot` is None."""
    return [other for other in between if slot is None or other.used_slot in (None, slot)]


def _answered_during(other: Observation, now: Observation) -> bool:
    """Return True if the response to `other` ended after `now` was sent; False if a time is unknown."""
    answered, ended = other.answered, now.answered
    if answered is None or ended is None or now.elapsed_ms is None:
        return False
    return answered >= ended - timedelta(milliseconds=now.elapsed_ms)


def _served_others(now: Observation, slot: int | None) -> bool | None:
    """Return True if the slot served other requests while the server handled `now`; None if unknown.

    The server's counters just before and just after `now` are compared. If they grew by more than the tokens of `now`, another
    request was processed. If no other slot changed, that request used this slot.
    """
    during, own = _tokens_between(now.before, now.after), (now.usage.prompt_tokens, now.usage.completion_tokens)
    if during is None or own[0] is None or own[1] is None:
        return None
    if during <= own[0] + own[1]:
        return False
    counts = [None if each is None or each.slots is None else dict(enumerate(each.slots)) for each in (now.before, now.after)]
    if counts[0] is None or counts[1] is None or slot is None:
        return None
    return True if all(counts[0].get(at) == held for at, held in counts[1].items() if at != slot) else None


def _tokens_between(after: Counters | None, before: Counters | None) -> int | None:
    if after is None or before is None or after.tokens is None or before.tokens is None:
        return None
    return before.tokens - after.tokens


def _label(other: Observation) -> str:
    return f"session {other.session}, request {other.request}" if other.session is not None else "another request"


def _thresholds(
    previous: Observation, now: Observation, takers: Sequence[Observation], between: Sequence[Observation], reusable: int
) -> dict[str, Any]:
    """Return the rule by which the host cache did not return the tokens (None if no rule applies), and the shares it compares.

    The dict is empty if the tokens of the requests are unknown.
    """
    known = [each for each in takers if each.tokens is not None and each.slot_tokens]
    if not known or previous.tokens is None or now.tokens is None or not previous.slot_tokens:
        return {}
    first, last = known[0], known[-1]
    shared = _shared(last, now)
    saving = _shared(previous, first) / previous.slot_tokens
    loading = shared / (last.slot_tokens or 1)
    entry = reusable / previous.slot_tokens
    rule = None
    if saving >= KEPT_BY_SLOT:
        rule = "not saved: the other prompt began with at least half of the slot, so the slot was cut there"
    elif loading >= KEPT_BY_SLOT:
        rule = "not looked up: the prompt began with at least half of what the other request left in the slot"
    elif any(_shared(previous, each) / previous.slot_tokens >= KEPT_BY_ENTRY for each in between if each is not first):
        rule = "moved: another prompt began with at least a quarter of the entry and took it"
    elif entry < KEPT_BY_ENTRY:
        rule = "not loaded: the prompt began with less than a quarter of the entry"
    return {
        "rule": rule,
        "kept_when_taken": round(saving, 4),
        "kept_when_back": round(loading, 4),
        "kept_of_entry": round(entry, 4),
        "shared_with_taker": shared,
    }


def _shared(a: Observation, b: Observation) -> int:
    return 0 if a.tokens is None or b.tokens is None else a.tokens.common_prefix(b.tokens)


def _at_checkpoint(previous: Observation, now: Observation) -> dict[str, Any]:
    """Return facts for the evidence if the cached tokens end at a checkpoint of the previous prompt; otherwise an empty dict."""
    prompt, cached = previous.usage.prompt_tokens, now.usage.cached_tokens
    if prompt is None or cached is None:
        return {}
    behind = prompt - BEFORE_END - cached
    return {"checkpoint": prompt - BEFORE_END, "cached_tokens": cached} if behind in (0, 1, BATCH, BATCH + 1) else {}


def not_cut_back(previous: Observation, now: Observation, evidence: dict[str, Any]) -> Diagnosis | None:
    """Diagnose a loss of tokens that the slot still contained: the model can only continue from a checkpoint.

    Return None if the number of tokens in the slot is unknown or has changed since the previous request.
    """
    slot, before = previous.used_slot, now.before
    held = None if before is None else before.tokens_in(slot)
    if held is None or held != previous.slot_tokens:
        return None
    # Another request may have left the same number of tokens there, or have used the slot after the counters were read.
    alone = (
        _served_others(previous, slot) is not True
        and not _tokens_between(previous.after, before)
        and _served_others(now, slot) is False
    )
    sure: Certainty = "confirmed" if alone else "suspected"
    return server_loss("no_checkpoint", sure, "memory", evidence, held_tokens=held, **_at_checkpoint(previous, now))
