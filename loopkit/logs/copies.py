"""What several files hold of one history, counted once.

A resumed or forked conversation often begins with a copy of the one that it goes on from, under another name, and a side chain
may hold its parent's answers under new request ids. Each file was judged with its whole history; here the rows that another
file holds too are taken out of all but one. Knows no format.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from loopkit.cache.prompts import Prompt
from loopkit.cache.seen import Seen
from loopkit.logs.columns import Columns, MakeMessages, MakeRequests, Part
from loopkit.logs.problems import Problem

__all__ = ["counted_once"]


def counted_once(parts: Sequence[Part]) -> tuple[list[Part], list[Problem]]:
    """Leave out the requests of foreign logs that another part holds too.

    Of copies the one stays whose conversation ended first, and of a side chain's that of the main conversation. Where two files
    still hold different requests of one session, the second is called ``<session>+2``.
    """
    main = {
        response
        for part in parts
        for response, side in zip(part.usage.get("response", ()), part.usage.get("side", ()))
        if response is not None and not side
    }
    seen: set[tuple[object, ...]] = set()
    kept: dict[int, Part] = {}
    problems: list[Problem] = []
    for at in sorted(range(len(parts)), key=lambda at: (parts[at].ended, parts[at].path, parts[at].epoch)):
        part = parts[at]
        if "key" not in part.usage:
            kept[at] = part
            continue
        copied = np.array([_is_copy(row, seen, main) for row in _identities(part)], bool)
        if copied.any():
            problems.append(
                Problem(part.path, None, None, "left_out", "requests that stand in another conversation too", int(copied.sum()))
            )
        if not copied.any():
            kept[at] = part
        elif not copied.all():
            kept[at] = _without(part, np.flatnonzero(~copied))
    return _named(kept[at] for at in sorted(kept)), problems


def _identities(part: Part) -> Iterator[tuple[str | None, str | None, int, tuple[int, ...]]]:
    names = ("prompt_tokens", "cached_tokens", "cache_write_tokens")
    counts = zip(*(part.usage[name].tolist() for name in names))
    return zip(part.usage["key"], part.usage["response"], part.usage["side"], counts)


def _is_copy(
    row: tuple[str | None, str | None, int, tuple[int, ...]], seen: set[tuple[object, ...]], main: set[str | None]
) -> bool:
    key, response, side, counts = row
    if key is None:
        return False
    if side and response in main:
        return True
    identity = (key, counts)  # not the key alone: a gateway may number its answers from 1 in every run
    if identity in seen:
        return True
    seen.add(identity)
    return False


def _without(part: Part, rows: NDArray[np.intp]) -> Part:
    """A part of only some of its requests, with their turns and losses."""
    usage = {name: values[rows] for name, values in part.usage.items()}
    usage["request"] = np.arange(1, rows.size + 1)
    turns, old = part.turns, part.usage["turn"][rows]
    stay = np.unique(old[old > 0])
    if turns is not None:
        usage["turn"] = np.where(old > 0, np.searchsorted(stay, old) + 1, old)
        turns = {name: values[stay - 1] for name, values in turns.items()} | {"turn": np.arange(1, stay.size + 1)}
    lossy = np.isin(part.losses["row"], rows)
    losses = {name: values[lossy] for name, values in part.losses.items()}
    losses["row"] = np.searchsorted(rows, losses["row"])
    losses["request"] = losses["row"] + 1
    return dataclasses.replace(
        part,
        usage=usage,
        turns=turns,
        losses=losses,
        started=usage["time"].min(),
        messages=None if part.messages is None else partial(_some_messages, part.messages, tuple(stay.tolist())),
        requests=None if part.requests is None else partial(_some_requests, part.requests, frozenset(rows.tolist())),
    )


def _some_messages(make: MakeMessages, turns: tuple[int, ...], *, content: bool) -> Columns:
    made = make(content=content)
    rows = np.flatnonzero(np.isin(made["turn"], turns))
    columns = {name: values[rows] for name, values in made.items()}
    columns["turn"] = np.searchsorted(np.array(turns, np.int64), columns["turn"]) + 1
    columns["index"] = np.arange(rows.size)
    return columns


def _some_requests(make: MakeRequests, rows: frozenset[int]) -> Iterator[Seen | Prompt | None]:
    return (each for at, each in enumerate(make()) if at in rows)


def _named(parts: Iterable[Part]) -> list[Part]:
    """The parts, no two files with one session id, so that keys tell them apart."""
    paths: dict[str, list[str]] = {}
    named = []
    for part in parts:
        of_id = paths.setdefault(part.session, [])
        if part.path not in of_id:
            of_id.append(part.path)
        number = of_id.index(part.path) + 1
        named.append(
            part if number == 1 or "key" not in part.usage else dataclasses.replace(part, session=f"{part.session}+{number}")
        )
    return named
