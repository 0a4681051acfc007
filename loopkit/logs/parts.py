"""Merging and selection of parts: each epoch once, in order; sessions by id, time, source, model and other facts."""

from __future__ import annotations

import contextlib
import datetime
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from loopkit.errors import InvalidConfig, LogError
from loopkit.logs.foreign.duplicates import drop_duplicates
from loopkit.logs.frames.columns import Part
from loopkit.logs.frames.schema import SOURCES
from loopkit.logs.problems import Errors, Problem

__all__ = ["Merged", "merge", "problems_of_others", "select", "without_replays"]

LISTED = 13
"Number of names that an error message lists."


class Merged(NamedTuple):
    """Result of `merge`: the parts and problems for `Logs`."""

    parts: tuple[Part, ...]
    unread: tuple[Problem, ...]


def merge(parts: Sequence[Part], problems: Iterable[Problem], errors: Errors) -> Merged:
    """Return the parts with each epoch once and in order, and the problems.

    If an epoch was read twice, the later part is kept. Requests that several logs of other tools repeat are kept once.

    Raises
    ------
    LogError
        If two different logs have the same session id, because the frames could not distinguish them. If ``errors`` is
        ``"report"``, the second log is left out instead.
    """
    by_session: dict[str, dict[int, Part]] = {}
    once, copied = drop_duplicates(parts)
    unread = list(dict.fromkeys([*problems, *copied]))
    for part in once:
        epochs = by_session.setdefault(part.session, {})
        other = next(iter(epochs.values()), part)
        if other.path != part.path and Path(other.path).resolve() != Path(part.path).resolve():
            why = f"{other.path} has the same session id `{part.session}`, so the frames could not tell them apart"
            if errors == "raise":
                raise LogError(part.path, why, "Load them separately")
            unread.append(Problem(part.path, None, None, "left_out", why))
        else:
            epochs[part.epoch] = part
    return Merged(tuple(epochs[number] for epochs in by_session.values() for number in sorted(epochs)), tuple(unread))


def _files_of(part: Part) -> Iterator[str]:
    """Yield the path of the file from which a part was read, and of its baseline file if the part is an epoch of loopkit."""
    if part.source != "loopkit":
        yield part.path
    else:
        yield from (str(Path(part.path, f"{part.epoch}{end}")) for end in (".jsonl", ".baseline.json"))


def problems_of_others(problems: Iterable[Problem], parts: Iterable[Part]) -> tuple[Problem, ...]:
    """Return the problems of other files than those from which these parts were read."""
    files = {file for part in parts for file in _files_of(part)}
    return tuple(problem for problem in problems if problem.path not in files)


def without_replays(parts: Sequence[Part]) -> Sequence[Part]:
    """Return the parts that are not replays; all of them if there are only replays."""
    return [part for part in parts if part.source != "replay"] or parts


def select(
    parts: Sequence[Part],
    unread: Sequence[Problem],
    conditions: Mapping[str, str | Iterable[str] | None],
    since: str | datetime.datetime | None = None,
) -> list[Part]:
    """Return the parts of the sessions that meet every condition; see `loopkit.Logs.where`."""
    kept = {part.session for part in parts}
    sessions = kept | {Path(problem.path).parent.name for problem in unread}  # and sessions whose log could not be read
    for member, value in conditions.items():
        if value is not None:
            names = _names(member, value)
            if member in ("session", "source"):
                _check_known(member, names, sessions if member == "session" else SOURCES)
            kept &= {part.session for part in parts if getattr(part, member) in names}
    if since is not None:
        time = _parse_since(since)
        kept &= {part.session for part in parts if part.ended >= time}
    return [part for part in parts if part.session in kept]


def _names(member: str, value: str | Iterable[str]) -> set[str]:
    names = [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    for name in names:
        if not isinstance(name, str):
            raise InvalidConfig(member, f"it must be a text or several; got {name!r}")
    return set(names)


def _check_known(member: str, names: set[str], known: Iterable[str]) -> None:
    every = sorted(known)
    for name in sorted(names.difference(every)):
        hint = f"No {member}s are loaded"
        if near := difflib.get_close_matches(name, every):
            hint = f"Similar names: {', '.join(near)}"
        elif every:
            more = f" and {len(every) - LISTED:,} more" if len(every) > LISTED else ""
            hint = f"Known names: {', '.join(every[:LISTED])}{more}"
        raise InvalidConfig(member, f"there is no {member} {name!r}", hint)


def _parse_since(since: str | datetime.datetime) -> np.datetime64:
    time: pd.Timestamp | None = None
    if isinstance(since, (str, datetime.date, np.datetime64)):  # a bare number has no known unit
        with contextlib.suppress(ValueError):
            time = pd.Timestamp(since)
    if time is None or pd.isna(time):
        raise InvalidConfig("since", f"{since!r} is not a time", "Write it as 2026-11-30 or 2026-11-30T07:31")
    return (time if time.tz is None else time.tz_convert("UTC").tz_localize(None)).to_datetime64()
