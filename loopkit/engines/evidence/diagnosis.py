"""The result of diagnosing a cache loss: `Diagnosis`."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

__all__ = ["Certainty", "Diagnosis", "FixableBy", "server_loss"]

Certainty: TypeAlias = Literal["confirmed", "suspected", "unexplained"]
FixableBy: TypeAlias = Literal["client", "template", "server", "provider", "nobody"]


class Diagnosis(NamedTuple):
    """The cause of a cache loss, its certainty, and who can fix it."""

    cause: str
    "The cause, such as ``system_changed``."
    certainty: Certainty
    "``confirmed`` by bytes, tokens or counters; ``suspected``; or ``unexplained``."
    fixable_by: FixableBy | None
    "Who can fix it; None if unknown."
    location: str | None
    "The member, message or event that the evidence points to."
    evidence: dict[str, Any]
    "Facts that can be checked."


def server_loss(cause: str, certainty: Certainty, location: str | None, evidence: dict[str, Any], **more: Any) -> Diagnosis:
    """Return a diagnosis that the server's operator can fix."""
    return Diagnosis(cause, certainty, "server", location, {**evidence, **more})
