"""Requests that a log contains with their bodies and responses, and the entries made of them.

Adapters of such logs yield each row as a `LoggedExchange`, in file order. `exchange_entries` assigns them to conversations by
their messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Raw, Struct

from loopkit import engines
from loopkit.contract.provenance import Role
from loopkit.encoding import decode, decode_lenient, sha256
from loopkit.logs.foreign.conversation_matching import ConversationMatcher, Placement
from loopkit.logs.foreign.entries import Entry, MessageEntry, RequestEntry
from loopkit.logs.foreign.message_text import call_text, message_record
from loopkit.logs.foreign.text_source import TextLine, TextSource
from loopkit.logs.own.impossible_reuse import why_impossible
from loopkit.server.completion.finish_reason import finish_reason
from loopkit.server.completion.usage import normalise

__all__ = ["LoggedExchange", "embedded_json", "engine_name", "exchange_entries", "response_facts", "to_log_time"]

SLOT_CANDIDATES = 8
"Maximum number of earlier requests that are listed as other users of a request's slot."
ROLES = {
    "user": Role.User,
    **dict.fromkeys(("system", "developer"), Role.System),
    **dict.fromkeys(("tool", "function", "function_call_output"), Role.ToolResult),
}


class LoggedExchange(Struct, frozen=True, kw_only=True):
    """A completed request with its response."""

    body: bytes | None
    "The request body. None if the log does not have it."
    read_body: Callable[[], bytes] | None = None
    "Function that reads the body again, a ``functools.partial`` that can be pickled."
    session: str | None = None
    "Name of the conversation, or of a group of conversations, in the log. If None, the name of the file is used."
    key: str | None = None
    "Id of the request. Another exchange with the same id and the same body is a repetition."
    offset: int = 0
    "Byte offset of the exchange's line in the file."
    sent: str | int | None = None
    facts: Mapping[str, Any]
    "Other members of `loopkit.logs.foreign.entries.RequestEntry`, such as the usage."


def exchange_entries(
    source: TextSource, exchanges: Iterable[LoggedExchange], *, texts: bool, one_server: bool = False
) -> Iterator[Entry]:
    """Yield the entries of logged exchanges.

    The messages in the body show which conversation an exchange belongs to. An exchange without a body follows the one before it
    only if the log names their session.

    Parameters
    ----------
    source : TextSource
        The file.
    exchanges : iterable of LoggedExchange
        The exchanges in order of their responses.
    texts : bool
        Whether message entries contain their texts.
    one_server : bool
        Whether one server is known to have answered all exchanges, so that they shared its slots.
    """
    groups: dict[str, ConversationMatcher] = {}
    numbers: dict[tuple[str, int], int] = {}
    "Number of each request in the file, by group and number within the group."
    last: dict[str, str] = {}
    answered: list[tuple[str, int, Any]] = []
    "Session, number in the session and send time of each request so far."
    counts: Counter[str] = Counter()
    for number, exchange in enumerate(exchanges):
        group = exchange.session or source.path.stem
        before: str | None
        if exchange.body is None:
            placement, session = Placement(0, None, []), f"{group}.0"
            before = last.get(session) if exchange.session is not None else None
            since = 0
        else:
            matcher = groups.setdefault(group, ConversationMatcher())
            placement = matcher.place(exchange.body)
            numbers[group, len(matcher) - 1] = number
            session = f"{group}.{placement.conversation + 1}"
            follows = None if placement.follows is None else numbers[group, placement.follows]
            before = None if follows is None else str(follows)
            since = 0 if follows is None else follows + 1
        others = answered[max(since, number - SLOT_CANDIDATES) :] if one_server else ()
        counts[session] += 1
        answered.append((session, counts[session], exchange.sent))
        for index, message in enumerate(placement.new):
            link = {"session": session, "id": f"{number}.{index}", "parent": before, "time": exchange.sent}
            yield _message_entry(message, link, exchange.offset if texts else None)
            before = f"{number}.{index}"
        digest = None if exchange.body is None else sha256(exchange.body)
        key = None if exchange.key is None else exchange.key if digest is None else f"{exchange.key} {digest[:16]}"
        last[session] = str(number)
        yield RequestEntry(
            session=session,
            id=str(number),
            parent=before,
            key=key,
            sent=exchange.sent,
            request_bytes=None if exchange.body is None else len(exchange.body),
            request_sha256=digest,
            other_requests=tuple((name, request) for name, request, sent in others if name != session and sent < exchange.sent),
            read_body=exchange.read_body,
            **exchange.facts,
        )


def embedded_json(raw: Raw) -> bytes:
    r"""Return the JSON object or array in a member, which may also be a string that contains it; b"" for anything else.

    Examples
    --------
    >>> embedded_json(Raw(b'"{\\"n\\":1}"')), embedded_json(Raw(b'{"n":1}')), embedded_json(Raw(b'"no"')), embedded_json(Raw())
    (b'{"n":1}', b'{"n":1}', b'', b'')
    """
    data = bytes(raw)
    if data[:1] == b'"':
        try:
            data = decode(data, str).encode()
        except ValueError:
            return b""
    return data if data.lstrip()[:1] in (b"{", b"[") else b""


def to_log_time(value: Any) -> str | int | None:
    """Return a timestamp of a log: text unchanged, a number as microseconds since 1970.

    A number's magnitude shows its unit: seconds, milliseconds, microseconds or nanoseconds.

    Examples
    --------
    >>> [to_log_time(time) for time in (1796029200, 1796029200.5, 1796029200000, "2026-11-30T09:00:00Z", True)]
    [1796029200000000, 1796029200500000, 1796029200000000, '2026-11-30T09:00:00Z', None]
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e20:
        return None
    unit = next(unit for largest, unit in ((1e11, 1e6), (1e14, 1e3), (1e17, 1), (1e20, 1e-3)) if value < largest)
    return round(value * unit)


