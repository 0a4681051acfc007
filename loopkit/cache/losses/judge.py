"""Why a cache was lost: one loss, judged by what was recorded of two requests and of those in between.

The order is that of a request's way: the client's bytes, the template's tokens, the server, the provider. Each part of a loss is
judged by itself; the larger one names it, and the other stands in ``evidence["also"]``. Pure: `judge` is the same live and on a
log. What the rules of a server explain is in ``held``, what those of a provider do in ``hosted``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Raw

from loopkit.cache.losses.diagnosis import Diagnosis
from loopkit.cache.losses.expected import Expectation, expect
from loopkit.cache.losses.held import at_llama, unexplained
from loopkit.cache.losses.hosted import HOSTED, at_provider, with_verdict
from loopkit.cache.losses.observation import Seen
from loopkit.cache.losses.token_comparison import Rendered, compare
from loopkit.cache.prefixes.divergence import Divergence, divergence
from loopkit.encoding import decode

__all__ = ["Diagnosis", "expected_of", "judge", "rendered_of"]

ROUTING: Final = {"id_slot", "cache_prompt", "n_cache_reuse", "prompt_cache_key", "lora", "service_tier"}
"Members of a body that no template reads, and that still decide what is cached."

_MESSAGE = re.compile(r"(messages|input)\[(\d+)\]")


def expected_of(previous: Seen | None, now: Seen, block: int | None = None, *, completions_kept: bool = True) -> Expectation:
    """What a kept contract makes of two requests."""
    usage = None if previous is None else previous.usage
    return expect(usage, now.usage, now.engine, epoch=now.epoch, block=block, completions_kept=completions_kept)


def rendered_of(previous: Seen, now: Seen) -> Rendered | None:
    """How the tokens of one request go on from the other's; None where they cannot be seen."""
    if now.rendered is not None or previous.tokens is None or now.tokens is None:
        return now.rendered
    return compare(previous.tokens, now.tokens, previous.usage, now.body)


def judge(previous: Seen | None, now: Seen, between: Sequence[Seen] = (), *, expectation: Expectation | None = None) -> Diagnosis:
    """Say why a request found less in the cache than it could have.

    Parameters
    ----------
    previous : Seen or None
        The request before it in the same epoch; None for the first.
    now : Seen
        The request that lost its cache.
    between : sequence of Seen
        Other requests that the same server is known to have answered since the previous one, oldest first.
    expectation : Expectation, optional
        What should have been cached, where that is known already.

    Returns
    -------
    Diagnosis

    Examples
    --------
    >>> from loopkit.contract.records import Usage
    >>> first = b'{"messages":[{"role":"system","content":"It is 07:31."},{"role":"user","content":"Hi"}]}'
    >>> before = Seen(usage=Usage(prompt_tokens=90, completion_tokens=11), body=first, engine="llama.cpp")
    >>> after = Seen(usage=Usage(prompt_tokens=120, cached_tokens=10), body=first.replace(b"31", b"32"), engine="llama.cpp")
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
        # how far the tokens agree is not known: bytes alone say it
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
    parts.sort(key=lambda part: -part[0])  # stable: of two halves the one nearer to the client
    found = parts[0][1]
    evidence: dict[str, Any] = {**counts, **found.evidence}
    if len(parts) > 1:
        lost, other = parts[1]
        evidence["also"] = {**other._asdict(), "lost_tokens": lost}
    evidence.update(recorded(previous, now, rendered))
    return with_verdict(now.verdict, found._replace(evidence=evidence))


def _counts(previous: Seen, now: Seen) -> dict[str, Any]:
    return {
        "previous_prompt_tokens": previous.usage.prompt_tokens,
        "previous_completion_tokens": previous.usage.completion_tokens,
        "prompt_tokens": now.usage.prompt_tokens,
        "cached_tokens": now.usage.cached_tokens,
    }


def recorded(previous: Seen, now: Seen, rendered: Rendered | None) -> dict[str, Any]:
    """What another process needs, beside log and bodies, to judge again; `loopkit.cache.losses.observation.seen_in` reads it."""
    facts: dict[str, Any] = {"counters": {"previous": previous.counted(), "now": now.counted()}}
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
    """The role of the message that a member belongs to."""
    found = _MESSAGE.match(member)
    try:
        items = decode(decode(body, dict[str, Raw])[found[1]], list[dict[str, Any]]) if found else []
        return items[int(found[2])].get("role") if found and int(found[2]) < len(items) else None
    except (ValueError, KeyError):  # bodies that are no JSON are compared all the same
        return None


def _template(rendered: Rendered) -> Diagnosis:
    evidence = {"token": rendered.token, "how": rendered.how, "was": rendered.was, "now": rendered.now}
    if rendered.how == "retokenised":
        return Diagnosis("retokenised", "suspected", "template", rendered.where, evidence)
    return Diagnosis("template_rewrote", "confirmed", "template", rendered.where, evidence)


def _server(
    previous: Seen, now: Seen, between: Sequence[Seen], reusable: int, parted: Divergence | None, *, tokens: bool
) -> Diagnosis:
    """Who took what the tokens alone do not explain; without tokens nothing but bytes rules out the template."""
    if parted is not None and not parted.in_prompt and parted.member.partition(".")[0] in ROUTING:
        return _client(parted, previous.body or b"")
    found = (at_provider if now.engine in HOSTED else at_llama)(previous, now, between, reusable)
    if found is None:
        return unexplained(previous, now, between, tokens=tokens)
    if (
        not tokens
        and found.certainty == "confirmed"
        and found.cause in ("slot_taken", "host_cache_rule", "evicted", "no_checkpoint")
    ):
        return found._replace(certainty="suspected")
    return found
