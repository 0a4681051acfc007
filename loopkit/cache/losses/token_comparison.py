"""How a prompt goes on from the one before it, in tokens: how many of them a server can use again, and at what they part.

The tokens of a completion are seen by nobody: that its place in the next prompt holds what was written is checked against the
texts of the body, and by the count. Pure; says where two prompts part and not why.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from msgspec import Raw

from loopkit.contract.neutralise import DEFAULT, neutralise_report
from loopkit.contract.records import Usage
from loopkit.contract.request import first_difference
from loopkit.encoding import decode
from loopkit.server.prompt.token_view import TokenView, common_prefix

__all__ = ["Rendered", "compare", "reusable_tokens"]

CONTEXT = 30
"Bytes shown on each side of the place where two prompts part."


class Rendered(NamedTuple):
    """How far a prompt is the one before it, and what was written then."""

    reusable: int
    "Tokens that could be used again; at most the prompt's own less one."
    exact: bool
    "Whether that is known to the token; else it is a lower bound."
    how: Literal["extends", "parts", "rewritten", "dropped", "retokenised"]
    "Goes on · parts within the previous prompt · what was written stands there in another form, or not at all · in other tokens."
    token: int
    "The first token that differs; where it goes on, the end of what was before."
    where: str | None
    "The part that this token comes from, such as ``messages[3].content``."
    was: str = ""
    now: str = ""


def reusable_tokens(previous: TokenView, now: TokenView, usage: Usage, body: bytes | None = None) -> int:
    """How many tokens of a prompt a server has, that answered the one before it and forgets nothing.

    Parameters
    ----------
    previous, now : TokenView
        The two prompts.
    usage : Usage
        Of the previous request: how much was written.
    body : bytes, optional
        Of this request: what was written, as it is sent back.

    Examples
    --------
    >>> from array import array
    >>> before, after = (TokenView(array("i", tokens)) for tokens in ([1, 2, 3], [1, 2, 3, 7, 8, 9, 4]))
    >>> reusable_tokens(before, after, Usage(prompt_tokens=3, completion_tokens=3))
    5
    >>> reusable_tokens(after, before, Usage(prompt_tokens=7, completion_tokens=3))
    2
    """
    return compare(previous, now, usage, body).reusable


def compare(previous: TokenView, now: TokenView, usage: Usage, body: bytes | None = None) -> Rendered:
    """Find how far a prompt goes on from the one before it; see `reusable_tokens`."""
    most = max(0, len(now) - 1)
    shared = common_prefix(previous, now)
    if shared < len(previous):
        sides = _sides(previous, now, shared)
        where = _message_at(previous, shared) or _message_at(now, shared)
        return Rendered(min(shared, most), exact=True, how="parts", token=shared, where=where, was=sides[0], now=sides[1])
    written = usage.completion_tokens
    if written is None:
        return Rendered(min(shared, most), exact=False, how="extends", token=shared, where=None)
    kept = shared + max(0, written - 1)
    answered = None if body is None or now.parts is None else _answered(body, now, shared)
    for label, text in [] if answered is None or body is None else _texts(body, answered):
        place = _place(now, label, shared)
        if place is None:
            return Rendered(min(shared, most), exact=False, how="dropped", token=shared, where=label, was=_cut(text))
        start, stop = place
        spelled = now.spelled(start, stop) or b""
        if spelled != text:
            same = first_difference(spelled, text)
            token = _token_at(now, start, same)
            sides = _cut(text[max(0, same - CONTEXT) :]), _cut(spelled[max(0, same - CONTEXT) :])
            return Rendered(
                min(token, kept, most), exact=True, how="rewritten", token=token, where=label, was=sides[0], now=sides[1]
            )
    end = None if answered is None else _end_of_answer(now, f"messages[{answered}]", shared)
    if end is not None and not end.first <= kept <= end.last:
        return Rendered(min(shared, most), exact=False, how="retokenised", token=shared, where=f"messages[{answered}]")
    return Rendered(min(kept, most), exact=True, how="extends", token=kept, where=None)


def _message_at(view: TokenView, token: int) -> str | None:
    """The part that a token comes from; of a template's own token the message that comes next."""
    for run in view.parts or ():
        if run.end > token and run.label != "template":
            return run.label if run.start <= token else run.label.partition(".")[0]
    return None


def _sides(previous: TokenView, now: TokenView, at: int) -> tuple[str, str]:
    before, after = (view.spelled(max(0, at - CONTEXT), min(len(view), at + CONTEXT)) or b"" for view in (previous, now))
    return _cut(before), _cut(after)


def _cut(text: bytes) -> str:
    return neutralise_report(text[: 2 * CONTEXT].decode("utf-8", "replace"), DEFAULT)[0]  # a template's text holds control tags


def _number(view: TokenView, start: int) -> str | None:
    """The message that the first part behind a token comes from, such as ``messages[3]``."""
    for run in view.parts or ():
        if run.end > start and run.label.startswith("messages["):
            return run.label.partition(".")[0]
    return None


def _texts(body: bytes, number: int) -> Iterator[tuple[str, bytes]]:
    """What was written, as this body gives it back: label and text, in the order in which it was written."""
    message = decode(decode(body, dict[str, Raw])["messages"], list[dict[str, Any]])[number]
    label = f"messages[{number}]"
    for name in ("reasoning_content", "content"):
        if isinstance(message.get(name), str) and message[name]:
            yield f"{label}.{name}", message[name].encode("utf-8", "replace")
    for at, call in enumerate(message.get("tool_calls") or ()):
        arguments = call.get("function", {}).get("arguments")
        if isinstance(arguments, str) and arguments:
            yield f"{label}.tool_calls[{at}].function.arguments", arguments.encode("utf-8", "replace")


def _answered(body: bytes, now: TokenView, start: int) -> int | None:
    """The number of the assistant's message that stands behind the previous prompt."""
    label = _number(now, start)
    if label is None:
        return None
    messages = decode(decode(body, dict[str, Raw])["messages"], list[dict[str, Any]])
    number = int(label[len("messages[") : -1])
    while number and messages[number].get("role") != "assistant":  # of an answer that is not rendered there is no part
        number -= 1
    return number if messages[number].get("role") == "assistant" else None


def _place(now: TokenView, label: str, start: int) -> tuple[int, int] | None:
    """The tokens of a part behind the previous prompt."""
    runs = [run for run in now.parts or () if run.label == label and run.end > start]
    return (max(start, runs[0].start), runs[-1].end) if runs else None


def _token_at(now: TokenView, start: int, same: int) -> int:
    """The token that holds a byte, counted from where another token begins."""
    token = start
    while token < len(now) and len(now.spelled(start, token + 1) or b"") <= same:
        token += 1
    return token


class _End(NamedTuple):
    first: int
    "Where the last text of the answer ends: at least so much was written."
    last: int
    "Where the next message begins, or the prompt ends."


def _end_of_answer(now: TokenView, label: str, start: int) -> _End | None:
    runs = [run for run in now.parts or () if run.end > start]
    own = [run for run in runs if run.label.startswith(label + ".")]
    if not own:
        return None
    behind = [run.start for run in runs if run.start >= own[-1].end and run.label != "template"]
    last = behind[0] if behind else len(now)
    calls = any(".tool_calls" in run.label for run in own)
    # a text's own end token is the one that was sampled last; behind a call the template closes what the model closed
    return _End(own[-1].end - 1, last if calls else own[-1].end)
