"""Every loss of any log, and its cause: `diagnose`, over requests of one session or of many, live or long afterwards.

Says which requests lost, what `judge` makes of each, and how much of the log could be judged at all. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from loopkit.cache.losses.diagnosis import Diagnosis
from loopkit.cache.losses.expected import GENERATION
from loopkit.cache.losses.judge import expected_of, judge, rendered_of
from loopkit.cache.losses.observation import Seen
from loopkit.reprs import Card, counted

__all__ = ["Coverage", "Findings", "Loss", "diagnose"]


class Loss(NamedTuple):
    """Tokens that one request should have found in the cache, and why it did not."""

    seen: Seen
    expected_tokens: int
    reusable_tokens: int | None
    cached_tokens: int
    lost_tokens: int
    diagnosis: Diagnosis
    first: bool
    "False where the loss before it has the same cause and place, and no healthy read came between: one event, not two."


class Coverage(NamedTuple):
    """How much could be judged, as shares; None where there is nothing to take a share of."""

    with_usage: float | None
    "Requests whose cached tokens were reported."
    rendered_exactly: float | None
    "Requests whose prompt's tokens are known, as many as the server counted."
    with_a_cause: float | None
    "Lost tokens whose cause is named."


@dataclass(frozen=True, slots=True, repr=False)
class Findings:
    """What `diagnose` found."""

    losses: tuple[Loss, ...]
    requests: int
    coverage: Coverage

    @property
    def events(self) -> tuple[Loss, ...]:
        """The losses, each event once."""
        return tuple(loss for loss in self.losses if loss.first)

    def _card(self) -> Card:
        lost: dict[str, int] = {}
        for loss in self.losses:
            lost[loss.diagnosis.cause] = lost.get(loss.diagnosis.cause, 0) + loss.lost_tokens
        causes = sorted(lost, key=lambda cause: -lost[cause])
        facts = [(cause, counted(lost[cause], "token")) for cause in causes]
        losses = counted(len(self.losses), "loss", "losses")
        names = ("with usage", "rendered exactly", "lost with a cause")
        facts += [(name, "?" if share is None else f"{share:.0%}") for name, share in zip(names, self.coverage, strict=True)]
        return Card(f"{losses} in {counted(self.requests, 'request')}", facts, spare=causes[:0:-1])

    def __repr__(self) -> str:
        return self._card().text()

    def __str__(self) -> str:
        return self._card().whole()

    def _repr_html_(self) -> str:
        return self._card().html()


def diagnose(requests: Iterable[Seen], *, block: int | None = None) -> Findings:
    """Find every loss, and say why.

    Parameters
    ----------
    requests : iterable of Seen
        Oldest first, of any number of sessions; `seen_in` gives those of a session. Of what two sessions have at one server,
        each is the other's traffic.
    block : int, optional
        Tokens that the engine keeps together, as `expect` takes it.

    Returns
    -------
    Findings

    Examples
    --------
    >>> from loopkit.contract.records import Usage
    >>> first, second = Usage(prompt_tokens=2000, completion_tokens=10), Usage(prompt_tokens=2100, cached_tokens=0)
    >>> bodies = b'{"messages":[{}]}', b'{"messages":[{},{}]}'
    >>> diagnose(Seen(usage=usage, body=body, engine="llama.cpp") for usage, body in zip((first, second), bodies))
    1 loss in 2 requests: unexplained 2,009 tokens, with usage 50%, rendered exactly 0%, lost with a cause 0%
    """
    every = list(requests)
    latest: dict[tuple[str | None, int], int] = {}
    unhealthy: dict[tuple[str | None, int], tuple[str, str | None]] = {}
    prompts_alone: set[str | None] = set()
    losses: list[Loss] = []
    for at, now in enumerate(every):
        whose = (now.session, now.epoch)
        place = latest.get(whose)
        latest[whose] = at
        previous = None if place is None else every[place]
        expected = expected_of(previous, now, block, completions_kept=now.session not in prompts_alone)
        if not expected.lost_tokens or previous is None or place is None:
            if now.usage.cached_tokens is not None:
                unhealthy.pop(whose, None)
            continue
        others = [each for each in every[place + 1 : at] if each.server == now.server]
        found = judge(previous, now, others, expectation=expected)
        if found.cause == GENERATION:
            prompts_alone.add(now.session)
        event = (found.cause, found.location)
        rendered = rendered_of(previous, now)
        losses.append(
            Loss(
                now,
                expected.expected_tokens or 0,
                None if rendered is None else rendered.reusable,
                now.usage.cached_tokens or 0,
                expected.lost_tokens,
                found,
                first=unhealthy.get(whose) != event,
            )
        )
        unhealthy[whose] = event
    return Findings(tuple(losses), len(every), _coverage(every, losses))


def _coverage(every: list[Seen], losses: list[Loss]) -> Coverage:
    exact = [
        seen.rendered is not None or (seen.tokens is not None and len(seen.tokens) == seen.usage.prompt_tokens) for seen in every
    ]
    lost = sum(loss.lost_tokens for loss in losses)
    named = sum(loss.lost_tokens for loss in losses if loss.diagnosis.cause != "unexplained")
    return Coverage(
        sum(seen.usage.cached_tokens is not None for seen in every) / len(every) if every else None,
        sum(exact) / len(every) if every else None,
        named / lost if lost else None,
    )
