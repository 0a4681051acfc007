"""OpenTelemetry spans of generative AI: OTLP JSON, one export per line or one document, and flat spans of console exporters.

A span is a request if it has token counts and a model operation, such as ``chat``. Spans of agents sum up the counts of the spans
below them, so they are not requests. By OpenTelemetry's conventions, ``gen_ai.usage.input_tokens`` includes cached tokens.
Requests with the same conversation id form a conversation; without an id, the requests with the same parent span. Spans are
sorted by start time, because exporters write a span when it ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from loopkit.contract.provenance import Role
from loopkit.encoding import decode
from loopkit.logs.foreign.entries import ConversationStart, Entry, LogTime, MessageEntry, RequestEntry
from loopkit.logs.foreign.log_file import first_member_names
from loopkit.logs.foreign.logged_exchanges import engine_name
from loopkit.logs.foreign.text_source import TextSource
from loopkit.server.completion.usage import normalise

__all__ = ["NAME", "entries", "recognises"]

NAME = "otel"

OPERATIONS = ("chat", "text_completion", "generate_content")
USAGE = "gen_ai.usage."
COUNTS = {
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
    "cache_read.input_tokens": "cached_tokens",
    "cache_read_input_tokens": "cached_tokens",
    "cache_creation.input_tokens": "cache_creation_input_tokens",
    "cache_creation_input_tokens": "cache_creation_input_tokens",
    "reasoning.output_tokens": "reasoning_tokens",
    "details.reasoning_tokens": "reasoning_tokens",
}
"OpenTelemetry's names of token counts, and their names as in chat completions, where the prompt includes cached tokens."
KINDS = {"stringValue": str, "intValue": int, "doubleValue": float, "boolValue": bool}


class _ModelSpan(NamedTuple):
    """A span of an OTLP export or of a console exporter."""

    trace: str
    id: str
    parent: str | None
    started: LogTime
    ended: LogTime
    attributes: dict[str, Any]
    failed: bool

    @property
    def conversation(self) -> str:
        named = self.attributes.get("gen_ai.conversation.id")
        agent = self.attributes.get("gen_ai.agent.name")
        if named is None:
            return f"{self.trace}:{self.parent or self.id}"
        return str(named) if agent is None else f"{named}:{agent}"


def recognises(head: bytes) -> bool:
    """Return True if a file with these first bytes contains OpenTelemetry spans.

    Examples
    --------
    >>> recognises(b'{"resourceSpans":[]}'), recognises(b'{"name":"chat","attributes":{"gen_ai.system":"openai"}}')
    (True, True)
    """
    names = first_member_names(head)
    return "resourceSpans" in names or ("attributes" in names and b"gen_ai." in head)


def entries(source: TextSource, *, texts: bool) -> Iterator[Entry]:
    """Yield the entries of the spans. `texts` is ignored: the messages have no texts."""
    conversations: dict[str, list[_ModelSpan]] = {}
    for span in _spans(source):
        operation = span.attributes.get("gen_ai.operation.name", "chat")
        counted = any(name.startswith(USAGE) for name in span.attributes)
        if operation in OPERATIONS and counted:
            conversations.setdefault(span.conversation, []).append(span)
        elif operation in OPERATIONS and span.failed:
            source.count_left_out("spans that ended with an error")
        else:
            source.count_left_out(
                "spans that are not requests" if not counted else f"spans of the operation {str(operation)[:40]!a}"
            )
    for session, spans in conversations.items():
        yield ConversationStart(session=session)
        before: str | None = None
        run: str | None = ""
        for span in sorted(spans, key=lambda span: (str(span.started), str(span.ended))):
            place = f"{span.trace} {span.id}"
            if span.parent != run:  # another run of the agent starts a turn
                yield MessageEntry(session, f"{place} asked", before, span.started, role=Role.User, starts_turn=True)
                before, run = f"{place} asked", span.parent
            yield _request_entry(source, session, place, before, span)
            before = place


def _request_entry(source: TextSource, session: str, place: str, before: str | None, span: _ModelSpan) -> RequestEntry:
    attributes = span.attributes
    counts = {ours: attributes[USAGE + name] for name, ours in COUNTS.items() if USAGE + name in attributes}
    counted = normalise(counts)
    if counted.fault is not None:
        source.count_left_out("inconsistent token counts")
    provider = attributes.get("gen_ai.provider.name", attributes.get("gen_ai.system"))
    reasons = attributes.get("gen_ai.response.finish_reasons")
    model = attributes.get("gen_ai.response.model", attributes.get("gen_ai.request.model"))
    return RequestEntry(
        session,
        place,
        before,
        span.ended,
        usage=counted.usage,
        key=place,
        response=_text(attributes.get("gen_ai.response.id")),
        model=_text(model),
        engine=engine_name(provider),
        finish_reason=_text(reasons[0]) if isinstance(reasons, list) and reasons else None,
        sent=span.started,
    )


def _spans(source: TextSource) -> Iterator[_ModelSpan]:
    for line in source.json_values():
        try:
            value = decode(line.data)
        except ValueError as error:
            source.add_fault(line, f"cannot decode the line: {error}")
            continue
        found = list(_export_spans(value)) if isinstance(value, dict) and "resourceSpans" in value else [_flat_span(value)]
        sound = [span for span in found if span is not None]
        if len(sound) < len(found):
            source.count_left_out("spans without a trace id and a span id", len(found) - len(sound))
        yield from sound


def _export_spans(value: dict[str, Any]) -> Iterator[_ModelSpan | None]:
    """Yield the spans of an OTLP export; None for a span without ids."""
    for resource in _dicts(value["resourceSpans"]):
        for scope in _dicts(resource.get("scopeSpans")):
            for span in _dicts(scope.get("spans")):
                attributes = {str(each.get("key")): _otlp_value(each.get("value")) for each in _dicts(span.get("attributes"))}
                yield _new_span(
                    (span.get("traceId"), span.get("spanId"), span.get("parentSpanId")),
                    (_microseconds(span.get("startTimeUnixNano")), _microseconds(span.get("endTimeUnixNano"))),
                    attributes,
                    failed=_dict(span.get("status")).get("code") in (2, "STATUS_CODE_ERROR"),
                )


def _flat_span(span: Any) -> _ModelSpan | None:
    """Return the span of a console exporter, or None if it has no ids. Its attributes are a plain object."""
    if not isinstance(span, dict):
        return None
    context, attributes = _dict(span.get("context")), _dict(span.get("attributes"))
    return _new_span(
        (
            *(context.get(name, span.get(name)) for name in ("trace_id", "span_id")),
            span.get("parent_id", span.get("parent_span_id")),
        ),
        (_text(span.get("start_time")), _text(span.get("end_time"))),
        attributes,
        failed=_dict(span.get("status")).get("status_code") == "ERROR",
    )


def _new_span(
    ids: tuple[Any, ...], times: tuple[LogTime, LogTime], attributes: dict[str, Any], *, failed: bool
) -> _ModelSpan | None:
    trace, id, parent = map(_text, ids)
    return None if trace is None or id is None else _ModelSpan(trace, id, parent or None, *times, attributes, failed)


def _otlp_value(value: Any) -> Any:
    """Return the value in an OTLP object such as ``{"intValue": "5"}``, which names its type. Integers are strings there."""
    value = _dict(value)
    if "arrayValue" in value:
        return [_otlp_value(each) for each in _dicts(_dict(value["arrayValue"]).get("values"))]
    for name, kind in KINDS.items():
        if name in value:
            try:
                return kind(value[name])
            except (TypeError, ValueError, OverflowError):
                return None
    return None


def _microseconds(value: Any) -> int | None:
    try:
        return int(value) // 1000 or None  # 0 means unknown
    except (TypeError, ValueError, OverflowError):
        return None


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
