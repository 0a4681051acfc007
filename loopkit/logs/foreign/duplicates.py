"""Removal of requests that several files or conversations repeat, such as copies and forks.

Resumed and forked conversations often start with a copy of their parent's history, under another session id. A side chain (the
lines of a sub-agent) may repeat its parent's responses under new request ids. Losses are diagnosed first, in each file with its
whole history. Then repeated rows are dropped.
from all files but one.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from loopkit.cache.prefixes.prompt_parts import Prompt
from loopkit.engines.evidence.observation import Observation
from loopkit.logs.frames.columns import Columns, MakeMessages, MakeRequests, Part
from loopkit.logs.problems import Problem

__all__ = ["drop_duplicates"]

OURS = ("loopkit", "replay")
"Sources whose sessions are never renamed."


def drop_duplicates(parts: Sequence[Part]) -> tuple[list[Part], list[Problem]]:
    """Drop requests of other tools' logs that several parts contain. Return the remaining parts, and a problem for each drop.

    Of several copies, the one in the conversation that ended first is kept. A copy in a main conversation is preferred to those
    in side chains. If two files then have different requests of the same session, the second session is renamed to
    ``<session>+2``.
    """
    ours = [at for at, part in enumerate(parts) if "key" not in part.usage]
    foreign = [at for at, part in enumerate(parts) if "key" in part.usage]
    counts = Counter(chain.from_iterable(parts[at].usage["key"].tolist() for at in foreign))
    repeated = {key for key, count in counts.items() if count > 1 and key}
    side_responses: set[bytes] = set()
    for at in foreign:
        if parts[at].usage["side"].any():
            side_responses.update(parts[at].usage["response"].tolist())
    main: set[bytes] = set()
    for at in foreign:
        main |= side_responses.intersection(parts[at].usage["response"][parts[at].usage["side"] == 0])
    main.discard(b"")

    seen: set[tuple[object, ...]] = set()
    kept = {at: parts[at] for at in ours}
    problems: list[Problem] = []
    for at in sorted(foreign, key=lambda at: (parts[at].ended, parts[at].path, parts[at].epoch)):
        part = parts[at]
        copies = _copies(part, repeated, main, seen)
        if copies:
            why = "requests that another conversation contains, too"
            problems.append(Problem(part.path, None, None, "left_out", why, len(copies)))
        rows = np.setdiff1d(np.arange(part.usage["key"].size), copies) if copies else None
        if rows is None or rows.size:
            kept[at] = _drop_keys(part if rows is None else _select_rows(part, rows))
    return _rename_sessions(kept[at] for at in sorted(kept)), problems


def _copies(part: Part, repeated: set[bytes], main: set[bytes], seen: set[tuple[object, ...]]) -> list[int]:
    """Return the rows of a part that are copies of earlier requests. ``seen`` collects the requests that may have copies."""
    keys, responses, side = (part.usage[name] for name in ("key", "response", "side"))
    rows = [row for row, key in enumerate(keys.tolist()) if key in repeated]
    copies = {row for row in np.flatnonzero(side).tolist() if responses[row] in main}
    for row in rows:
        # the key alone is not enough: a gateway may number its responses from 1 in every run
        identity = (
            bytes(keys[row]),
            *(int(part.usage[name][row]) for name in ("prompt_tokens", "cached_tokens", "cache_write_tokens")),
        )
        if row not in copies and identity in seen:
            copies.add(row)
        seen.add(identity)
    return sorted(copies)


def _drop_keys(part: Part) -> Part:
    """Return a part without the columns that only this module needs. They take more memory than all others."""
    usage = {name: values for name, values in part.usage.items() if name not in ("key", "response", "side")}
    return dataclasses.replace(part, usage=usage)


def _select_rows(part: Part, rows: NDArray[np.intp]) -> Part:
    """Return a part with only the requests in these rows of ``usage``, and their turns and losses."""
    usage = {name: values[rows] for name, values in part.usage.items()}
    usage["request"] = np.arange(1, rows.size + 1)
    turns, old = part.turns, part.usage["turn"][rows]
    kept_turns = np.unique(old[old > 0])
    if turns is not None:
        usage["turn"] = np.where(old > 0, np.searchsorted(kept_turns, old) + 1, old)
        turns = {name: values[kept_turns - 1] for name, values in turns.items()} | {"turn": np.arange(1, kept_turns.size + 1)}
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
        messages=None if part.messages is None else partial(_select_messages, part.messages, tuple(kept_turns.tolist())),
        requests=None if part.requests is None else partial(_select_requests, part.requests, frozenset(rows.tolist())),
    )


def _select_messages(make: MakeMessages, turns: tuple[int, ...], *, content: bool) -> Columns:
    columns = make(content=content)
    rows = np.flatnonzero(np.isin(columns["turn"], turns))
    columns = {name: values[rows] for name, values in columns.items()}
    columns["turn"] = np.searchsorted(np.array(turns, np.int64), columns["turn"]) + 1
    columns["position"] = np.arange(rows.size)
    return columns


def _select_requests(make: MakeRequests, rows: frozenset[int]) -> Iterator[Observation | Prompt | None]:
    return (each for row, each in enumerate(make()) if row in rows)


def _rename_sessions(parts: Iterable[Part]) -> list[Part]:
    """Return the parts. If several files have the same session id, the sessions of all but the first are renamed.

    Sessions and replays of loopkit keep their names.
    """
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
