"""Parts and problems of many files put together: each epoch once, the epochs of a session in order, no id for two sessions.

Knows nothing of files' contents, of formats or of dataframes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from loopkit.errors import LogError
from loopkit.logs.foreign.duplicates import drop_duplicates
from loopkit.logs.frames.columns import Part
from loopkit.logs.problems import Errors, Problem

__all__ = ["Together", "problems_of_others", "together"]


class Together(NamedTuple):
    """What ``Logs`` are made of."""

    parts: tuple[Part, ...]
    unread: tuple[Problem, ...]


def together(parts: Sequence[Part], problems: Iterable[Problem], errors: Errors) -> Together:
    """Put parts together; of an epoch that is there twice the later stays.

    Raises
    ------
    LogError
        When two logs have the same session id, for then keys would not tell them apart; where errors are reported, the second is
        left out.
    """
    by_session: dict[str, dict[int, Part]] = {}
    once, copied = drop_duplicates(parts)
    known = list(dict.fromkeys([*problems, *copied]))
    for part in once:
        epochs = by_session.setdefault(part.session, {})
        other = next(iter(epochs.values()), part)
        if other.path != part.path and Path(other.path).resolve() != Path(part.path).resolve():
            why = f"{other.path} has the session id {part.session} too, and keys would not tell them apart"
            if errors == "raise":
                raise LogError(part.path, why, "Load them one at a time")
            known.append(Problem(part.path, None, None, "left_out", why))
        else:
            epochs[part.epoch] = part
    return Together(tuple(epochs[number] for epochs in by_session.values() for number in sorted(epochs)), tuple(known))


def _files(part: Part) -> Iterator[str]:
    """The file that a part was read from, and the one that it names."""
    if part.source != "loopkit":
        yield part.path
    else:
        yield from (str(Path(part.path, f"{part.epoch}{end}")) for end in (".jsonl", ".baseline.json"))


def problems_of_others(problems: Iterable[Problem], parts: Iterable[Part]) -> tuple[Problem, ...]:
    """The problems of files that these parts were not read from."""
    files = {file for part in parts for file in _files(part)}
    return tuple(problem for problem in problems if problem.path not in files)
