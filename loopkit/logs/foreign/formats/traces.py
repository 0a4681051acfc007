"""Traces of block hashes, plain or gzipped, in two formats: Mooncake's and Bailian's.

Only Bailian's links the requests of a chat. ``export_trace`` writes Mooncake's format, with further members for the session and
for cached tokens, which other traces lack. No trace has texts. ``requests()`` returns each prompt as a list of block hashes,
which the functions of `loopkit.cache` accept. Times count from the start of a trace, so the frames show dates of 1970. A request
without chat or session follows no other request.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, Struct

from loopkit.contract.records import Usage
from loopkit.logs.foreign.entries import Entry, RequestEntry
from loopkit.logs.foreign.log_file import first_member_names
from loopkit.logs.foreign.text_source import TextSource
from loopkit.server.completion.usage import LARGEST

__all__ = ["BAILIAN", "MOONCAKE"]

ROOT = -1
"The parent id that the first request of a chat has in Bailian's format."

Count = Annotated[int, Meta(ge=0, le=LARGEST)]


class _TraceRow(Struct, gc=False):
    input_length: Count
    hash_ids: list[int]
    output_length: Count | None = None
    timestamp: float | None = None
    chat_id: int | str | None = None
    parent_chat_id: int | str | None = None
    session: int | str | None = None
    epoch: int | None = None
    engine: str | None = None
    "This member and those below are written by ``export_trace``, so that a trace gives the same losses as its log."
    unit: str | None = None
    "Unit of ``input_length``: tokens, blocks or bytes. None, as in traces of other tools, means tokens."
    prompt_tokens: Count | None = None
    cached_tokens: Count | None = None

    def usage(self) -> Usage:
        counted = self.input_length if self.unit in (None, "tokens") else None
        prompt = counted if self.prompt_tokens is None else self.prompt_tokens
        return Usage(prompt_tokens=prompt, cached_tokens=self.cached_tokens, completion_tokens=self.output_length)


_decoder = msgspec.json.Decoder(_TraceRow)


class _TraceFormat(NamedTuple):
    """Reader of one of the two formats."""

    NAME: str
    chats: bool
    time_unit: int
    "Number of microseconds in one unit of the trace's timestamps."

    def recognises(self, head: bytes) -> bool:
        """Return True if a file with these first bytes is a trace of this format.

        Examples
        --------
        >>> head = b'{"timestamp": 27, "input_length": 900, "output_length": 5, "hash_ids": [0, 1]}'
        >>> MOONCAKE.recognises(head), BAILIAN.recognises(head)
        (True, False)
        """
        names = first_member_names(head)
        return names >= {"input_length", "hash_ids"} and ("chat_id" in names) is self.chats

    def entries(self, source: TextSource, *, texts: bool) -> Iterator[Entry]:
        """Yield the entries of a trace. `texts` is ignored, because traces contain no text."""
        roots: dict[str, str] = {}
        "Id of the first request of a chat, by the id of each request of the chat."
        last: dict[tuple[str, int | None], str] = {}
        "Id of the last request, by session and epoch."
        for number, (_, row) in enumerate(source.decode_with_lines(_decoder)):
            id, parent = str(number), None
            if self.chats and row.chat_id is not None:
                id = str(row.chat_id)
                parent = None if row.parent_chat_id in (None, ROOT) else str(row.parent_chat_id)
                session = roots[id] = roots.get(parent or "", id)
            elif row.session is not None:
                session = str(row.session)
                parent, last[session, row.epoch] = last.get((session, row.epoch)), id
            else:
                session = source.path.name.partition(".")[0]
            time = None if row.timestamp is None else round(row.timestamp * self.time_unit)
            usage, blocks = source.check_usage(row.usage()), _packed(row.hash_ids)
            yield RequestEntry(session, id, parent, time, usage=usage, sent=time, block_hashes=blocks, engine=row.engine)


def _packed(numbers: list[int]) -> Sequence[int]:
    """Return integers as an array of 8 bytes each, or as a tuple if one is too large."""
    try:
        return array("q", numbers)
    except OverflowError:
        return tuple(numbers)


MOONCAKE = _TraceFormat("mooncake", chats=False, time_unit=1_000)
BAILIAN = _TraceFormat("bailian", chats=True, time_unit=1_000_000)
