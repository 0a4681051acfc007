"""Columns of records as numpy arrays, and `Part`: everything that the frames need from one file.

In these arrays a missing count or flag is -1, a missing number NaN and a missing text None. No log can contain these values.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from sys import intern
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from msgspec import UNSET, Struct
from msgspec.structs import astuple
from numpy.typing import NDArray

from loopkit.contract.records import CacheLoss, ReplayRecord
from loopkit.encoding import encode, sha256
from loopkit.logs.frames.schema import CONTENT, Kind, recorded_kinds
from loopkit.logs.frames.timestamps import FORM, parse_timestamps
from loopkit.logs.problems import Problem

if TYPE_CHECKING:
    from loopkit.cache.prefixes.prompt_parts import Prompt
    from loopkit.engines.evidence.observation import Observation

__all__ = [
    "LOSSES",
    "MESSAGES",
    "REQUESTS",
    "ColumnBuilder",
    "Columns",
    "Message",
    "Part",
    "concatenate",
    "loss_columns",
    "message",
    "message_columns",
    "times",
]

Columns: TypeAlias = Mapping[str, NDArray[Any]]

REQUESTS = recorded_kinds("usage")
LOSSES = recorded_kinds("cache_loss")
MESSAGES = recorded_kinds("messages", CONTENT)
"Kinds of the columns that come straight from usage records, cache loss records and messages, by column name."

_HASHES = np.dtype("S64")
_TIMES = np.dtype(f"S{len(FORM)}")


class MakeMessages(Protocol):
    """A function that reads the messages of a log when it is called, and returns the columns of `MESSAGES`."""

    def __call__(self, *, content: bool) -> Columns: ...


MakeRequests: TypeAlias = "Callable[[], Iterable[Observation | Prompt | None]]"
"""A function that yields the request of each row of ``usage``; None if the log has only the token counts of the request."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One epoch of a session, or one replay, as read from its file. It can be pickled to cross a process pool."""

    source: str
    path: str
    "Directory of the session, or file of the replay."
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
    "One row per completed request."
    losses: Columns
    "One row per cache loss; ``row`` is the row of its request in ``usage``."
    turns: Columns | None = None
    "One row per turn; None in a replay, which has no turns."
    messages: MakeMessages | None = None
    "Function that reads the messages, a ``functools.partial`` that can be pickled; None if the log contains no messages."
    problems: Sequence[Problem] = ()
    "Impossible token counts, and a baseline that does not match the log; empty for a part that was read from Parquet."
    requests: MakeRequests | None = None
    "Function that reads the requests, a ``functools.partial`` that can be pickled; None if only token counts are known."


class Codec(NamedTuple):
    """Two functions that turn the values of one kind of column into an array."""

    pack: Callable[[tuple[Any, ...]], Sequence[bytes | str | None]]
    "Function that returns a compact form of the values of some records."
    unpack: Callable[[Any], NDArray[Any]]
    "Function that returns one array of all packed values."


def _number_codec(dtype: np.dtype[Any], missing: float) -> Codec:
    """Return the codec for numbers of a dtype, which are packed as bytes. A missing value becomes ``missing``."""
    code = dtype.char.replace("l", "q")  # struct's int64 is "q" on every platform

    def pack(values: tuple[Any, ...]) -> Sequence[bytes]:
        try:
            return (struct.pack(f"{len(values)}{code}", *values),)
        except struct.error:
            if values.count(values[0]) == len(values):
                return (struct.pack(code, missing) * len(values),)
            known = [missing if value is None or value is UNSET else value for value in values]
            return (struct.pack(f"{len(values)}{code}", *known),)

    return Codec(pack, lambda packed: np.frombuffer(b"".join(packed), dtype))


def _pack_hashes(values: tuple[Any, ...]) -> Sequence[bytes | str | None]:
    text = "".join(values)
    # If some value cannot be a hash, all values are kept unchanged.
    return (text.encode(),) if text.isascii() and "\0" not in text else values


def _unpack_hashes(packed: Any) -> NDArray[Any]:
    if all(isinstance(each, bytes) for each in packed):
        return np.frombuffer(b"".join(packed), _HASHES)
    return _concatenate(
        [np.frombuffer(each, _HASHES) if isinstance(each, bytes) else np.array([each], object) for each in packed]
    )


def _pack_names(values: tuple[Any, ...]) -> Sequence[str | None]:
    if values.count(None) + values.count(UNSET) == len(values):
        return [None] * len(values)
    # There may be millions of values but only a few names: keep one object of each.
    return [intern(value) if isinstance(value, str) else None for value in values]


def _pack_times(values: tuple[Any, ...]) -> Sequence[bytes]:
    return ("".join(values).encode("ascii"),)


def _unpack_times(packed: Any) -> NDArray[Any]:
    return times(np.frombuffer(b"".join(packed), _TIMES))


