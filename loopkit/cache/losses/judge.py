"""Deciding the cause of one cache loss, from what was recorded of two requests and those between them.

The rules follow the way of a request: first the bytes that the client sent, then the tokens that the chat template made of them,
then the engine (:mod:`loopkit.engines`). If a loss has two parts with different causes, the larger part gives the cause. The
other cause is in ``evidence["also"]``. The result is the same during a session and later from the log.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Raw

from loopkit import engines
from loopkit.cache.losses.expected import Expectation, expect
from loopkit.cache.losses.token_comparison import TokenComparison, compare
from loopkit.cache.prefixes.divergence import Divergence, divergence
from loopkit.encoding import decode
from loopkit.engines.evidence.diagnosis import Diagnosis
from loopkit.engines.evidence.observation import Observation

__all__ = ["Diagnosis", "expected_of", "judge", "rendered_of"]

ROUTING: Final = {"id_slot", "cache_prompt", "n_cache_reuse", "prompt_cache_key", "lora", "service_tier"}
"Members of a body that are not part of the prompt, but choose the slot, machine or cache, and so change what is cached."

_MESSAGE = re.compile(r"(messages|input)\[(\d+)\]")


def expected_of(
    previous: Observation | None, now: Observation, block: int | None = None, *, completions_kept: bool = True
) -> Expectation:
    """Return the expected and lost tokens of `now`, given the previous request of the epoch; see `expect`."""
    usage = None if previous is None else previous.usage
    return expect(usage, now.usage, now.engine, epoch=now.epoch, block=block, completions_kept=completions_kept)


def rendered_of(previous: Observation, now: Observation) -> TokenComparison | None:
    """Return the token comparison of `now` with `previous`: the recorded one, or a new one. None if tokens are unknown."""
    if now.rendered is not None or previous.tokens is None or now.tokens is None:
        return now.rendered
    return compare(previous.tokens, now.tokens, previous.usage, now.body)


def judge(
    previous: Observation | None, now: Observation, between: Sequence[Observation] = (), *, expectation: Expectation | None = None
) -> Diagnosis:
    """Return why a request found fewer tokens in the cache than expected.

    Parameters
    ----------
    previous : Observation or None
        The previous request of the epoch; None for the first.
    now : Observation
        The request that found too few tokens in the cache.
    between : sequence of Observation
        Other requests that the same server answered between the two, oldest first.
    expectation : Expectation, optional
        The result of `expected_of`, if it is already known. Otherwise it is computed.

    Returns
    -------
    Diagnosis
        The cause. For a first request or a harmless shortfall, ``fixable_by`` is ``nobody``. If no rule fits, the cause is
        ``unexplained``.

    Examples
    --------
    >>> from loopkit.contract.records import Usage
    >>> first = b'{"messages":[{"role":"system","content":"It is 07:31."},{"role":"user","content":"Hi"}]}'
    >>> before = Observation(usage=Usage(prompt_tokens=90, completion_tokens=11), body=first, engine="llama.cpp")
    >>> second = first.replace(b"31", b"32")
    >>> after = Observation(usage=Usage(prompt_tokens=120, cached_tokens=10), body=second, engine="llama.cpp")
    >>> found = judge(before, after)
    >>> found.cause, found.certainty, found.fixable_by, found.location, found.evidence["culprit"]
    ('system_changed', 'confirmed', 'client', 'messages[0].content', 'time')
    """
    if previous is None:
        cause = "epoch_started" if now.epoch else "first_request"
        return Diagnosis(cause, "confirmed", "nobody", None, {})
    expectation = expectation or expected_of(previous, now)
    expected, cached = expectation.expected_tokens or 0, now.usage.cached_tokens or 0
    counts = _counts(previous, now)
    if expectation.shortfall is not None:
        return Diagnosis(expectation.shortfall, "confirmed", "nobody", None, counts)
    rendered = rendered_of(previous, now)
    parted = None if previous.body is None or now.body is None else divergence(previous.body, now.body)
    reusable = expected if rendered is None else min(rendered.reusable, expected)
    parts: list[tuple[int, Diagnosis]] = []
    if rendered is None and parted is not None and parted.in_prompt:
        # The tokens are unknown, so the first difference in bytes is taken as the cause of the whole loss.
        parts.append((expected - cached, _client(parted, previous.body or b"")))
    else:
        if expected > reusable and rendered is not None:
            before = _client(parted, previous.body or b"") if parted is not None and parted.in_prompt else _template(rendered)
            parts.append((expected - reusable, before))
        if reusable > cached:
            parts.append((reusable - cached, _server(previous, now, between, reusable, parted, tokens=rendered is not None)))
    parts = [part for part in parts if part[0] > 0]
    if not parts:
        return Diagnosis("unexplained", "unexplained", None, None, {**counts, **recorded(previous, now, rendered)})
    parts.sort(key=lambda part: -part[0])  # the sort is stable: if both parts are equal, the client's comes first
    found = parts[0][1]
    evidence: dict[str, Any] = {**counts, **found.evidence}
    if len(parts) > 1:
        lost, other = parts[1]
        evidence["also"] = {**other._asdict(), "lost_tokens": lost}
    evidence.update(recorded(previous, now, rendered))
    return engines.verdict(now.verdict, found._replace(evidence=evidence))


def _counts(previous: Observation, now: Observation) -> dict[str, Any]:
    return {
        "previous_prompt_tokens": previous.usage.prompt_tokens,
        "previous_completion_tokens": previous.usage.completion_tokens,
        "prompt_tokens": now.usage.prompt_tokens,
        "cached_tokens": now.usage.cached_tokens,
    }


def recorded(previous: Observation, now: Observation, rendered: TokenComparison | None) -> dict[str, Any]:
    """Return the counters, token comparison and restored tokens as a dict for the evidence.

    Another process needs these facts to diagnose the loss again. `observations` reads them from the log.
    """
    facts: dict[str, Any] = {"counters": {"previous": previous.counters(), "now": now.counters()}}
    if rendered is not None:
        facts["rendered"] = rendered._asdict()
    if now.restored is not None:
        facts["restored_tokens"] = now.restored
    return facts


def _client(parted: Divergence, body: bytes) -> Diagnosis:
    member = parted.member
    name = member.partition("[")[0].partition(".")[0]
    if name in ("messages", "input"):
        cause = "system_changed" if _role(body, member) in ("system", "developer") else "history_changed"
    else:
        causes = {
            "system": "system_changed",
            "instructions": "system_changed",
            "tools": "tools_changed",
            "model": "model_changed",
        }
        cause = causes.get(name, "options_changed")
    evidence = {
        "byte": parted.b.offset,
        "previous_byte": parted.a.offset,
        "culprit": parted.culprit,
        "before": parted.a.before,
        "was": parted.a.changed + parted.a.after,
        "now": parted.b.changed + parted.b.after,
    }
    return Diagnosis(cause, "confirmed", "client", member, evidence)


def _role(body: bytes, member: str) -> str | None:
    """Return the role of the message that a path such as ``messages[3].content`` belongs to; None if there is none."""
    found = _MESSAGE.match(member)
    try:
        items = decode(decode(body, dict[str, Raw])[found[1]], list[dict[str, Any]]) if found else []
        return items[int(found[2])].get("role") if found and int(found[2]) < len(items) else None
    except (ValueError, KeyError):  # a body that is not JSON has no roles
        return None


def _template(rendered: TokenComparison) -> Diagnosis:
    evidence = {"token": rendered.token, "how": rendered.how, "was": rendered.was, "now": rendered.now}
    if rendered.how == "retokenised":
        return Diagnosis("retokenised", "suspected", "template", rendered.where, evidence)
    return Diagnosis("template_rewrote", "confirmed", "template", rendered.where, evidence)


def _server(
    previous: Observation,
    now: Observation,
    between: Sequence[Observation],
    reusable: int,
    parted: Divergence | None,
    *,
    tokens: bool,
) -> Diagnosis:
    """Diagnose a loss of tokens that were sent unchanged.

    If the prompt's tokens are unknown (`tokens` is False), the template may be the cause of the loss. Causes that it could be
    mistaken for are then only ``suspected``.
    """
    if parted is not None and not parted.in_prompt and parted.member.partition(".")[0] in ROUTING:
        return _client(parted, previous.body or b"")
    found = engines.find(now.engine).diagnose(previous, now, between, reusable)
    if found is None:
        return _unexplained(previous, now, between, tokens=tokens)
    if (
        not tokens
        and found.certainty == "confirmed"
        and found.cause in ("slot_taken", "host_cache_rule", "evicted", "no_checkpoint")
    ):
        return found._replace(certainty="suspected")
    return found


def _unexplained(previous: Observation, now: Observation, between: Sequence[Observation], *, tokens: bool) -> Diagnosis:
    """Return the diagnosis ``unexplained``, with the causes that were ruled out and the missing facts as evidence."""
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
    # If a template rewrites messages, the start of the prompt stays cached. If nothing is cached, it was not the template.
    extends = "client" in ruled_out and (tokens or now.usage.cached_tokens == 0)
    if extends:
        evidence["possible"] = [
            "other traffic on the server",
            *(["the server was restarted, and the restored file is older"] if now.restored else []),
            "a model with a sliding window or a recurrent state (swa_full or ctx_checkpoints may help)",
        ]
    return Diagnosis("unexplained", "unexplained", "server" if extends else None, None, evidence)
