"""Variants: one thing changed on purpose in a request, so that its price can be measured on the same work.

A variant gets a request taken apart, as the JSON texts that stand in its body, and gives another; what it does not touch stays
byte for byte. Each does to every request what a careless client does, and nothing else. Pure, so that a run can be repeated: the
moment that a clock would show comes in from outside, and a shuffle depends on the number of the request alone.
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

__all__ = ["VARIANTS", "Change", "Sent", "Variant", "applied", "variant_of", "window"]

RESULTS_KEPT: Final = 3
TURNS_KEPT: Final = 2
CLEARED: Final = b'"(This result was cleared to save space.)"'


class Sent(NamedTuple):
    """A request, taken apart: what a variant gets, and gives with ``_replace``. All of it is JSON text in bytes, quotes included.

    Examples
    --------
    >>> sent = Sent({"model": b'"tiny"'}, [b'{"role":"user","content":"Hi."}'], 1, "2026-11-30T07:31:05.000000Z")
    >>> sent._replace(members={**sent.members, "temperature": b"0.5"}).members
    {'model': b'"tiny"', 'temperature': b'0.5'}
    """

    members: Mapping[str, bytes]
    "All of the body but its messages, by name: JSON text each."
    messages: Sequence[bytes]
    "JSON text each."
    number: int
    "1, 2, 3, … within the replay."
    moment: str
    "When it is sent, RFC 3339."


Change: TypeAlias = Callable[[Sent], Sent]


class Variant(NamedTuple):
    """A named change. One of your own is a function from `Sent` to `Sent`; its name is the variant's.

    Examples
    --------
    >>> def shouting(sent: Sent) -> Sent:
    ...     return sent._replace(messages=[text.upper() if b"user" in text else text for text in sent.messages])
    >>> body = b'{"messages":[{"role":"system","content":"Hi"}, {"role":"user","content":"ho"}]}'
    >>> applied(variant_of(shouting), body, 1, "2026-11-30T07:31:05.000000Z")
    b'{"messages":[{"role":"system","content":"Hi"}, {"ROLE":"USER","CONTENT":"HO"}]}'
    """

    name: str
    change: Change


def applied(variant: Variant, body: bytes, number: int, moment: str) -> bytes:
    """The body of a request with a variant's change in it.

    Raises
    ------
    InvalidConfig
        When the body is no chat request, or what the variant gives is none.
    """
    found = read(body)
    if found is None or found.opening is None:
        why = f"the body of request {number} is no JSON object with messages that says each member once"
        raise InvalidConfig("requests", why, "Without a variant any body can be replayed")
    values = {name: bytes(value) for name, value in decode(body, dict[str, Raw]).items()}
    opening, messages = found.opening.name, [body[span.start : span.stop] for span in found.messages]
    members = {name: value for name, value in values.items() if name != opening}
    try:
        given = variant.change(Sent(members, messages, number, moment))
    except msgspec.MsgspecError as error:
        raise InvalidConfig("requests", f"request {number} is no chat request: {error}", "Leave it out") from error
    if not _is_sent(given):
        why = f"what {variant.name} makes of request {number} is no Sent of JSON texts in bytes"
        raise InvalidConfig("variant", why, "Give what it got, with _replace")
    changes: dict[str, bytes | None] = {name: value for name, value in given.members.items() if values.get(name) != value}
    changes |= dict.fromkeys(members.keys() - given.members.keys())
    if list(given.messages) != messages:
        changes[opening] = b"[" + b",".join(given.messages) + b"]"
    changed = spliced(body, changes) if changes else body
    if changes and read(changed) is None:
        raise InvalidConfig(
            "variant", f"what {variant.name} makes of request {number} is no JSON", "Give JSON texts, as it got them"
        )
    return changed


def _is_sent(given: object) -> bool:
    """Whether a function of a person's own kept to what it was to give."""
    if not isinstance(given, Sent) or not isinstance(given.members, Mapping) or not isinstance(given.messages, list | tuple):
        return False
    texts = [*given.members.values(), *given.messages]
    return all(isinstance(name, str) for name in given.members) and all(isinstance(text, bytes | Raw) for text in texts)


def variant_of(what: Variant | Change | str) -> Variant:
    """A variant by its name, or of a person's own function.

    Examples
    --------
    >>> variant_of("window(4)").name
    'window(4)'
    >>> variant_of("live_systm")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidConfig: variant: no variant 'live_systm'. There are clock_in_system, ..., tools_shuffled, window(n)
    """
    if isinstance(what, Variant):
        return what
    if callable(what):
        return Variant(getattr(what, "__name__", type(what).__name__), what)
    if isinstance(what, str) and (turns := re.fullmatch(r"window\(([0-9]{1,9})\)", what)):
        return window(int(turns[1]))
    if not isinstance(what, str):
        raise InvalidConfig("variant", f"{kind_of(what)} is no variant", "Give its name, or a function; compare takes several")
    if what not in VARIANTS:
        raise InvalidConfig("variant", f"no variant {what!r}", f"There are {', '.join([*sorted(VARIANTS), 'window(n)'])}")
    return VARIANTS[what]


