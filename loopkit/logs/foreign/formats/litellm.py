"""Rows of LiteLLM and of gateways (Helicone, Langfuse): a request and its response, often as JSON in strings.

LiteLLM's prompt counts include cached tokens for all providers. Responses from its own cache are left out, because no provider
saw them. A row without a body continues the previous row with the same session id. A row with neither begins
a conversation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Raw

from loopkit.encoding import decode
from loopkit.logs.foreign.entries import Entry
from loopkit.logs.foreign.log_file import first_member_names, read_range
from loopkit.logs.foreign.logged_exchanges import LoggedExchange, embedded_json, exchange_entries, response_facts, to_log_time
from loopkit.logs.foreign.text_source import TextLine, TextSource

__all__ = ["NAME", "entries", "recognises"]

NAME = "litellm"

BODIES = ("request_body", "proxy_server_request", "request", "body", "kwargs", "input")
ANSWERS = ("response_body", "completion_response", "response", "output")
MARKS = {
    "request_body",
    "response_body",
    "completion_response",
    "custom_llm_provider",
    "litellm_params",
    "litellm_call_id",
    "kwargs",
}
MARKS |= {"call_type", "model_group", "usageDetails"}
IDS = ("request_id", "id", "litellm_call_id")
SESSIONS = ("session_id", "sessionId", "trace_id", "traceId")
STARTED = ("startTime", "start_time", "request_created_at", "timestamp", "created_at", "ts")
ENDED = ("endTime", "end_time", "response_created_at", *STARTED)
COUNTS = ("prompt_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details", "total_tokens")
DETAILS = {"input": "input_tokens", "output": "output_tokens", "total": "total_tokens"}
"Langfuse's names of token counts, and the names used here."


def recognises(head: bytes) -> bool:
    """Return True if a file with these first bytes contains rows of LiteLLM or another gateway.

    Examples
    --------
    >>> recognises(b'{"request_id":"r","call_type":"acompletion","model":"m","prompt_tokens":9}')
    True
    """
    names = first_member_names(head)
    return not names.isdisjoint(MARKS) or names >= {"input", "output", "model"}


def entries(source: TextSource, *, texts: bool) -> Iterator[Entry]:
    """Yield the entries of the rows. Messages contain their texts only with ``texts=True``."""
    return exchange_entries(source, _exchanges(source), texts=texts)


def _exchanges(source: TextSource) -> Iterator[LoggedExchange]:
    for line in source.json_values():
        row = _members(source, line)
        if row is None:
            continue
        if _value(row, "cache_hit") in (True, "True", "true"):
            source.count_left_out("requests answered by the gateway's own cache")
            continue
        metadata = _object(row.get("metadata"))
        usage = _object(row.get("usage")) or _object(row.get("usageDetails")) or metadata.get("usage_object")
        usage = usage or {name: _value(row, name) for name in COUNTS if name in row}
        usage = {DETAILS.get(name, name): count for name, count in usage.items()} if isinstance(usage, dict) else {}
        provider = _value(row, "custom_llm_provider", "provider")
        facts = response_facts(source, line, _first(row, ANSWERS), usage, provider)
        if facts is None or _value(row, "status") == "failure" or _value(row, "level") == "ERROR":
            source.count_left_out("requests with an error response")
            continue
        session, key, model = (_value(row, *names) for names in (SESSIONS, IDS, ("model",)))
        session = session or metadata.get("session_id")
        body = _body_in(row)
        if not body and not usage and facts["usage"].prompt_tokens is None:
            source.count_left_out("lines without a request")
            continue
        yield LoggedExchange(
            body=body or None,
            read_body=partial(_body, source.path, line.offset, len(line.data)) if body else None,
            session=None if session is None else str(session),
            key=None if key is None else str(key),
            offset=line.offset,
            sent=to_log_time(_value(row, *STARTED)),
            facts={"model": model if isinstance(model, str) else None, "time": to_log_time(_value(row, *ENDED)), **facts},
        )


def _members(source: TextSource, line: TextLine) -> dict[str, Raw] | None:
    try:
        return decode(line.data, dict[str, Raw])
    except ValueError as error:
        source.add_fault(line, f"cannot decode the line: {error}")
        return None


def _value(row: Mapping[str, Raw], *names: str) -> Any:
    """Return the value of the first of these members that is not null, or None."""
    for name in names:
        try:
            value = decode(bytes(row[name])) if name in row else None
        except ValueError:
            value = None
        if value is not None:
            return value
    return None


def _object(raw: Raw | None) -> dict[str, Any]:
    """Return the object in a member, which may also be a string that contains it; {} for anything else."""
    try:
        value = decode(embedded_json(raw or Raw()) or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _first(row: Mapping[str, Raw], names: tuple[str, ...]) -> bytes:
    return next((found for name in names if name in row and (found := embedded_json(row[name]))), b"")


def _body_in(row: Mapping[str, Raw]) -> bytes:
    """Return the request body in a row, byte for byte, or a body made from the row's messages; b"" if there are no messages."""
    found = _first(row, BODIES)
    if found[:1] == b"{":
        try:
            return embedded_json(decode(found, dict[str, Raw]).get("body", Raw())) or found  # LiteLLM's proxy_server_request
        except ValueError:
            return found
    messages = found or _first(row, ("messages",))
    return b'{"messages":' + messages + b"}" if messages[:1] == b"[" else b""


def _body(path: Path, offset: int, size: int) -> bytes:
    """Read a request body again, from its line in the file."""
    return _body_in(decode(read_range(path, offset, size), dict[str, Raw]))
