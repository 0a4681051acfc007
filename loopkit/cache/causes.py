"""Why a cache was lost. So far every loss is ``unexplained``, with the counts that show it: a guess is worse than none.

Pure: takes what was recorded, gives a diagnosis; the loop and the replay write it down.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from loopkit.records import Usage

__all__ = ["Diagnosis", "diagnose"]


class Diagnosis(NamedTuple):
    """A cause, how sure it is, and who could mend it."""

    cause: str
    certainty: Literal["confirmed", "suspected", "unexplained"]
    mendable_by: Literal["client", "template", "server", "provider", "nobody"] | None
    where: str | None
    "The member, message or event that the evidence points at."
    evidence: dict[str, Any]
    "What can be checked."


def diagnose(previous: Usage, now: Usage) -> Diagnosis:
    """Say why tokens were read again.

    Parameters
    ----------
    previous, now : Usage
        Of the request before, and of the one that lost its cache.

    Returns
    -------
    Diagnosis
        ``unexplained``, with the counts.

    Examples
    --------
    >>> diagnose(Usage(prompt_tokens=90, completion_tokens=11), Usage(prompt_tokens=120, cached_tokens=10)).cause
    'unexplained'
    """
    evidence = {
        "previous_prompt_tokens": previous.prompt_tokens,
        "previous_completion_tokens": previous.completion_tokens,
        "prompt_tokens": now.prompt_tokens,
        "cached_tokens": now.cached_tokens,
    }
    return Diagnosis("unexplained", "unexplained", None, None, evidence)
