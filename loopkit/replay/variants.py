"""Variants: deliberate changes of a request, each a mistake that real clients make, to measure what it costs.

A variant takes a request, split into JSON texts, and returns an edited request. Parts that it does not edit keep their bytes. The
result depends only on the input, so that a run can be repeated: the time is part of the input, and a shuffle depends only on the
number of the request.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Raw

from loopkit.cache.prefixes.prompt_parts import read
from loopkit.cache.prefixes.splice import spliced
from loopkit.encoding import decode, encode
from loopkit.errors import InvalidConfig, kind_of

__all__ = ["VARIANTS", "Change", "EditableRequest", "Variant", "applied", "variant_of", "window"]

RESULTS_KEPT: Final = 3
TURNS_KEPT: Final = 2
CLEARED: Final = b'"(This result was cleared to save space.)"'


class EditableRequest(NamedTuple):
    """A request split into JSON texts: the input and the result of a variant. Edit it with ``_replace``.

    Examples
    --------
    >>> request = EditableRequest({"model": b'"tiny"'}, [b'{"role":"user","content":"Hi."}'], 1, "2026-11-30T07:31:05.000000Z")
    >>> request._replace(members={**request.members, "temperature": b"0.5"}).members
    {'model': b'"tiny"', 'temperature': b'0.5'}
    """

    members: Mapping[str, bytes]
    "The members of the body except the messages, by name. Each value is JSON text in bytes (a string includes its quotes)."
    messages: Sequence[bytes]
    "The messages, in order, each as JSON text in bytes."
    number: int
    "Number of the request within the replay, from 1."
    timestamp: str
    "Time at which the request is sent, in RFC 3339."


Change: TypeAlias = Callable[[EditableRequest], EditableRequest]


class Variant(NamedTuple):
    """A named change of requests. The change is a function that takes and returns an `EditableRequest`.

    Examples
    --------
    >>> def shouting(request: EditableRequest) -> EditableRequest:
    ...     return request._replace(messages=[text.upper() if b"user" in text else text for text in request.messages])
    >>> body = b'{"messages":[{"role":"system","content":"Hi"}, {"role":"user","content":"ho"}]}'
    >>> applied(variant_of(shouting), body, 1, "2026-11-30T07:31:05.000000Z")
    b'{"messages":[{"role":"system","content":"Hi"}, {"ROLE":"USER","CONTENT":"HO"}]}'
    """

    name: str
    change: Change


def applied(variant: Variant, body: bytes, number: int, timestamp: str) -> bytes:
    """Apply a variant to the body of a request and return the changed body.

    Raises
    ------
    InvalidConfig
        If the body is not a chat request, or the variant does not return a valid `EditableRequest`.
    """
    found = read(body)
    if found is None or found.opening is None:
        why = f"the body of request {number} is not a JSON object with messages and unique members"
        raise InvalidConfig("requests", why, "Replay it without a variant")
    values = {name: bytes(value) for name, value in decode(body, dict[str, Raw]).items()}
    opening, messages = found.opening.name, [body[span.start : span.stop] for span in found.messages]
    members = {name: value for name, value in values.items() if name != opening}
    try:
        given = variant.change(EditableRequest(members, messages, number, timestamp))
    except msgspec.MsgspecError as error:
        raise InvalidConfig("requests", f"request {number} is not a chat request: {error}", "Leave this request out") from error
    if not _is_valid(given):
        why = f"{variant.name} did not return an EditableRequest of JSON texts in bytes for request {number}"
        raise InvalidConfig("variant", why, "Return request._replace(…)")
    changes: dict[str, bytes | None] = {name: value for name, value in given.members.items() if values.get(name) != value}
    changes |= dict.fromkeys(members.keys() - given.members.keys())
    if list(given.messages) != messages:
        changes[opening] = b"[" + b",".join(given.messages) + b"]"
    changed = spliced(body, changes) if changes else body
    if changes and read(changed) is None:
        raise InvalidConfig("variant", f"{variant.name} returned invalid JSON for request {number}", "Return JSON texts in bytes")
    return changed


def _is_valid(given: object) -> bool:
    """Return True if the result of a variant is an `EditableRequest` whose members and messages are bytes."""
    if (
        not isinstance(given, EditableRequest)
        or not isinstance(given.members, Mapping)
        or not isinstance(given.messages, list | tuple)
    ):
        return False
    texts = [*given.members.values(), *given.messages]
    return all(isinstance(name, str) for name in given.members) and all(isinstance(text, bytes | Raw) for text in texts)


def variant_of(what: Variant | Change | str) -> Variant:
    """Return the variant with this name, or a variant with this function and its name.

    Examples
    --------
    >>> variant_of("window(4)").name
    'window(4)'
    >>> variant_of("live_systm")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidConfig: variant: unknown variant 'live_systm'. Choose from clock_in_system, ..., window(n)
    """
    if isinstance(what, Variant):
        return what
    if callable(what):
        return Variant(getattr(what, "__name__", type(what).__name__), what)
    if isinstance(what, str) and (turns := re.fullmatch(r"window\(([0-9]{1,9})\)", what)):
        return window(int(turns[1]))
    if not isinstance(what, str):
        raise InvalidConfig(
            "variant", f"expected a variant; got {kind_of(what)}", "Give a name or a function; `compare` takes several"
        )
    if what not in VARIANTS:
        raise InvalidConfig("variant", f"unknown variant {what!r}", f"Choose from {', '.join([*sorted(VARIANTS), 'window(n)'])}")
    return VARIANTS[what]


def window(turns: int) -> Variant:
    """Return the variant that drops all but the last `turns` turns of the conversation.

    A turn begins with a user message, so tool calls and their results stay together.
    """
    if turns < 1:
        raise InvalidConfig("variant", f"window({turns}) would send no turn", "Give at least 1")

    def change(sent: EditableRequest) -> EditableRequest:
        starts = _turns(sent.messages)
        if len(starts) <= turns:
            return sent
        return sent._replace(messages=[*sent.messages[: starts[0]], *sent.messages[starts[-turns] :]])

    return Variant(f"window({turns})", change)


def _clock_in_system(sent: EditableRequest) -> EditableRequest:
    """Put the current time, to the microsecond, at the start of the system prompt: the most common mistake."""
    return _before_system(sent, f"The time is {sent.timestamp}.\n\n")


def _live_system(sent: EditableRequest) -> EditableRequest:
    """Put a line that changes each turn, with the number of user messages so far, at the start of the system prompt."""
    return _before_system(sent, f"Messages from the user so far: {len(_turns(sent.messages))}.\n\n")


def _before_system(sent: EditableRequest, line: str) -> EditableRequest:
    at = next((at for at, text in enumerate(sent.messages) if _member(text, "role") in ("system", "developer")), None)
    if at is None:
        return sent
    content = _member(sent.messages[at], "content")
    parts = [{"type": "text", "text": line}, *content] if isinstance(content, list) else line + (content or "")
    return _with_messages(sent, {at: spliced(sent.messages[at], {"content": encode(parts)})})


def _tools_shuffled(sent: EditableRequest) -> EditableRequest:
    """Shuffle the tools in each request, as if they came from a set. Two tools keep their order half of the time."""
    tools = _items(sent.members.get("tools", b"[]"))
    random.Random(sent.number).shuffle(tools)  # noqa: S311  # reproducible, not secret
    return sent._replace(members={**sent.members, "tools": _array(tools)}) if len(tools) > 1 else sent


def _history_reserialised(sent: EditableRequest) -> EditableRequest:
    """Re-serialise the tool-call arguments of earlier turns: keys sorted, no spaces."""
    earlier = sent.messages[: max(_turns(sent.messages), default=0)]
    return _with_messages(sent, {at: _reserialised(text) for at, text in enumerate(earlier)})


def _reserialised(message: bytes) -> bytes:
    calls = decode(message, dict[str, Raw]).get("tool_calls", b"null")
    rewritten = []
    for call in _items(calls):
        function = decode(call, dict[str, Raw]).get("function", Raw(b"{}"))
        written = _member(function, "arguments")
        try:
            value = decode(written) if isinstance(written, str) else None
        except ValueError:  # invalid JSON cannot be stored as an object
            value = None
        if isinstance(value, dict):
            text = encode(dict(sorted(value.items()))).decode()
            call = Raw(spliced(bytes(call), {"function": spliced(bytes(function), {"arguments": encode(text)})}))
        rewritten.append(call)
    return spliced(message, {"tool_calls": _array(rewritten)}) if rewritten else message


def _reasoning_dropped(sent: EditableRequest) -> EditableRequest:
    """Drop the reasoning of earlier turns."""
    earlier = sent.messages[: max(_turns(sent.messages), default=0)]
    out = dict.fromkeys(("reasoning_content", "reasoning"))
    thought = {at: text for at, text in enumerate(earlier) if any(_member(text, name) is not None for name in out)}
    return _with_messages(sent, {at: spliced(text, out) for at, text in thought.items()})


def _results_cleared(sent: EditableRequest) -> EditableRequest:
    """Replace all tool results except the last three with a short note."""
    results = [at for at, text in enumerate(sent.messages) if _member(text, "role") == "tool"]
    return _with_messages(sent, {at: spliced(sent.messages[at], {"content": CLEARED}) for at in results[:-RESULTS_KEPT]})


def _summarised(sent: EditableRequest) -> EditableRequest:
    """Replace all turns except the last two with one summary, here a list of the questions."""
    starts = _turns(sent.messages)
    if len(starts) <= TURNS_KEPT:
        return sent
    asked = [f"- {_text(sent.messages[at])[:80]}" for at in starts[:-TURNS_KEPT]]
    # the summary is a question and an answer, because some chat templates refuse two user messages in a row
    summary = [
        encode({"role": "user", "content": "Summarise what I asked so far."}),
        encode({"role": "assistant", "content": "\n".join(["You asked:", *asked])}),
    ]
    return sent._replace(messages=[*sent.messages[: starts[0]], *summary, *sent.messages[starts[-TURNS_KEPT] :]])


def _turns(messages: Sequence[bytes]) -> list[int]:
    """Return the indices of the user messages, which begin the turns."""
    return [at for at, text in enumerate(messages) if _member(text, "role") == "user"]


def _text(message: bytes) -> str:
    content = _member(message, "content")
    parts = content if isinstance(content, list) else [{"text": content}]
    return " ".join(" ".join(str(part.get("text") or "") for part in parts if isinstance(part, dict)).split())


def _member(message: bytes | Raw, name: str) -> Any:
    """Return the decoded value of a message's member, or None if the message has no member of this name."""
    value = decode(message, dict[str, Raw]).get(name)
    return None if value is None else decode(value)


def _with_messages(sent: EditableRequest, changed: Mapping[int, bytes]) -> EditableRequest:
    return sent._replace(messages=[changed.get(at, text) for at, text in enumerate(sent.messages)])


def _items(text: bytes | Raw) -> list[Raw]:
    return [] if bytes(text) == b"null" else decode(text, list[Raw])


def _array(items: Sequence[Raw]) -> bytes:
    return b"[" + b",".join(map(bytes, items)) + b"]"


VARIANTS: Final[Mapping[str, Variant]] = {
    change.__name__.strip("_"): Variant(change.__name__.strip("_"), change)
    for change in (
        _live_system,
        _clock_in_system,
        _tools_shuffled,
        _history_reserialised,
        _reasoning_dropped,
        _results_cleared,
        _summarised,
    )
}
"""The variants without a parameter, by name."""