def window(turns: int) -> Variant:
    """Only the last turns are sent. A turn begins with a user's message, so no result is left without its call."""
    if turns < 1:
        raise InvalidConfig("variant", f"window({turns}) would send no turn", "Give 1 or more")

    def change(sent: Sent) -> Sent:
        starts = _turns(sent.messages)
        if len(starts) <= turns:
            return sent
        return sent._replace(messages=[*sent.messages[: starts[0]], *sent.messages[starts[-turns] :]])

    return Variant(f"window({turns})", change)


def _clock_in_system(sent: Sent) -> Sent:
    """The system prompt begins with the time, to the microsecond: the commonest mistake."""
    return _before_system(sent, f"The time is {sent.moment}.\n\n")


def _live_system(sent: Sent) -> Sent:
    """The system prompt is read again for each turn, and begins with a line that has changed since."""
    return _before_system(sent, f"Messages from the user so far: {len(_turns(sent.messages))}.\n\n")


def _before_system(sent: Sent, line: str) -> Sent:
    at = next((at for at, text in enumerate(sent.messages) if _member(text, "role") in ("system", "developer")), None)
    if at is None:
        return sent
    content = _member(sent.messages[at], "content")
    parts = [{"type": "text", "text": line}, *content] if isinstance(content, list) else line + (content or "")
    return _with_messages(sent, {at: spliced(sent.messages[at], {"content": encode(parts)})})


def _tools_shuffled(sent: Sent) -> Sent:
    """The tools come in any order in each request, as out of a set; of two that is the same one half of the time."""
    tools = _items(sent.members.get("tools", b"[]"))
    random.Random(sent.number).shuffle(tools)  # noqa: S311  # to be the same in each run, not to be secret
    return sent._replace(members={**sent.members, "tools": _array(tools)}) if len(tools) > 1 else sent


def _history_reserialised(sent: Sent) -> Sent:
    """Arguments of calls of earlier turns were stored as objects, and are written anew: keys sorted, no spaces."""
    earlier = sent.messages[: max(_turns(sent.messages), default=0)]
    return _with_messages(sent, {at: _reserialised(text) for at, text in enumerate(earlier)})


def _reserialised(message: bytes) -> bytes:
    calls = decode(message, dict[str, Raw]).get("tool_calls", b"null")
    anew = []
    for call in _items(calls):
        function = decode(call, dict[str, Raw]).get("function", Raw(b"{}"))
        written = _member(function, "arguments")
        try:
            value = decode(written) if isinstance(written, str) else None
        except ValueError:  # what is no JSON could not be stored as an object
            value = None
        if isinstance(value, dict):
            text = encode(dict(sorted(value.items()))).decode()
            call = Raw(spliced(bytes(call), {"function": spliced(bytes(function), {"arguments": encode(text)})}))
        anew.append(call)
    return spliced(message, {"tool_calls": _array(anew)}) if anew else message


def _reasoning_dropped(sent: Sent) -> Sent:
    """What the model thought in earlier turns is left out."""
    earlier = sent.messages[: max(_turns(sent.messages), default=0)]
    out = dict.fromkeys(("reasoning_content", "reasoning"))
    thought = {at: text for at, text in enumerate(earlier) if any(_member(text, name) is not None for name in out)}
    return _with_messages(sent, {at: spliced(text, out) for at, text in thought.items()})


def _results_cleared(sent: Sent) -> Sent:
    """All tool results but the last three are replaced by a short note."""
    results = [at for at, text in enumerate(sent.messages) if _member(text, "role") == "tool"]
    return _with_messages(sent, {at: spliced(sent.messages[at], {"content": CLEARED}) for at in results[:-RESULTS_KEPT]})


def _summarised(sent: Sent) -> Sent:
    """All turns but the last two are replaced by one summary, here a list of what was asked."""
    starts = _turns(sent.messages)
    if len(starts) <= TURNS_KEPT:
        return sent
    asked = [f"- {_text(sent.messages[at])[:80]}" for at in starts[:-TURNS_KEPT]]
    # as a question and its answer, for there are templates that refuse two messages of the user in a row
    summary = [
        encode({"role": "user", "content": "Summarise what I asked so far."}),
        encode({"role": "assistant", "content": "\n".join(["You asked:", *asked])}),
    ]
    return sent._replace(messages=[*sent.messages[: starts[0]], *summary, *sent.messages[starts[-TURNS_KEPT] :]])


def _turns(messages: Sequence[bytes]) -> list[int]:
    """Where turns begin: at the messages of the user."""
    return [at for at, text in enumerate(messages) if _member(text, "role") == "user"]


def _text(message: bytes) -> str:
    content = _member(message, "content")
    parts = content if isinstance(content, list) else [{"text": content}]
    return " ".join(" ".join(str(part.get("text") or "") for part in parts if isinstance(part, dict)).split())


def _member(message: bytes | Raw, name: str) -> Any:
    """A member's value; None where it has none."""
    value = decode(message, dict[str, Raw]).get(name)
    return None if value is None else decode(value)


def _with_messages(sent: Sent, changed: Mapping[int, bytes]) -> Sent:
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
"""Those that need no number, by their names."""