def _pack_json(values: tuple[Any, ...]) -> Sequence[str | None]:
    return [None if value is UNSET else encode(value).decode() for value in values]


def _objects(packed: Any) -> NDArray[Any]:
    return np.array(packed, np.object_)


CODECS: Mapping[Kind, Codec] = {
    "count": _number_codec(np.dtype(np.int64), -1),
    "real": _number_codec(np.dtype(np.float64), math.nan),
    "flag": _number_codec(np.dtype(np.int8), -1),
    "time": Codec(
        lambda values: ("".join(values).encode("ascii"),), lambda packed: times(np.frombuffer(b"".join(packed), _TIMES))
    ),
    "hash": Codec(_pack_hashes, _unpack_hashes),
    "name": Codec(_pack_names, _objects),
    "text": Codec(lambda values: values, _objects),
    "json": Codec(_pack_json, _objects),
}


class ColumnBuilder:
    """Collects the values of records as columns, some hundred records at a time.

    Parameters
    ----------
    kinds : mapping of str to str
        Name and kind of each column. The name is that of a member of the record, or of a member of its ``usage``.

    Examples
    --------
    >>> from loopkit.contract.records import Usage
    >>> columns = ColumnBuilder({"prompt_tokens": "count", "ttft_ms": "real"})
    >>> columns.add([Usage(prompt_tokens=3), Usage()])
    >>> columns.arrays()
    {'prompt_tokens': array([ 3, -1]), 'ttft_ms': array([nan, nan])}
    """

    def __init__(self, kinds: Mapping[str, Kind]) -> None:
        self._kinds = kinds
        self._packed: dict[str, list[Any]] = {name: [] for name in kinds}

    def add(self, records: Sequence[Struct]) -> None:
        """Add the values of some records, which all have the same type."""
        if not records:
            return
        members = _members(records)
        if "usage" in members:
            members |= _members(members["usage"])
        for name, kind in self._kinds.items():
            self._packed[name] += CODECS[kind].pack(members[name])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the columns of all added records.

        Raises
        ------
        ValueError
            If a timestamp is invalid.
        """
        return {name: CODECS[kind].unpack(self._packed[name]) for name, kind in self._kinds.items()}


def _members(records: Sequence[Struct]) -> dict[str, tuple[Any, ...]]:
    """Return the values that each member has in the records, by its name."""
    return dict(zip(records[0].__struct_fields__, zip(*map(astuple, records))))


def times(values: Sequence[bytes | str] | NDArray[np.bytes_]) -> NDArray[np.datetime64]:
    """Parse timestamps that have the form in which loopkit writes them.

    Raises
    ------
    ValueError
        If a timestamp is invalid.

    Examples
    --------
    >>> times(["2026-11-30T07:31:05.000001Z"])
    array(['2026-11-30T07:31:05.000001'], dtype='datetime64[us]')
    """
    return parse_timestamps(np.array(values, _TIMES))


def concatenate(parts: Sequence[Columns], like: Columns) -> dict[str, NDArray[Any]]:
    """Concatenate the parts column by column.

    ``like`` gives the column names. If there are no parts, it also gives the dtypes.
    """
    return {name: _concatenate([part[name] for part in parts]) if parts else sample[:0] for name, sample in like.items()}


def _concatenate(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate arrays. If some contain hashes as bytes and others as text, the result contains text."""
    if len({array.dtype for array in arrays}) > 1:
        arrays = [array.astype(str).astype(object) if array.dtype == _HASHES else array for array in arrays]
    return np.concatenate(arrays)


_NO_LOSSES: Columns = ColumnBuilder(LOSSES).arrays()


def loss_columns(losses: Sequence[CacheLoss | ReplayRecord], rows: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
    """Return the columns of cache losses. ``rows`` has, for each loss, the row of its request in ``usage``."""
    if not losses:
        return {**_NO_LOSSES, "row": rows}  # most logs have no losses: they share these arrays
    columns = ColumnBuilder(LOSSES)
    columns.add(losses)
    return {**columns.arrays(), "row": rows}


class Message(Struct, frozen=True, gc=False):
    """One row of the frame ``messages``."""

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
    """Return the row of a message. ``data`` is the message as sent, or its text in another tool's log.

    Examples
    --------
    >>> message(1, 0, "user", b"Hi.").bytes
    3
    """
    return Message(turn, position, role, len(data), sha256(data), **facts)


def message_columns(messages: Iterable[Message]) -> Columns:
    """Return the columns of the frame ``messages``, built from its rows.

    Examples
    --------
    >>> message_columns([message(None, 0, "user", b"Hi.")])["turn"]
    array([-1])
    """
    columns = ColumnBuilder(MESSAGES)
    columns.add(list(messages))
    return columns.arrays()
