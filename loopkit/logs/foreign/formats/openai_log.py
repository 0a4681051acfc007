"""OpenAI-style request logs: a line a request, with the body and what came of it, or the body alone.

The body stands at ``body`` or ``request``, the answer at ``response``, counts also at ``usage``; a line with ``messages`` is a
body itself (kvlint, cachelint), less what the log added to it. The bytes are those of the file, so causes are found to the byte.
Conversations are told apart by what they begin with, within the sessions that the log names, and called ``<session>.1``, ….
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

from loopkit.encoding import decode, encode
from loopkit.logs.foreign.entries import Entry
from loopkit.logs.foreign.exchanges import Exchange, facts_of, inner, instant, told
from loopkit.logs.foreign.text_source import Source, first_members

__all__ = ["NAME", "entries", "recognises"]

NAME = "openai"

PROMPTS = ("messages", "input", "prompt")
ADDED = ("request_id", "session_id", "timestamp")
"What kvlint's lines have beside the body's own members."
RECORDED = ("kind", "ended", "elapsed_ms")
"Members of a recording of ours: one that is damaged is none of these logs."
TIMES = ("at", "timestamp", "created_at", "time", "ts")
SHORT = {"cache_read": "cache_read_input_tokens", "cache_write": "cache_creation_input_tokens"}
"How promptcachelint calls what its ``input_tokens`` leaves out."


class _Row(Struct):
    """All but the body may hold anything: what is not as expected is not known."""

    body: Raw = Raw()
    request: Raw = Raw()
    messages: Raw = Raw()
    input: Raw = Raw()
    prompt: Raw = Raw()
    response: Raw = Raw()
    usage: Any = None
    provider: Any = None
    model: Any = None
    id: Any = None
    request_id: Any = None
    response_id: Any = None
    session_id: Any = None
    at: Any = None
    timestamp: Any = None
    created_at: Any = None
    time: Any = None
    ts: Any = None


_decoder = msgspec.json.Decoder(_Row)


def recognises(head: bytes) -> bool:
    """Whether a file that begins so is a log of requests.

    Examples
    --------
    >>> recognises(b'{"body":{"model":"m","messages":[]},"response":{}}'), recognises(b'{"model":"m","messages":[]}')
    (True, True)
    """
    names = first_members(head)
    if not names.isdisjoint(RECORDED):
        return False
    if "model" in names and not names.isdisjoint(PROMPTS):
        return True
    return not names.isdisjoint(("body", "request")) and any(
        b'"%b' % name.encode() in head.replace(b"\\", b"") for name in PROMPTS
    )


def entries(source: Source, *, texts: bool) -> Iterator[Entry]:
    """What a log of requests says."""
    return told(source, _exchanges(source), texts=texts)


def _exchanges(source: Source) -> Iterator[Exchange]:
    for line in source.values():
        row = source.decode(_decoder, line)
        if row is None:
            continue
        body = _body_in(row, line.data)
        if not body:
            source.left_out("lines without a request")
            continue
        usage = row.usage
        if isinstance(usage, dict) and not SHORT.keys().isdisjoint(usage):
            usage = {SHORT.get(name, name): count for name, count in usage.items()}
        facts = facts_of(source, line, inner(row.response), usage, row.provider)
        if facts is None:
            source.left_out("requests that were answered with an error")
            continue
        time = next((at for name in TIMES if (at := instant(getattr(row, name))) is not None), None)
        key = next((each for each in (row.id, row.request_id, facts.get("response"), row.response_id) if each is not None), None)
        yield Exchange(
            body=body,
            read=partial(_body, source.path, line.offset, len(line.data)),
            session=None if row.session_id is None else str(row.session_id),
            key=None if key is None else str(key),
            offset=line.offset,
            sent=time,
            facts={"model": row.model if isinstance(row.model, str) else None, "time": time, **facts},
        )


def _body_in(row: _Row, line: bytes) -> bytes:
    """The body in a line, byte for byte; nothing where there is none."""
    if row.body or row.request:
        return inner(row.body or row.request)
    if not (row.messages or row.input or row.prompt):
        return b""
    if row.request_id is row.session_id is row.timestamp is None and not row.response and row.usage is None:
        return line.strip()
    known = {*ADDED, "response", "usage"}
    members = decode(line, dict[str, Raw])
    return b"{" + b",".join(encode(name) + b":" + bytes(value) for name, value in members.items() if name not in known) + b"}"


def _body(path: Path, offset: int, size: int) -> bytes:
    """The body that was sent, out of its line."""
    with path.open("rb") as file:
        file.seek(offset)
        line = file.read(size)
    return _body_in(_decoder.decode(line), line)
