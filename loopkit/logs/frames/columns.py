"""Records into flat arrays, and the part of all frames that comes from one file.

Until a frame is made of them, a missing count is -1, a missing flag -1, a missing number NaN and a missing text None: no log can
hold these, so one array says both. Knows nothing of files and frames.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from sys import intern
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from msgspec import UNSET, Struct
from msgspec.structs import astuple
from numpy.typing import NDArray

from loopkit.contract.records import CacheLoss, ReplayRecord
from loopkit.encoding import encode, sha256
from loopkit.logs.frames.timestamps import FORM, moments
from loopkit.logs.problems import Problem

if TYPE_CHECKING:
    from loopkit.cache.losses.observation import Seen
    from loopkit.cache.prefixes.prompt_parts import Prompt

__all__ = [
    "COUNT",
    "REQUESTS",
    "Columns",
    "Growing",
    "Message",
    "Part",
    "joined",
    "loss_columns",
    "message",
    "message_columns",
    "times",
]

Columns: TypeAlias = Mapping[str, NDArray[Any]]

COUNT, REAL, FLAG, HASH, TEXT, MAYBE_TEXT, JSON, TIME = "qdbhsmjt"
"""Kinds of columns; the first three are those of ``struct``, too."""
_HASHES = np.dtype("S64")
_DTYPES = {COUNT: np.int64, REAL: np.float64, FLAG: np.int8}
_MISSING = {COUNT: -1, REAL: math.nan, FLAG: -1}
_TIMES = np.dtype(f"S{len(FORM)}")

REQUESTS = {
    **dict.fromkeys(("request", "request_bytes", "expected_tokens", "reusable_tokens"), COUNT),
    **dict.fromkeys(("prompt_tokens", "cached_tokens", "cache_write_tokens", "completion_tokens", "reasoning_tokens"), COUNT),
    **dict.fromkeys(("ttft_ms", "prompt_ms", "predicted_ms"), REAL),
    "request_sha256": HASH,
    **dict.fromkeys(("finish_reason", "shortfall"), MAYBE_TEXT),
    "expected_exact": FLAG,
    "time": TIME,
}
"What the frame of requests takes from their records as it stands there."
LOSSES = {
    **dict.fromkeys(("request", "expected_tokens", "reusable_tokens", "cached_tokens", "lost_tokens"), COUNT),
    **dict.fromkeys(("cause", "certainty", "fixable_by", "location"), MAYBE_TEXT),
    "evidence": JSON,
    "expected_exact": FLAG,
    "time": TIME,
}
"What the frame of losses takes from their records."
MESSAGES = {
    **dict.fromkeys(("turn", "position", "bytes", "neutralised"), COUNT),
    **dict.fromkeys(("role", "sha256", "tool", "content"), TEXT),
    "truncated": FLAG,
}
"What the frame of messages takes from them."


class MakeMessages(Protocol):
    """Makes the columns of `MESSAGES` when they are asked for; without text unless that is wanted."""

    def __call__(self, *, content: bool) -> Columns: ...


MakeRequests: TypeAlias = "Callable[[], Iterable[Seen | Prompt | None]]"
"""Tells the requests, one for each row of ``usage``: what is known of each; None where that is no more than the row says."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What the frames need of one epoch of a session, or of one replay. It can be pickled: it crosses a process pool."""

    source: str
    path: str
    "The session's directory, or the replay's file."
    session: str
    epoch: int = 0
    parent: str | None = None
    variant: str | None = None
    model: str | None
    engine: str | None
    slot: int | None = None
    baseline_sha256: str | None = None
    baseline_bytes: int | None = None
    started: np.datetime64
    ended: np.datetime64
    end_reason: str | None = None
    usage: Columns
    "A row is a completed request."
    losses: Columns
    "A row is a loss; ``row`` is its request's in ``usage``."
    turns: Columns | None = None
    "A row is a turn; None in a replay."
    messages: MakeMessages | None = None
    "A ``functools.partial`` of a module's function, so that it can be pickled; None where the log holds no messages."
    problems: Sequence[Problem] = ()
    "Counts that cannot be; where the file was read just now."
    requests: MakeRequests | None = None
    "Likewise; None where nothing is known but the usage."


