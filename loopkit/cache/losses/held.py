"""What a server did to tokens that it had: the rules of llama.cpp's slots and host cache, against what was counted.

The thresholds are llama-server's own (server-context.cpp, server-task.cpp of October 2026): a slot that keeps half of its tokens
for the new prompt is taken without a look at the host cache, an entry there that keeps less than a quarter is not loaded, and a
pinned slot that is empty never looks. What rests on counters is confirmed; what merely fits is suspected. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal

from loopkit.cache.losses.diagnosis import Diagnosis
from loopkit.cache.losses.expected import GENERATION
from loopkit.cache.losses.observation import Counters, Seen
from loopkit.server.prompt.token_view import common_prefix

__all__ = ["at_llama", "unexplained"]

KEPT_BY_SLOT = 0.5
"The share of a slot's tokens that a prompt has to begin with for the slot to be used as it is."
KEPT_BY_ENTRY = 0.25
"The share of an entry of the host cache that it has to begin with to be loaded."
BLOCK = 16
"Tokens that vLLM and its like keep together."
BEFORE_END = 4
"A checkpoint is taken so many tokens before a prompt's end, and one a batch before."

Certainty = Literal["confirmed", "suspected"]


def at_llama(previous: Seen, now: Seen, between: Sequence[Seen], reusable: int) -> Diagnosis | None:
    """Judge tokens that llama-server had; other engines of one's own are judged by what is common to all."""
    before, after = now.before, previous.after
    slot = previous.held_in
    evidence: dict[str, Any] = {"slot": slot}
    return (
        _restarted(previous, now, after, before, evidence)
        or _cut(previous, now, between, evidence)
        or _generation(previous, now, evidence)
        or _others(previous, now, between, reusable, evidence)
        or _checkpoint(previous, now, evidence)
    )


def unexplained(previous: Seen, now: Seen, between: Sequence[Seen], *, tokens: bool) -> Diagnosis:
    """Say what it was not, and what was not known."""
    counted = now.before is not None and previous.after is not None
    ruled_out = [
        *(["client"] if previous.body is not None and now.body is not None else []),
        *(["template"] if tokens else []),
        *(["server_restarted", "context_shifted"] if counted else []),
        *(["slot_taken"] if counted and not between else []),
    ]
    evidence: dict[str, Any] = {"ruled_out": ruled_out}
    if not counted:
        evidence["not_known"] = ["slots and counters before and after"]
    # a template that rewrites leaves its own head cached; where nothing is, it was not the template
    extends = "client" in ruled_out and (tokens or now.usage.cached_tokens == 0)
    if extends:
        evidence["possible"] = [
            "other traffic on the server",
            *(["the server was started anew, and what was put back is older"] if now.restored else []),
            "a model with a sliding window or a recurrent state (swa_full, ctx_checkpoints may help, and may not)",
        ]
    return Diagnosis("unexplained", "unexplained", "server" if extends else None, None, evidence)


def _made(cause: str, certainty: Certainty, where: str | None, evidence: dict[str, Any], **more: Any) -> Diagnosis:
    return Diagnosis(cause, certainty, "server", where, {**evidence, **more})


def _restarted(
    previous: Seen, now: Seen, after: Counters | None, before: Counters | None, evidence: dict[str, Any]
) -> Diagnosis | None:
    builds = (previous.build, now.build)
    models = (previous.model, now.model)
    cached = now.usage.cached_tokens or 0
    if now.restored and cached < now.restored:  # where all of it was used, it was older than the session: that cost the rest
        # an older one may hold what the prompt has otherwise, though not from its first token on
        sure: Certainty = "confirmed" if not cached or now.restored == previous.kept else "suspected"
        return _made("restored_without_checkpoints", sure, "restore", evidence, restored_tokens=now.restored)
    if None not in builds and builds[0] != builds[1]:
        return _made("server_changed", "confirmed", "build", evidence, was=builds[0], now_is=builds[1])
    if None not in models and models[0] != models[1]:
        return _made("server_changed", "confirmed", "model", evidence, was=models[0], now_is=models[1])
    anew = before is not None and before.tokens == 0  # it has not read the prompt before, so another process did
    if anew or (after is not None and before is not None and before.went_back(after)):
        return _made("server_restarted", "confirmed", "counters", evidence)
    if before is not None and before.slots and set(before.slots) == {None} and previous.kept and before.tokens is None:
        return _made("server_restarted", "suspected", "slots", evidence)  # none has had a conversation yet
    return None


