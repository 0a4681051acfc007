"""What several files hold of one history, counted once.

A resumed or forked conversation often begins with a copy of the one that it goes on from, under another name, and a side chain
may hold its parent's answers under new request ids. Each file was judged with its whole history; here the rows that another
file holds too are taken out of all but one. Knows no format.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from loopkit.cache.losses.observation import Seen
from loopkit.cache.prefixes.prompt_parts import Prompt
from loopkit.logs.frames.columns import Columns, MakeMessages, MakeRequests, Part
from loopkit.logs.problems import Problem

__all__ = ["counted_once"]

OURS = ("loopkit", "replay")
"Sources whose sessions are never called otherwise."


def counted_once(parts: Sequence[Part]) -> tuple[list[Part], list[Problem]]:
    """Leave out the requests of foreign logs that another part holds too.

    Of copies the one stays whose conversation ended first, and of a side chain's that of the main conversation. Where two files
    still hold different requests of one session, the second is called ``<session>+2``.
    """
    ours = [at for at, part in enumerate(parts) if "key" not in part.usage]
    foreign = [at for at, part in enumerate(parts) if "key" in part.usage]
    told = Counter(chain.from_iterable(parts[at].usage["key"].tolist() for at in foreign))
    repeated = {key for key, times in told.items() if times > 1 and key}
    side = [at for at in foreign if parts[at].usage["side"].any()]
    of_side = {response for at in side for response in parts[at].usage["response"].tolist()}
    main = {
        response for at in foreign for response in of_side.intersection(parts[at].usage["response"][parts[at].usage["side"] == 0])
    }
    main.discard(b"")

    seen: set[tuple[object, ...]] = set()
    kept = {at: parts[at] for at in ours}
    problems: list[Problem] = []
    for at in sorted(foreign, key=lambda at: (parts[at].ended, parts[at].path, parts[at].epoch)):
        part = parts[at]
        copied = _copied(part, repeated, main, seen)
        if copied:
            why = "requests that stand in another conversation too"
            problems.append(Problem(part.path, None, None, "left_out", why, len(copied)))
        rows = np.setdiff1d(np.arange(part.usage["key"].size), copied) if copied else None
        if rows is None or rows.size:
            kept[at] = _without_keys(part if rows is None else _of_rows(part, rows))
    return _named(kept[at] for at in sorted(kept)), problems


def _copied(part: Part, repeated: set[bytes], main: set[bytes], seen: set[tuple[object, ...]]) -> list[int]:
    """The rows that are copies; ``seen`` grows."""
    keys, responses, side = (part.usage[name] for name in ("key", "response", "side"))
    rows = [row for row, key in enumerate(keys.tolist()) if key in repeated]
    copied = {row for row in np.flatnonzero(side).tolist() if responses[row] in main}
    for row in rows:
        # not the key alone: a gateway may number its answers from 1 in every run
        identity = (
            bytes(keys[row]),
            *(int(part.usage[name][row]) for name in ("prompt_tokens", "cached_tokens", "cache_write_tokens")),
        )
        if row not in copied and identity in seen:
            copied.add(row)
        seen.add(identity)
    return sorted(copied)


def _without_keys(part: Part) -> Part:
    """A part without what only this module needs, which takes more memory than all the rest."""
    usage = {name: values for name, values in part.usage.items() if name not in ("key", "response", "side")}
    return dataclasses.replace(part, usage=usage)


def _of_rows(part: Part, rows: NDArray[np.intp]) -> Part:
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
    columns["position"] = np.arange(rows.size)
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
            part if number == 1 or part.source in OURS else dataclasses.replace(part, session=f"{part.session}+{number}")
        )
    return named
