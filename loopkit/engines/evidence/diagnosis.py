"""The result of diagnosing a cache loss: `Diagnosis`."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

__all__ = ["Certainty", "Diagnosis", "FixableBy", "server_loss"]

Certainty: TypeAlias = Literal["confirmed", "suspected", "unexplained"]
FixableBy: TypeAlias = Literal["client", "template", "server", "provider", "nobody"]


class Diagnosis(NamedTuple):
    """The cause of a cache loss, its certainty, and who can fix it."""

    cause: str
    "Name of the cause, such as ``system_changed``. `loopkit.cache.losses.cause_texts.CAUSES` explains each."
    certainty: Certainty
    "``confirmed``: bytes, tokens or counters show the cause. ``suspected``: it fits the facts. ``unexplained``: none was found."
    fixable_by: FixableBy | None
    "Who can fix the cause; None if unknown. ``template`` is the author of the chat template."
    location: str | None
    "Where the cause is: a member of the body, a slot or a request, such as ``messages[3].content``; None if unknown."
    evidence: dict[str, Any]
    "The facts behind the diagnosis, such as token counts and both versions of a changed text."


def server_loss(cause: str, certainty: Certainty, location: str | None, evidence: dict[str, Any], **more: Any) -> Diagnosis:
    """Return a diagnosis with ``fixable_by`` set to ``server``. The keywords `more` are added to the evidence."""
    return Diagnosis(cause, certainty, "server", location, {**evidence, **more})