def _cut(previous: Seen, now: Seen, between: Sequence[Seen], evidence: dict[str, Any]) -> Diagnosis | None:
    """The server dropped tokens by itself: in the middle of the answer before, or of this prompt."""
    if now.tokens is not None and now.usage.prompt_tokens is not None and now.usage.prompt_tokens < len(now.tokens):
        return _made("server_truncated", "confirmed", "prompt", evidence, rendered_tokens=len(now.tokens))
    slot, size = previous.held_in, previous.context_size
    held = None if previous.after is None else previous.after.holds(slot)
    shrank = held is not None and previous.kept is not None and 0 < held < previous.kept
    # a slot shifts only when it is full; else it was another's already when it was looked at
    full = not _takers(between, slot) if size is None or previous.kept is None else previous.kept >= size
    if shrank and full:
        sure: Certainty = "suspected" if size is None else "confirmed"
        found = {"held_tokens": held, "written_tokens": previous.kept, "context_size": size}
        return _made("context_shifted", sure, f"slot {slot}", evidence, **found)
    shorter = (now.usage.prompt_tokens or 0) < (previous.usage.prompt_tokens or 0)
    if (
        shorter
        and now.tokens is None
        and previous.body is not None
        and now.body is not None
        and len(now.body) > len(previous.body)
    ):
        return _made("server_truncated", "suspected", "prompt", evidence)
    return None


def _generation(previous: Seen, now: Seen, evidence: dict[str, Any]) -> Diagnosis | None:
    """An engine that keeps the prompts it has read and not what it wrote."""
    prompt, cached, written = previous.usage.prompt_tokens, now.usage.cached_tokens, previous.usage.completion_tokens
    if now.engine == "llama.cpp" or prompt is None or not cached or (written or 0) < 2 * BLOCK:
        return None
    if not prompt - BLOCK < cached <= prompt:
        return None
    return _made(GENERATION, "suspected", "completion", evidence)


def _others(previous: Seen, now: Seen, between: Sequence[Seen], reusable: int, evidence: dict[str, Any]) -> Diagnosis | None:
    """Others that were answered in between: the slot they took, and what the host cache made of it."""
    slot, before, after = previous.held_in, now.before, previous.after
    takers = _takers(between, slot)
    held = None if before is None else before.holds(slot)
    known = before is not None and after is not None and held is not None and previous.kept is not None
    traffic = _traffic(after, before)
    evidence = {**evidence, "others_tokens": traffic, "others": [_name(seen) for seen in takers]}
    if known and held == 0:
        if now.slot is None:
            return _made("evicted", "suspected", f"slot {slot}", evidence)
        sure: Certainty = "confirmed" if traffic or between else "suspected"
        return _made("pinned_empty_slot", sure, f"slot {slot}", {**evidence, "others": [_name(seen) for seen in between]})
    changed = known and held != previous.kept
    if known and not changed:
        # it held as much when the request was sent: another's, by chance as long, or another came in before it
        more = _more_in_slot(now, slot)
        takers = [seen for seen in takers if seen.held_in == slot and (traffic or _answered_while_waiting(seen, now))]
        changed = more is True and (bool(takers) or not _at_checkpoint(previous, now))
        if not changed and not (takers and (traffic or more is None)):
            return None
        evidence["others"] = [_name(seen) for seen in takers]
    elif not (changed or takers or traffic):
        return None
    where = _name(takers[-1]) if takers else f"slot {slot}"
    sure = "confirmed" if changed or (not known and any(seen.held_in == slot is not None for seen in takers)) else "suspected"
    if now.restored:  # a slot that was put back is of more use than what the host cache might have
        return _made("slot_taken", sure, where, evidence)
    host = None if before is None else before.host_cache_mib
    rules = _thresholds(previous, now, takers, between, reusable)
    evidence = {**evidence, "host_cache_mib": host, "thresholds": rules}
    found = _at_checkpoint(previous, now)
    if host != 0 and found and rules.get("shared_with_taker", 0) < (now.usage.cached_tokens or 0):
        # the host cache gave it back, and the memory could not take all of it
        return _made("no_checkpoint", sure if rules else "suspected", "memory", evidence, **found)
    if host != 0 and rules:
        if rules["rule"]:
            return _made("host_cache_rule", sure if host else "suspected", where, evidence)
        if host:
            return _made("evicted", sure, "host cache", evidence)
    return _made("slot_taken", sure, where, evidence)


