"""Traces of block hashes: Mooncake's form, which ``export_trace`` writes too, and Bailian's, with its chats; ``.gz`` or plain.

A trace has no texts and says nothing of what was cached: ``requests()`` gives each prompt as its blocks, for `loopkit.cache`. Its
times count from its own beginning, and here from 1970. Without conversations, as Mooncake's, each request stands for itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, Struct

from loopkit.contract.records import Usage
from loopkit.logs.foreign.entries import Call, Entry
from loopkit.logs.foreign.text_source import Source, first_members
from loopkit.server.completion.usage import LARGEST

__all__ = ["BAILIAN", "MOONCAKE"]

ROOT = -1
"What Bailian gives for the parent of a chat's first request."

Count = Annotated[int, Meta(ge=0, le=LARGEST)]


class _Row(Struct, gc=False):
    input_length: Count
    hash_ids: list[int]
    output_length: Count | None = None
    timestamp: float | None = None
    chat_id: int | str | None = None
    parent_chat_id: int | str | None = None
    session: int | str | None = None
    epoch: int | None = None
    engine: str | None = None
    "What ``export_trace`` tells more, so that a trace is judged as its log was."
    unit: str | None = None
    "In which ``export_trace`` counted the length."
    prompt_tokens: Count | None = None
    cached_tokens: Count | None = None

    def usage(self) -> Usage:
        counted = self.input_length if self.unit in (None, "tokens") else None
        prompt = counted if self.prompt_tokens is None else self.prompt_tokens
        return Usage(prompt_tokens=prompt, cached_tokens=self.cached_tokens, completion_tokens=self.output_length)


_decoder = msgspec.json.Decoder(_Row)


class _Trace(NamedTuple):
    """One of the two forms."""

    NAME: str
    chats: bool
    second: int
    "What its times count in, in microseconds."

    def recognises(self, head: bytes) -> bool:
        """Whether a file that begins so is a trace of this form.

        Examples
        --------
        >>> head = b'{"timestamp": 27, "input_length": 900, "output_length": 5, "hash_ids": [0, 1]}'
        >>> MOONCAKE.recognises(head), BAILIAN.recognises(head)
        (True, False)
        """
        names = first_members(head)
        return names >= {"input_length", "hash_ids"} and ("chat_id" in names) is self.chats

    def entries(self, source: Source, *, texts: bool) -> Iterator[Entry]:
        """What a trace says; it has no texts."""
        roots: dict[str, str] = {}
        "Of each request of a chat the first one."
        last: dict[tuple[str, int | None], str] = {}
        "Of each session's epoch the last one."
        for number, (_, row) in enumerate(source.placed(_decoder)):
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
            time = None if row.timestamp is None else round(row.timestamp * self.second)
            usage, blocks = source.possible(row.usage()), _packed(row.hash_ids)
            yield Call(session, id, parent, time, usage=usage, sent=time, blocks=blocks, engine=row.engine)


def _packed(numbers: list[int]) -> Sequence[int]:
    """Numbers in eight bytes each, where they fit."""
    try:
        return array("q", numbers)
    except OverflowError:
        return tuple(numbers)


MOONCAKE = _Trace("mooncake", chats=False, second=1_000)
BAILIAN = _Trace("bailian", chats=True, second=1_000_000)
