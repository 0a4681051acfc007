"""`Record`: one normalised unit of a transcript from any source, and its position in the source."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from loopkit.ids import TIME

__all__ = ["Provenance", "Record", "Role"]


class Role(StrEnum):
    """Author of a record, as written in JSON and SQL.

    Examples
    --------
    >>> Role("ToolResult")
    <Role.ToolResult: 'ToolResult'>
    """

    User = "User"
    Assistant = "Assistant"
    ToolResult = "ToolResult"
    System = "System"


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a record comes from: a transcript, and the position in it."""

    source: Annotated[str, msgspec.Meta(min_length=1)]
    "Id of the transcript (not a path). For a loopkit session it is ``<session>/<epoch>``."
    offset: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    "Position in the transcript. In a file, this is the byte offset of the record's line."


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message or tool result of a transcript, in the same form for every source.

    Examples
    --------
    >>> Record(Role.User, "hello", "2026-11-30T07:31:05.000000Z", Provenance("lima/0", 312)).provenance.offset
    312
    """

    role: Role
    text: str
    timestamp: Annotated[str, msgspec.Meta(pattern=f"^(?:{TIME.pattern})$")] | None
    "Time in RFC 3339 format, in UTC with microseconds (see `Timestamp`); None if the source has no time for the record."
    provenance: Provenance
