"""Rows of LiteLLM and of gateways (Helicone, Langfuse): a request and its answer, often JSON within strings.

LiteLLM's prompt counts have the cached tokens in them, whoever the provider was. What its own cache answered never reached a
provider, and is left out. Rows without a body go on from one another within the session that they name; a row that names none
stands for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Raw

from loopkit.encoding import decode
from loopkit.logs.foreign.entries import Entry
from loopkit.logs.foreign.exchanges import Exchange, facts_of, inner, instant, told
from loopkit.logs.foreign.text_source import Line, Source, first_members

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
"Langfuse's names of counts, where it does not keep the provider's."


def recognises(head: bytes) -> bool:
    """Whether a file that begins so holds rows of a gateway.

    Examples
    --------
    >>> recognises(b'{"request_id":"r","call_type":"acompletion","model":"m","prompt_tokens":9}')
    True
    """
    names = first_members(head)
    return not names.isdisjoint(MARKS) or names >= {"input", "output", "model"}


def entries(source: Source, *, texts: bool) -> Iterator[Entry]:
    """What rows say."""
    return told(source, _exchanges(source), texts=texts)


def _exchanges(source: Source) -> Iterator[Exchange]:
    for line in source.values():
        row = _members(source, line)
        if row is None:
            continue
        if _value(row, "cache_hit") in (True, "True", "true"):
            source.left_out("requests that the gateway's own cache answered")
            continue
        metadata = _object(row.get("metadata"))
        usage = _object(row.get("usage")) or _object(row.get("usageDetails")) or metadata.get("usage_object")
        usage = usage or {name: _value(row, name) for name in COUNTS if name in row}
        usage = {DETAILS.get(name, name): count for name, count in usage.items()} if isinstance(usage, dict) else {}
        provider = _value(row, "custom_llm_provider", "provider")
        facts = facts_of(source, line, _first(row, ANSWERS), usage, provider)
        if facts is None or _value(row, "status") == "failure" or _value(row, "level") == "ERROR":
            source.left_out("requests that were answered with an error")
            continue
        session, key, model = (_value(row, *names) for names in (SESSIONS, IDS, ("model",)))
        session = session or metadata.get("session_id")
        body = _body_in(row)
        if not body and not usage and facts["usage"].prompt_tokens is None:
            source.left_out("lines without a request")
            continue
        yield Exchange(
            body=body or None,
            read=partial(_body, source.path, line.offset, len(line.data)) if body else None,
            session=None if session is None else str(session),
            key=None if key is None else str(key),
            offset=line.offset,
            sent=instant(_value(row, *STARTED)),
            facts={"model": model if isinstance(model, str) else None, "time": instant(_value(row, *ENDED)), **facts},
        )


def _members(source: Source, line: Line) -> dict[str, Raw] | None:
    try:
        return decode(line.data, dict[str, Raw])
    except ValueError as error:
        source.fault(line, f"it cannot be read: {error}")
        return None


def _value(row: Mapping[str, Raw], *names: str) -> Any:
    """The first of some members that is not null; None where there is none."""
    for name in names:
        try:
            value = decode(bytes(row[name])) if name in row else None
        except ValueError:
            value = None
        if value is not None:
            return value
    return None


def _object(raw: Raw | None) -> dict[str, Any]:
    """A member that is an object, or a string that holds one."""
    try:
        value = decode(inner(raw or Raw()) or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _first(row: Mapping[str, Raw], names: tuple[str, ...]) -> bytes:
    return next((found for name in names if name in row and (found := inner(row[name]))), b"")


def _body_in(row: Mapping[str, Raw]) -> bytes:
    """The body in a row, as its bytes are; one made of the messages where the row has only these."""
    found = _first(row, BODIES)
    if found[:1] == b"{":
        try:
            return inner(decode(found, dict[str, Raw]).get("body", Raw())) or found  # LiteLLM's proxy_server_request
        except ValueError:
            return found
    messages = found or _first(row, ("messages",))
    return b'{"messages":' + messages + b"}" if messages[:1] == b"[" else b""


def _body(path: Path, offset: int, size: int) -> bytes:
    """The body that was sent, out of its line."""
    with path.open("rb") as file:
        file.seek(offset)
        return _body_in(decode(file.read(size), dict[str, Raw]))
