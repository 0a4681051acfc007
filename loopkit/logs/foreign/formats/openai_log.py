"""OpenAI-style request logs: one request per line, with its body, response and token counts.

The body is in ``body`` or ``request``, the response in ``response``, and counts may also be in ``usage``. Counts may have
OpenAI's or Anthropic's names, or the short forms ``cache_read`` and ``cache_write``. If a line has ``messages`` at the top level
(kvlint, cachelint), the line is the body; members that the logger added, such as ``request_id``, are removed. Bodies keep their
original bytes, so a cause can name the first byte that differs. One logged session may contain several conversations. They are
distinguished by their messages and named ``<session>.1``, ``<session>.2``, ….
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
from loopkit.logs.foreign.log_file import first_member_names, read_range
from loopkit.logs.foreign.logged_exchanges import LoggedExchange, embedded_json, exchange_entries, response_facts, to_log_time
from loopkit.logs.foreign.text_source import TextSource

__all__ = ["NAME", "entries", "recognises"]

NAME = "openai"

PROMPTS = ("messages", "input", "prompt")
ADDED_MEMBERS = ("request_id", "session_id", "timestamp")
"Members that kvlint adds to the body, and that are removed again."
RECORDING_MEMBERS = ("kind", "ended", "elapsed_ms")
"Members of loopkit's own recordings. A file with one of them is not of this format, even if it is a damaged recording."
TIMES = ("at", "timestamp", "created_at", "time", "ts")
SHORT_NAMES = {"cache_read": "cache_read_input_tokens", "cache_write": "cache_creation_input_tokens"}
"promptcachelint's short names, and Anthropic's names for the same counts. ``input_tokens`` excludes these tokens."


class _LogLine(Struct):
    """A line. Members other than the body accept any type; a value of an unexpected type counts as missing."""

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


_decoder = msgspec.json.Decoder(_LogLine)


def recognises(head: bytes) -> bool:
    """Return True if a file with these first bytes is an OpenAI-style request log.

    Examples
    --------
    >>> recognises(b'{"body":{"model":"m","messages":[]},"response":{}}'), recognises(b'{"model":"m","messages":[]}')
    (True, True)
    """
    names = first_member_names(head)
    if not names.isdisjoint(RECORDING_MEMBERS):
        return False
    if "model" in names and not names.isdisjoint(PROMPTS):
        return True
    return not names.isdisjoint(("body", "request")) and any(
        b'"%b' % name.encode() in head.replace(b"\\", b"") for name in PROMPTS
    )


def entries(source: TextSource, *, texts: bool) -> Iterator[Entry]:
    """Yield the entries of a request log. Messages contain their texts only with ``texts=True``."""
    return exchange_entries(source, _exchanges(source), texts=texts)


def _exchanges(source: TextSource) -> Iterator[LoggedExchange]:
    for line in source.json_values():
        row = source.decode(_decoder, line)
        if row is None:
            continue
        body = _body_in(row, line.data)
        if not body:
            source.count_left_out("lines without a request")
            continue
        usage = row.usage
        if isinstance(usage, dict) and not SHORT_NAMES.keys().isdisjoint(usage):
            usage = {SHORT_NAMES.get(name, name): count for name, count in usage.items()}
        facts = response_facts(source, line, embedded_json(row.response), usage, row.provider)
        if facts is None:
            source.count_left_out("requests with an error response")
            continue
        time = next((at for name in TIMES if (at := to_log_time(getattr(row, name))) is not None), None)
        key = next((each for each in (row.id, row.request_id, facts.get("response"), row.response_id) if each is not None), None)
        yield LoggedExchange(
            body=body,
            read_body=partial(_body, source.path, line.offset, len(line.data)),
            session=None if row.session_id is None else str(row.session_id),
            key=None if key is None else str(key),
            offset=line.offset,
            sent=time,
            facts={"model": row.model if isinstance(row.model, str) else None, "time": time, **facts},
        )


def _body_in(row: _LogLine, line: bytes) -> bytes:
    """Return the request body in a line, with its original bytes, or b"" if the line has no body."""
    if row.body or row.request:
        return embedded_json(row.body or row.request)
    if not (row.messages or row.input or row.prompt):
        return b""
    if row.request_id is row.session_id is row.timestamp is None and not row.response and row.usage is None:
        return line.strip()
    known = {*ADDED_MEMBERS, "response", "usage"}
    members = decode(line, dict[str, Raw])
    return b"{" + b",".join(encode(name) + b":" + bytes(value) for name, value in members.items() if name not in known) + b"}"


def _body(path: Path, offset: int, size: int) -> bytes:
    """Read a request body again, from its line in the file."""
    line = read_range(path, offset, size)
    return _body_in(_decoder.decode(line), line)
