"""OpenTelemetry spans of generative AI: OTLP's JSON, one export a line or one document, and flat ones, as to a console.

A request is a span with counts whose operation is one of a model's; spans of agents add up those below them and are no requests.
``gen_ai.usage.input_tokens`` has the cached tokens in it, as the conventions say. A conversation is what the spans name; without
a name, the requests below one span. Spans are put in the order of their beginnings, for exporters write them as they end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from loopkit.contract.provenance import Role
from loopkit.encoding import decode
from loopkit.logs.foreign.entries import Call, Conversation, Entry, Said, When
from loopkit.logs.foreign.exchanges import PROVIDERS
from loopkit.logs.foreign.text_source import Source, first_members
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
"As the dialect of chat completions, which has the cached tokens in the prompt, calls them."
KINDS = {"stringValue": str, "intValue": int, "doubleValue": float, "boolValue": bool}


class _Span(NamedTuple):
    """A span of either form."""

    trace: str
    id: str
    parent: str | None
    began: When
    ended: When
    about: dict[str, Any]
    failed: bool

    @property
    def conversation(self) -> str:
        named = self.about.get("gen_ai.conversation.id")
        agent = self.about.get("gen_ai.agent.name")
        if named is None:
            return f"{self.trace}:{self.parent or self.id}"
        return str(named) if agent is None else f"{named}:{agent}"


def recognises(head: bytes) -> bool:
    """Whether a file that begins so holds spans.

    Examples
    --------
    >>> recognises(b'{"resourceSpans":[]}'), recognises(b'{"name":"chat","attributes":{"gen_ai.system":"openai"}}')
    (True, True)
    """
    names = first_members(head)
    return "resourceSpans" in names or ("attributes" in names and b"gen_ai." in head)


def entries(source: Source, *, texts: bool) -> Iterator[Entry]:
    """What spans say; texts are not taken from them."""
    talks: dict[str, list[_Span]] = {}
    for span in _spans(source):
        operation = span.about.get("gen_ai.operation.name", "chat")
        counted = any(name.startswith(USAGE) for name in span.about)
        if operation in OPERATIONS and counted:
            talks.setdefault(span.conversation, []).append(span)
        elif operation in OPERATIONS and span.failed:
            source.left_out("spans that ended in an error")
        else:
            source.left_out("spans that are no request" if not counted else f"spans of the operation {str(operation)[:40]!a}")
    for session, spans in talks.items():
        yield Conversation(session=session)
        before: str | None = None
        above: str | None = ""
        for span in sorted(spans, key=lambda span: (str(span.began), str(span.ended))):
            place = f"{span.trace} {span.id}"
            if span.parent != above:  # another run of the agent: a person asked
                yield Said(session, f"{place} asked", before, span.began, role=Role.User, asks=True)
                before, above = f"{place} asked", span.parent
            yield _call(source, session, place, before, span)
            before = place


def _call(source: Source, session: str, place: str, before: str | None, span: _Span) -> Call:
    about = span.about
    counts = {ours: about[USAGE + name] for name, ours in COUNTS.items() if USAGE + name in about}
    counted = normalise(counts)
    if counted.fault is not None:
        source.left_out("counts that do not add up")
    provider = about.get("gen_ai.provider.name", about.get("gen_ai.system"))
    reasons = about.get("gen_ai.response.finish_reasons")
    model = about.get("gen_ai.response.model", about.get("gen_ai.request.model"))
    return Call(
        session,
        place,
        before,
        span.ended,
        usage=counted.usage,
        key=place,
        response=_text(about.get("gen_ai.response.id")),
        model=_text(model),
        engine=PROVIDERS.get(str(provider).lower()),
        finish=_text(reasons[0]) if isinstance(reasons, list) and reasons else None,
        sent=span.began,
    )


def _spans(source: Source) -> Iterator[_Span]:
    for line in source.values():
        try:
            value = decode(line.data)
        except ValueError as error:
            source.fault(line, f"it cannot be read: {error}")
            continue
        found = list(_exported(value)) if isinstance(value, dict) and "resourceSpans" in value else [_flat(value)]
        sound = [span for span in found if span is not None]
        if len(sound) < len(found):
            source.left_out("spans that are none", len(found) - len(sound))
        yield from sound


def _exported(value: dict[str, Any]) -> Iterator[_Span | None]:
    """The spans of an export."""
    for resource in _dicts(value["resourceSpans"]):
        for scope in _dicts(resource.get("scopeSpans")):
            for span in _dicts(scope.get("spans")):
                about = {str(each.get("key")): _plain(each.get("value")) for each in _dicts(span.get("attributes"))}
                yield _made(
                    (span.get("traceId"), span.get("spanId"), span.get("parentSpanId")),
                    (_microseconds(span.get("startTimeUnixNano")), _microseconds(span.get("endTimeUnixNano"))),
                    about,
                    failed=_dict(span.get("status")).get("code") in (2, "STATUS_CODE_ERROR"),
                )


def _flat(span: Any) -> _Span | None:
    """A span by itself, its attributes an object."""
    if not isinstance(span, dict):
        return None
    context, about = _dict(span.get("context")), _dict(span.get("attributes"))
    return _made(
        (
            *(context.get(name, span.get(name)) for name in ("trace_id", "span_id")),
            span.get("parent_id", span.get("parent_span_id")),
        ),
        (_text(span.get("start_time")), _text(span.get("end_time"))),
        about,
        failed=_dict(span.get("status")).get("status_code") == "ERROR",
    )


def _made(ids: tuple[Any, ...], times: tuple[When, When], about: dict[str, Any], *, failed: bool) -> _Span | None:
    trace, id, parent = map(_text, ids)
    return None if trace is None or id is None else _Span(trace, id, parent or None, *times, about, failed)


def _plain(value: Any) -> Any:
    """A value of OTLP: an object that names its kind; whole numbers are strings."""
    value = _dict(value)
    if "arrayValue" in value:
        return [_plain(each) for each in _dicts(_dict(value["arrayValue"]).get("values"))]
    for name, kind in KINDS.items():
        if name in value:
            try:
                return kind(value[name])
            except (TypeError, ValueError, OverflowError):
                return None
    return None


def _microseconds(value: Any) -> int | None:
    try:
        return int(value) // 1000 or None  # 0 is not known
    except (TypeError, ValueError, OverflowError):
        return None


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