def response_facts(
    source: TextSource, line: TextLine, response: bytes, usage: Any = None, provider: Any = None
) -> dict[str, Any] | None:
    """Return the values of a response for `LoggedExchange.facts`, or None if the response is an error.

    Parameters
    ----------
    source : TextSource
        The file. Inconsistent token counts are added to its problems.
    line : TextLine
        Line of the response, which problems name.
    response : bytes
        A response, or a list of stream chunks. If several chunks have a member, the last value is used. b"" if the log has no
        response.
    usage : mapping, optional
        Token counts that the log has outside the response.
    provider : str, optional
        Provider name in the log.
    """
    try:
        value = decode_lenient(response or b"{}")
    except ValueError:
        value = {}
    found: dict[str, Any] = {}
    finish = None
    for chunk in _dicts(value if isinstance(value, list) else [value]):
        found |= {name: each for name, each in chunk.items() if each is not None}
        finish = finish_reason(chunk) or finish
    if found.get("error"):
        return None
    counts, timings = (each if isinstance(each, dict) else None for each in (found.get("usage") or usage, found.get("timings")))
    counted = normalise(counts, timings)
    if counted.fault is not None and counted.impossible is None:
        source.count_left_out("inconsistent token counts")
    if provider is None:
        known = engines.find_by_response({**found, "usage": counts, "timings": timings})
        engine = None if known is None else known.name
    else:
        engine = engine_name(provider)
    why = counted.impossible or why_impossible(counted.usage.cached_tokens, counted.usage.prompt_tokens, engine)
    if why is not None:
        source.add_impossible_reuse(line, why)
    texts = {"response": found.get("id"), "model": found.get("model"), "finish_reason": finish}
    return {"usage": counted.usage, "engine": engine, **{name: text for name, text in texts.items() if isinstance(text, str)}}


def engine_name(provider: object) -> str | None:
    """Return the name of the engine that logs call `provider`, or None if it is unknown."""
    found = engines.find_by_log_name(provider)
    return None if found is None else found.name


def _message_entry(message: bytes, link: dict[str, Any], offset: int | None) -> MessageEntry:
    """Return the entry of a message in a body. It contains the text only if `offset`, the offset of its line, is given."""
    try:
        value: Any = decode_lenient(message)
    except ValueError:
        value = None
    value = value if isinstance(value, dict) else {}
    role = ROLES.get(str(value.get("role") or value.get("type")), Role.Assistant)
    content = value.get("content", value.get("output"))
    blocks = _dicts(content)
    results = sum(block.get("type") == "tool_result" for block in blocks) or int(role is Role.ToolResult)
    role = Role.ToolResult if results else role
    record = None
    if offset is not None:
        texts = [content] if isinstance(content, str) else [_text(block) for block in blocks]
        calls = [_call_text(each.get("function", each)) for each in (value, *blocks, *_dicts(value.get("tool_calls")))]
        text = "\n".join(filter(None, texts + calls))
        record = message_record(role, text, session=link["session"], time=link["time"], offset=offset)
    tool = value.get("name") if results and isinstance(value.get("name"), str) else None
    return MessageEntry(**link, role=role, starts_turn=role is Role.User, results=results, tool=tool, record=record)


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(block: dict[str, Any]) -> str:
    return next((block[name] for name in ("text", "thinking", "content") if isinstance(block.get(name), str)), "")


def _call_text(call: Any) -> str:
    """Return a tool call as text, or "" for anything else."""
    arguments = None if not isinstance(call, dict) else call.get("arguments", call.get("input"))
    return "" if arguments is None else call_text(call.get("name"), arguments)
