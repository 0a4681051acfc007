"""A `Record`: one normalised unit of what was said, from any source, and where it stands there.

Adapters and sessions make these; nothing downstream learns whether one came from loopkit, from another tool's log or from a
socket. Knows nothing of files, models or stores.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from loopkit.ids import TIME

__all__ = ["Provenance", "Record", "Role"]


class Role(StrEnum):
    """Who said it, written so in JSON and SQL.

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
    """Where a record stands."""

    source: Annotated[str, msgspec.Meta(min_length=1)]
    "The transcript's own id, never a path; ``<session>/<epoch>`` for a loopkit session."
    offset: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    "Within the source; of a file, the byte offset of the line."


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
    "RFC 3339 in UTC, to the microsecond, such as a `Timestamp`; None where the source does not say."
    provenance: Provenance