class Growing:
    """Columns to which records are added, some hundreds at a time. Of numbers, hashes and times only their bytes are kept.

    Parameters
    ----------
    kinds : mapping of str to str
        Names of members, of the record or of its ``usage``, and what they hold.

    Examples
    --------
    >>> from loopkit.contract.records import Usage
    >>> columns = Growing({"prompt_tokens": COUNT, "ttft_ms": REAL})
    >>> columns.add([Usage(prompt_tokens=3), Usage()])
    >>> columns.arrays()
    {'prompt_tokens': array([ 3, -1]), 'ttft_ms': array([nan, nan])}
    """

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self._kinds = kinds
        self._values: dict[str, list[Any]] = {name: [] for name in kinds}

    def add(self, records: Sequence[Struct]) -> None:
        """Add records, all of one type."""
        if not records:
            return
        members = _members(records)
        if "usage" in members:
            members |= _members(members["usage"])
        for name, kind in self._kinds.items():
            self._values[name] += _packed(members[name], kind)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that was added.

        Raises
        ------
        ValueError
            For a day that is in no calendar.
        """
        return {name: _unpacked(self._values[name], kind) for name, kind in self._kinds.items()}


def _members(records: Sequence[Struct]) -> dict[str, tuple[Any, ...]]:
    """Rows into columns: of each member the values."""
    return dict(zip(records[0].__struct_fields__, zip(*map(astuple, records))))


def _packed(values: tuple[Any, ...], kind: str) -> Sequence[bytes | str | None]:
    if kind == HASH:
        text = "".join(values)
        return (text.encode(),) if text.isascii() and "\0" not in text else values  # what is no hash is told as it stands
    if kind == TEXT:
        return values
    if kind == MAYBE_TEXT:
        if values.count(None) + values.count(UNSET) == len(values):
            return [None] * len(values)
        # the same few words again and again: one object of each, for there may be millions
        return [intern(value) if isinstance(value, str) else None for value in values]
    if kind == JSON:
        return [None if value is UNSET else encode(value).decode() for value in values]
    if kind == TIME:
        return ("".join(values).encode("ascii"),)
    try:
        return (struct.pack(f"{len(values)}{kind}", *values),)
    except struct.error:
        missing = _MISSING[kind]
        if values.count(values[0]) == len(values):
            return (struct.pack(kind, missing) * len(values),)
        known = [missing if value is None or value is UNSET else value for value in values]
        return (struct.pack(f"{len(values)}{kind}", *known),)


def _unpacked(values: Any, kind: str) -> NDArray[Any]:
    if kind == TIME:
        return times(np.frombuffer(b"".join(values), _TIMES))
    if kind == HASH:
        if all(isinstance(each, bytes) for each in values):
            return np.frombuffer(b"".join(values), _HASHES)
        return _end_to_end(
            [np.frombuffer(each, _HASHES) if isinstance(each, bytes) else np.array([each], object) for each in values]
        )
    return np.frombuffer(b"".join(values), _DTYPES[kind]) if kind in _DTYPES else np.array(values, np.object_)


def times(values: Sequence[bytes | str] | NDArray[np.bytes_]) -> NDArray[np.datetime64]:
    """Timestamps, as they stand in a record; UTC.

    Raises
    ------
    ValueError
        For what is no moment, and for a day that is in no calendar.

    Examples
    --------
    >>> times(["2026-11-30T07:31:05.000001Z"])
    array(['2026-11-30T07:31:05.000001'], dtype='datetime64[us]')
    """
    return moments(np.array(values, _TIMES))


def joined(parts: Sequence[Columns], like: Columns) -> dict[str, NDArray[Any]]:
    """Put arrays of one name end to end, in new ones; ``like`` has the names and, where there are no parts, the dtypes."""
    return {name: _end_to_end([part[name] for part in parts]) if parts else sample[:0] for name, sample in like.items()}


def _end_to_end(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Arrays as one; where some hold hashes as bytes and others as text, as text."""
    if len({array.dtype for array in arrays}) > 1:
        arrays = [array.astype(str).astype(object) if array.dtype == _HASHES else array for array in arrays]
    return np.concatenate(arrays)


_NO_LOSSES: Columns = Growing(LOSSES).arrays()


def loss_columns(losses: Sequence[CacheLoss | ReplayRecord], rows: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
    """What the frame of losses takes from their records, whose requests stand in these rows."""
    if not losses:
        return {**_NO_LOSSES, "row": rows}  # as most logs have none, thousands share these arrays
    columns = Growing(LOSSES)
    columns.add(losses)
    return {**columns.arrays(), "row": rows}


class Message(Struct, frozen=True, gc=False):
    """A message, as a row of the frame of messages."""

    turn: int | None
    position: int
    role: str
    bytes: int
    sha256: str
    tool: str | None = None
    truncated: bool | None = None
    neutralised: int | None = None
    content: str | None = None


def message(turn: int | None, position: int, role: str, data: bytes, **facts: Any) -> Message:
    """Make a row of a message's bytes: as it was sent, or of a foreign log its text.

    Examples
    --------
    >>> message(1, 0, "user", b"Hi.").bytes
    3
    """
    return Message(turn, position, role, len(data), sha256(data), **facts)


def message_columns(messages: Iterable[Message]) -> Columns:
    """Turn rows into columns.

    Examples
    --------
    >>> message_columns([message(None, 0, "user", b"Hi.")])["turn"]
    array([-1])
    """
    rows = list(messages)
    named = _members(rows) if rows else dict.fromkeys(MESSAGES, ())
    return {name: _unpacked(_packed(named[name], kind) if rows else (), kind) for name, kind in MESSAGES.items()}
