"""All cache losses of a log with their causes, and how much of the log could be diagnosed: `diagnose`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from loopkit.cache.losses.cause_texts import advice, because
from loopkit.cache.losses.judge import expected_of, judge, rendered_of
from loopkit.engines.evidence.diagnosis import Diagnosis
from loopkit.engines.evidence.observation import Observation
from loopkit.engines.rules.own_server import GENERATION
from loopkit.reprs import Card, counted

__all__ = ["Coverage", "Findings", "Loss", "diagnose"]


class Loss(NamedTuple):
    """A cache loss: one request that found fewer tokens in the cache than expected, and why."""

    observation: Observation
    "The request that lost tokens."
    expected_tokens: int
    "Tokens that should have been cached."
    reusable_tokens: int | None
    "Number of leading tokens in common with the previous prompt and completion; None if unknown."
    cached_tokens: int
    "Tokens that were cached, as the server reported."
    lost_tokens: int
    "Expected tokens that were not cached."
    diagnosis: Diagnosis
    "The cause, its certainty, who can fix it, and the evidence."
    first: bool
    "False if the loss repeats the previous one of its epoch: same cause and location, and no request without a loss in between."


class HasDiagnose(Protocol):
    """An object with a ``diagnose`` method, such as ``Logs``."""

    def diagnose(self) -> Findings: ...


class Coverage(NamedTuple):
    """How much of a log could be diagnosed. Shares from 0 to 1; None if there are no requests, or no lost tokens."""

    with_usage: float | None
    "Share of requests whose cached tokens the server reported."
    rendered_exactly: float | None
    "Share of requests whose prompt is known as tokens, in the number that the server reported."
    with_a_cause: float | None
    "Share of the lost tokens whose cause was found."


@dataclass(frozen=True, slots=True, repr=False)
class Findings:
    """Result of `diagnose`: all losses with their causes. Its ``str`` adds advice for each cause."""

    losses: tuple[Loss, ...]
    "All losses, in the order of the requests."
    requests: int
    "Number of requests that were examined."
    coverage: Coverage
    "How much of the log could be diagnosed."

    @property
    def events(self) -> tuple[Loss, ...]:
        """The losses without repetitions: those whose `Loss.first` is True."""
        return tuple(loss for loss in self.losses if loss.first)

    def _lost(self) -> dict[str, int]:
        """Return the lost tokens of each cause, the most expensive cause first."""
        lost: dict[str, int] = {}
        for loss in self.losses:
            lost[loss.diagnosis.cause] = lost.get(loss.diagnosis.cause, 0) + loss.lost_tokens
        return dict(sorted(lost.items(), key=lambda cause: -cause[1]))

    def _card(self) -> Card:
        lost = self._lost()
        causes = list(lost)
        facts = [(cause, counted(lost[cause], "token")) for cause in causes]
        losses = counted(len(self.losses), "loss", "losses")
        names = ("with usage", "rendered exactly", "lost with a cause")
        facts += [(name, "?" if share is None else f"{share:.0%}") for name, share in zip(names, self.coverage, strict=True)]
        return Card(f"{losses} in {counted(self.requests, 'request')}", facts, spare=causes[:0:-1])

    def __repr__(self) -> str:
        return self._card().text()

    def __str__(self) -> str:
        lines = [self._card().whole()]
        for cause, tokens in self._lost().items():
            lines.append(f"{counted(tokens, 'token')} lost {because(cause)} ({cause})")
            lines += [f"  What to do: {advice(cause)}"] if advice(cause) else []
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return self._card().html()


def diagnose(requests: Iterable[Observation] | HasDiagnose, *, block: int | None = None) -> Findings:
    """Find every cache loss in requests or logs, and the cause of each.

    Parameters
    ----------
    requests : Logs, or iterable of Observation
        The requests, oldest first, from any number of sessions. `observations` returns those of a session. Requests of other
        sessions on the same server are taken into account: they may have used the slot or filled the cache.
    block : int, optional
        Block size of the engine in tokens, if it is known. It is ignored for ``Logs``.

    Returns
    -------
    Findings
        All losses with their causes, and how much could be diagnosed. Its ``str`` includes advice.

    Examples
    --------
    >>> from loopkit.contract.records import Usage
    >>> first, second = Usage(prompt_tokens=2000, completion_tokens=10), Usage(prompt_tokens=2100, cached_tokens=0)
    >>> bodies = b'{"messages":[{}]}', b'{"messages":[{},{}]}'
    >>> diagnose(Observation(usage=usage, body=body, engine="llama.cpp") for usage, body in zip((first, second), bodies))
    1 loss in 2 requests: unexplained 2,009 tokens, with usage 50%, rendered exactly 0%, lost with a cause 0%
    """
    if not isinstance(requests, Iterable):
        return requests.diagnose()
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


def _coverage(every: list[Observation], losses: list[Loss]) -> Coverage:
    exact = [
        each.rendered is not None or (each.tokens is not None and len(each.tokens) == each.usage.prompt_tokens) for each in every
    ]
    lost = sum(loss.lost_tokens for loss in losses)
    named = sum(loss.lost_tokens for loss in losses if loss.diagnosis.cause != "unexplained")
    return Coverage(
        sum(each.usage.cached_tokens is not None for each in every) / len(every) if every else None,
        sum(exact) / len(every) if every else None,
        named / lost if lost else None,
    )
