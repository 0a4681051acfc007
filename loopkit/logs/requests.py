"""The requests of loaded logs: as prompts for `loopkit.cache`, and diagnosed across all loaded sessions.

Request bodies are rebuilt one at a time, when they are needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from loopkit.cache.losses.findings import Coverage, Findings, Loss, diagnose
from loopkit.cache.losses.judge import expected_of
from loopkit.cache.prefixes.prompt_parts import Prompt
from loopkit.contract.records import Usage
from loopkit.encoding import decode
from loopkit.engines.evidence.diagnosis import Diagnosis
from loopkit.engines.evidence.observation import Observation
from loopkit.errors import BaselineError, SessionIOError, TornLog
from loopkit.logs.frames.columns import Part
from loopkit.logs.parts import without_replays

__all__ = ["diagnose_parts", "number_at", "prompts"]

UNEXPLAINED = "unexplained"
DOUBTED = (UNEXPLAINED, "context_shifted", "no_checkpoint")
"Causes that may be wrong if only one session is known: another session may have used its slot."
COUNTS = ("expected", "reusable", "cached", "lost")


def prompts(parts: Iterable[Part]) -> Iterator[Prompt]:
    """Yield the prompt of each request. Requests for which the log has only token counts are left out."""
    for part in parts:
        for at, known in enumerate(() if part.requests is None else part.requests()):
            if isinstance(known, Observation):
                if known.body is not None:
                    yield Prompt(body=known.body, session=part.session, time=known.time, slot=known.slot)
                elif known.tokens is not None:
                    yield Prompt(tokens=known.tokens.tokens, session=part.session, time=known.time, slot=known.slot)
            elif known is not None:
                yield replace(known, session=part.session, time=known.time or _time(part, at))


def diagnose_parts(parts: Iterable[Part]) -> Findings:
    """Return the cache losses of the logs, with their causes.

    Most causes were found while the session ran, or when another tool's log was read. Losses with a cause in `DOUBTED` are
    diagnosed again, because the other sessions on the same server are known now. Replays count only if all logs are replays.
    """
    judged = without_replays(list(parts))
    again = _diagnose_again([part for part in judged if part.source == "loopkit"])
    losses = [loss for part in judged for loss in _losses(part, again)]
    losses.sort(key=lambda loss: loss.observation.time or "")
    cached, reusable = ([part.usage[name] >= 0 for part in judged] for name in ("cached_tokens", "reusable_tokens"))
    requests = sum(map(len, cached))
    lost = sum(loss.lost_tokens for loss in losses)
    named = sum(loss.lost_tokens for loss in losses if loss.diagnosis.cause != UNEXPLAINED)
    coverage = Coverage(
        with_usage=sum(int(each.sum()) for each in cached) / requests if requests else None,
        rendered_exactly=sum(int(each.sum()) for each in reusable) / requests if requests else None,
        with_a_cause=named / lost if lost else None,
    )
    return Findings(tuple(losses), requests, coverage)


def _losses(part: Part, again: Mapping[tuple[str | None, int, int | None], Diagnosis]) -> Iterator[Loss]:
    found = part.losses
    for at, row in enumerate(found["row"].tolist()):
        observation = _of_row(part, row)
        cause, certainty, fixable_by, location, evidence = (found[name][at] for name in Diagnosis._fields)
        diagnosis = Diagnosis(cause, certainty, fixable_by, location, decode(evidence))
        if cause in DOUBTED:
            second = again.get((observation.session, observation.epoch, observation.request), diagnosis)
            if cause == UNEXPLAINED or second.cause not in (cause, UNEXPLAINED):
                diagnosis = second
        before = at - 1 if at and found["row"][at - 1] == row - 1 else None
        same = before is not None and all(found[name][before] == found[name][at] for name in ("cause", "location"))
        expected, reusable, cached, lost = (int(found[f"{name}_tokens"][at]) for name in COUNTS)
        yield Loss(observation, expected, reusable if reusable >= 0 else None, cached, lost, diagnosis, first=not same)


def _diagnose_again(parts: Sequence[Part]) -> dict[tuple[str | None, int, int | None], Diagnosis]:
    """Diagnose the requests of all sessions together. Return the diagnosis of each loss by session, epoch and request number.

    If no loss has a cause in `DOUBTED`, no bodies are read, and the result is empty.
    """
    if not any(part.requests is not None and not set(DOUBTED).isdisjoint(part.losses["cause"]) for part in parts):
        return {}
    every = sorted((each for part in parts for each in _near_losses(_observations(part))), key=lambda each: each.time or "")
    return {
        (loss.observation.session, loss.observation.epoch, loss.observation.request): loss.diagnosis
        for loss in diagnose(every).losses
    }


def _observations(part: Part) -> Iterator[Observation]:
    server = f"{part.engine} {part.model}"  # logs do not name their server, and two models never share a cache
    known: Iterable[Observation | Prompt | None] = [None] * len(part.usage["request"])
    if part.requests is not None:
        with suppress(TornLog, BaselineError, SessionIOError):  # the usage rows are enough to count losses
            known = part.requests()
    for at, each in enumerate(known):
        yield replace(each if isinstance(each, Observation) else _of_row(part, at), server=server)


def _of_row(part: Part, at: int) -> Observation:
    """Return an `Observation` with the usage, session, time and slot of one row."""
    return Observation(
        usage=Usage(**{name: number_at(part.usage[name][at]) for name in Usage.__struct_fields__}),
        session=part.session,
        epoch=part.epoch,
        request=number_at(part.usage["request"][at]),
        time=_time(part, at),
        slot=part.slot,
        engine=part.engine,
        model=part.model,
    )


def _near_losses(requests: Iterator[Observation]) -> Iterator[Observation]:
    """Yield the requests. Only losses and the requests before them keep their bodies, because all bodies may need much memory."""
    last: Observation | None = None
    lost = False
    for now in requests:
        loses = last is not None and bool(expected_of(last, now).lost_tokens)
        if last is not None:
            yield last if lost or loses else replace(last, body=None)
        last, lost = now, loses
    if last is not None:
        yield last if lost else replace(last, body=None)


def number_at(value: Any) -> Any:
    """Return a value of a numeric column as a plain number, or None if it is missing (-1 or NaN)."""
    return value.item() if value >= 0 else None


def _time(part: Part, at: int) -> str | None:
    time = str(part.usage["time"][at])
    return None if time == "NaT" else f"{time}Z"
