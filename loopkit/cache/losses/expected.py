"""What a kept contract makes a server's cache hold, and what was lost of it.

Pure arithmetic on token counts. llama.cpp keeps prompt and completion less the last sampled token (upstream's test_slot_save.py:
84 = 21 + 64 - 1), vLLM whole blocks of 16 (its kv_cache_manager), and every engine reads at least one token. Knows nothing of
causes; log lines and timings play no part here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from loopkit.contract.records import Usage

__all__ = ["GENERATION", "READS_ONE", "EngineRule", "Expectation", "estimated_block", "expect", "rule_of"]


class EngineRule(NamedTuple):
    """How an engine keeps tokens."""

    block: int
    "Tokens are kept in whole blocks of this many."
    exact: bool
    "The count after a kept contract is known exactly; else the previous prompt is a lower bound."
    minimum: int = 0
    "A prefix of fewer tokens is never kept."
    break_points: bool = False
    "Kept is what stands before a break point: where it is told what was read from the cache and written to it, these together."


RULES = {
    "llama.cpp": EngineRule(block=1, exact=True),
    "vllm": EngineRule(block=16, exact=True),
    "openai": EngineRule(block=128, exact=False, minimum=1024),
    "anthropic": EngineRule(block=128, exact=False, break_points=True),
}
READS_ONE = {"llama.cpp", "vllm", "sglang"}
"Engines whose source says that they read at least the last token; others may count a whole prompt as cached."
GENERATION = "generation_not_cached"
"The cause that a session is told once: its next requests are not expected to find what was written."
UNKNOWN = EngineRule(block=128, exact=False)


class Expectation(NamedTuple):
    """What should have been cached of a request's prompt, and what was missing."""

    expected_tokens: int | None
    "None where the request before it reported no counts."
    expected_exact: bool
    lost_tokens: int
    "0 where nothing was lost, or nothing can be said."
    shortfall: str | None
    "Why fewer tokens are cached than could be, where that is nobody's fault."


def rule_of(engine: str | None, block: int | None = None) -> EngineRule:
    """The rule of an engine; for an unknown one the widest block in use. With another block than its own: bounds only."""
    rule = RULES.get(engine or "", UNKNOWN)
    return rule if block is None else rule._replace(block=block, exact=False)


def estimated_block(cached: Iterable[int | None]) -> int | None:
    """The block that cached counts are whole multiples of; None where fewer than three different ones are known.

    Examples
    --------
    >>> estimated_block([0, 1648, 6592, None, 4944]), estimated_block([6592, 6592])
    (1648, None)
    """
    known = {count for count in cached if count}
    return math.gcd(*known) if len(known) >= 3 else None


def expect(
    previous: Usage | None,
    now: Usage,
    engine: str | None,
    *,
    epoch: int = 0,
    block: int | None = None,
    completions_kept: bool = True,
) -> Expectation:
    """Compare what was cached with what a kept contract gives.

    Parameters
    ----------
    previous : Usage or None
        Of the request before this one in the same epoch; None for the first.
    now : Usage
        Of this request.
    engine : str or None
        ``"llama.cpp"``, ``"vllm"``, … or None where not known.
    epoch : int
        The epoch's number; names the reason of a first request.
    block : int, optional
        Tokens that the engine keeps together, where that is given or estimated.
    completions_kept : bool
        False where a loss of the same session showed that the engine keeps prompts and not what it wrote: then only the previous
        prompt can be lost, and what was written is a shortfall.

    Returns
    -------
    Expectation
        ``expected = min(P' + G' - 1, P - 1)``, in whole blocks, where P' and G' are the previous prompt and completion and P is
        this prompt; without an exact rule P' takes the place of ``P' + G' - 1`` and is a lower bound. Of an engine with break
        points it is what the previous request read from the cache and wrote to it.

    Examples
    --------
    >>> first, second = Usage(prompt_tokens=1258, completion_tokens=40), Usage(prompt_tokens=1323, cached_tokens=1297)
    >>> expect(first, second, "llama.cpp")
    Expectation(expected_tokens=1297, expected_exact=True, lost_tokens=0, shortfall=None)
    >>> expect(first, Usage(prompt_tokens=1335, cached_tokens=10), "llama.cpp").lost_tokens
    1287
    >>> expect(first, Usage(prompt_tokens=1323), "llama.cpp").lost_tokens       # not reported is not zero
    0
    """
    if previous is None:
        return Expectation(0, expected_exact=True, lost_tokens=0, shortfall="epoch_started" if epoch else "first_request")
    size, exact, minimum, break_points = rule_of(engine, block)
    if previous.prompt_tokens is None or now.prompt_tokens is None:
        return Expectation(None, expected_exact=False, lost_tokens=0, shortfall=None)
    if break_points and previous.cached_tokens is not None and previous.cache_write_tokens is not None:
        size, exact, kept = 1, True, previous.cached_tokens + previous.cache_write_tokens
    else:
        exact = exact and previous.completion_tokens is not None
        kept = previous.prompt_tokens + max(0, (previous.completion_tokens or 0) - 1) if exact else previous.prompt_tokens
    at_most = max(0, now.prompt_tokens - 1)
    whole = min(kept, at_most) // size * size
    expected = whole if completions_kept else min(whole, previous.prompt_tokens // size * size)
    if expected < minimum:
        return Expectation(0, expected_exact=exact, lost_tokens=0, shortfall="below_minimum" if now.cached_tokens == 0 else None)
    if now.cached_tokens is None:
        return Expectation(expected, expected_exact=exact, lost_tokens=0, shortfall=None)
    missing = max(0, expected - now.cached_tokens)
    lost = missing if exact or missing >= 2 * size else 0
    shortfall = None
    if not lost and now.cached_tokens < kept:
        shortfall = "last_token" if min(kept, at_most) == now.cached_tokens else "granularity"
        if now.cached_tokens < whole and not completions_kept:
            shortfall = GENERATION
    return Expectation(expected, expected_exact=exact, lost_tokens=lost, shortfall=shortfall)
