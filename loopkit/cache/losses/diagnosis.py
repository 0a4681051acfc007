"""What a judgement of a loss says: `Diagnosis`."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

__all__ = ["Diagnosis"]


class Diagnosis(NamedTuple):
    """A cause, how sure it is, and who could mend it."""

    cause: str
    certainty: Literal["confirmed", "suspected", "unexplained"]
    fixable_by: Literal["client", "template", "server", "provider", "nobody"] | None
    location: str | None
    "The member, message or event that the evidence points at."
    evidence: dict[str, Any]
    "What can be checked."
