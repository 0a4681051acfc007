"""`expect`: tokens that should have been cached, tokens that were lost, and the reasons of harmless shortfalls.

Losses are found from token counts alone. Each engine in :mod:`loopkit.engines` says how many tokens it keeps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from loopkit import engines
from loopkit.contract.records import Usage
from loopkit.engines.rules.own_server import GENERATION

__all__ = ["Expectation", "estimated_block", "expect"]


class Expectation(NamedTuple):
    """How many tokens of a prompt should have been cached, and how many were lost."""

    expected_tokens: int | None
    "Tokens that should have been cached; None if the prompt tokens of one of the two requests are unknown."
    expected_exact: bool
    "True if `expected_tokens` is exact, False if it is a lower bound."
    lost_tokens: int
    "Expected tokens that were not cached. It is also 0 if this is unknown."
    shortfall: str | None
    "Reason why some tokens are not cached although nothing was lost, such as ``granularity``; None if there is no such reason."


def estimated_block(cached: Iterable[int | None]) -> int | None:
    """Estimate the block size as the greatest common divisor of cached token counts.

    Return None if the counts have fewer than three different values, without zeros and unknown counts.

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
    """Return how many tokens of a request should have been cached, and how many of them were lost.

    Parameters
    ----------
    previous : Usage or None
        Usage of the previous request in the epoch; None for the first request.
    now : Usage
        Usage of this request.
    engine : str or None
        Name of the engine, such as ``"llama.cpp"``; None if unknown.
    epoch : int
        Number of the epoch, from 0. It chooses the reason for a first request: ``first_request`` or ``epoch_started``.
    block : int, optional
        Block size in tokens, if it is known or estimated.
    completions_kept : bool
        False if an earlier loss of the session showed that the engine keeps prompts but not completions. Then only tokens of the
        previous prompt can be lost, and `Expectation.shortfall` says if completion tokens are missing.

    Returns
    -------
    Expectation
        The expected tokens are ``min(P' + G' - 1, P - 1)``, rounded down to whole blocks. P' and G' are the numbers of tokens of
        the previous prompt and its completion, and P is the number of tokens of this prompt. If the engine has no exact rule, P'
        replaces ``P' + G' - 1``, and the result is a lower bound. For Anthropic, the tokens that the previous request read from
        the cache or wrote to it replace ``P' + G' - 1``.

    Examples
    --------
    >>> first, second = Usage(prompt_tokens=1258, completion_tokens=40), Usage(prompt_tokens=1323, cached_tokens=1297)
    >>> expect(first, second, "llama.cpp")
    Expectation(expected_tokens=1297, expected_exact=True, lost_tokens=0, shortfall=None)
    >>> expect(first, Usage(prompt_tokens=1335, cached_tokens=10), "llama.cpp").lost_tokens
    1287
    >>> expect(first, Usage(prompt_tokens=1323), "llama.cpp").lost_tokens       # unknown, not zero
    0
    """
    if previous is None:
        return Expectation(0, expected_exact=True, lost_tokens=0, shortfall="epoch_started" if epoch else "first_request")
    rule = engines.find(engine)
    if previous.prompt_tokens is None or now.prompt_tokens is None:
        return Expectation(None, expected_exact=False, lost_tokens=0, shortfall=None)
    kept, size, exact = rule.kept(previous, block)
    at_most = max(0, now.prompt_tokens - 1)
    whole = min(kept, at_most) // size * size
    expected = whole if completions_kept else min(whole, previous.prompt_tokens // size * size)
    if expected < rule.minimum:
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