def _takers(between: Sequence[Seen], slot: int | None) -> list[Seen]:
    """Those that may have been answered in the slot."""
    return [seen for seen in between if slot is None or seen.held_in in (None, slot)]


def _answered_while_waiting(other: Seen, now: Seen) -> bool:
    """Whether another was answered after a request had been sent."""
    answered, ended = other.answered, now.answered
    if answered is None or ended is None or now.elapsed_ms is None:
        return False
    return answered >= ended - timedelta(milliseconds=now.elapsed_ms)


def _more_in_slot(now: Seen, slot: int | None) -> bool | None:
    """Whether the slot answered more than one request between the counts before it and after it; None where that is not known."""
    during, own = _traffic(now.before, now.after), (now.usage.prompt_tokens, now.usage.completion_tokens)
    if during is None or own[0] is None or own[1] is None:
        return None
    if during <= own[0] + own[1]:
        return False
    counts = [None if each is None or each.slots is None else dict(enumerate(each.slots)) for each in (now.before, now.after)]
    if counts[0] is None or counts[1] is None or slot is None:
        return None
    return True if all(counts[0].get(at) == held for at, held in counts[1].items() if at != slot) else None


def _traffic(after: Counters | None, before: Counters | None) -> int | None:
    if after is None or before is None or after.tokens is None or before.tokens is None:
        return None
    return before.tokens - after.tokens


def _name(seen: Seen) -> str:
    return f"session {seen.session}, request {seen.request}" if seen.session is not None else "another request"


def _thresholds(previous: Seen, now: Seen, takers: Sequence[Seen], between: Sequence[Seen], reusable: int) -> dict[str, Any]:
    """The host cache's rules, with the shares they look at; empty where no taker's tokens are known."""
    seen = [each for each in takers if each.tokens is not None and each.kept]
    if not seen or previous.tokens is None or now.tokens is None or not previous.kept:
        return {}
    first, last = seen[0], seen[-1]
    shared = _shared(last, now)
    saving = _shared(previous, first) / previous.kept
    loading = shared / (last.kept or 1)
    entry = reusable / previous.kept
    rule = None
    if saving >= KEPT_BY_SLOT:
        rule = "not saved: the other prompt began with half of the slot or more, so it was cut there"
    elif loading >= KEPT_BY_SLOT:
        rule = "not looked up: the prompt began with half of what the other left in the slot or more"
    elif any(_shared(previous, each) / previous.kept >= KEPT_BY_ENTRY for each in between if each is not first):
        rule = "moved: another prompt began with a quarter of the entry or more, and took it"
    elif entry < KEPT_BY_ENTRY:
        rule = "not loaded: less than a quarter of the entry is of use"
    return {
        "rule": rule,
        "kept_when_taken": round(saving, 4),
        "kept_when_back": round(loading, 4),
        "kept_of_entry": round(entry, 4),
        "shared_with_taker": shared,
    }


def _shared(a: Seen, b: Seen) -> int:
    return 0 if a.tokens is None or b.tokens is None else common_prefix(a.tokens, b.tokens)


def _at_checkpoint(previous: Seen, now: Seen) -> dict[str, Any]:
    """The checkpoint that a count equals, where it does."""
    prompt, cached = previous.usage.prompt_tokens, now.usage.cached_tokens
    if prompt is None or cached is None:
        return {}
    behind = prompt - BEFORE_END - cached
    return {"checkpoint": prompt - BEFORE_END, "cached_tokens": cached} if behind in (0, 1, 512, 513) else {}


def _checkpoint(previous: Seen, now: Seen, evidence: dict[str, Any]) -> Diagnosis | None:
    """The slot held the tokens until the request came, and still they were read: its memory cannot be cut back so far."""
    slot, before = previous.held_in, now.before
    held = None if before is None else before.holds(slot)
    if now.engine != "llama.cpp" or held is None or held != previous.kept:
        return None
    # another may have left as many tokens there, or have come between the count and the request
    alone = (
        _more_in_slot(previous, slot) is not True and not _traffic(previous.after, before) and _more_in_slot(now, slot) is False
    )
    sure: Certainty = "confirmed" if alone else "suspected"
    return _made("no_checkpoint", sure, "memory", evidence, held_tokens=held, **_at_checkpoint(previous, now))
