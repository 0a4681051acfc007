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
    """Position of a record in its source."""

    source: Annotated[str, msgspec.Meta(min_length=1)]
    "Id of the transcript, never a path; ``<session>/<epoch>`` for a loopkit session."
    offset: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    "Position in the source; for a file, the byte offset of the line."


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One unit of a transcript.

    Examples
    --------
    >>> Record(Role.User, "hello", "2026-11-30T07:31:05.000000Z", Provenance("lima/0", 312)).provenance.offset
    312
    """

    role: Role
    text: str
    timestamp: Annotated[str, msgspec.Meta(pattern=f"^(?:{TIME.pattern})$")] | None
    "RFC 3339 in UTC with microseconds, as in `Timestamp`; None if the source has no time."
    provenance: Provenance
