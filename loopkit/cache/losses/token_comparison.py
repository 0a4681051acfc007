"""Comparison of a prompt's tokens with the previous prompt and its completion, part by part.

Servers do not return the tokens of a completion. To check whether the next prompt contains them, the prompt is compared with the
texts of the assistant message in the body, and with the number of completion tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec import Raw

from loopkit.contract.json_position import first_difference
from loopkit.contract.neutralise import DEFAULT, neutralise_report
from loopkit.contract.records import Usage
from loopkit.encoding import decode
from loopkit.engines.evidence.observation import TokenComparison
from loopkit.engines.evidence.tokens import TokenView

__all__ = ["TokenComparison", "compare", "reusable_tokens"]

CONTEXT = 30
"Number of tokens or bytes that are shown before and after a difference."


def reusable_tokens(previous: TokenView, now: TokenView, usage: Usage, body: bytes | None = None) -> int:
    """Return how many leading tokens of a prompt are in the previous prompt and its completion.

    A server that answered the previous request and evicted nothing could reuse these tokens.

    Parameters
    ----------
    previous, now : TokenView
        The tokens of the previous prompt and of this one.
    usage : Usage
        Usage of the previous request. Its completion tokens are needed; without them, only the prompts are compared.
    body : bytes, optional
        The body of this request. It contains the previous completion as an assistant message, whose texts are compared.

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


def compare(previous: TokenView, now: TokenView, usage: Usage, body: bytes | None = None) -> TokenComparison:
    """Return how a prompt continues the previous prompt and its completion. The parameters are those of `reusable_tokens`."""
    most = max(0, len(now) - 1)
    shared = previous.common_prefix(now)
    if shared < len(previous):
        sides = _sides(previous, now, shared)
        where = _message_at(previous, shared) or _message_at(now, shared)
        return TokenComparison(min(shared, most), exact=True, how="parts", token=shared, where=where, was=sides[0], now=sides[1])
    written = usage.completion_tokens
    if written is None:
        return TokenComparison(min(shared, most), exact=False, how="extends", token=shared, where=None)
    kept = shared + max(0, written - 1)
    answered = None if body is None or now.parts is None else _answered(body, now, shared)
    for label, text in [] if answered is None or body is None else _texts(body, answered):
        place = _place(now, label, shared)
        if place is None:
            return TokenComparison(min(shared, most), exact=False, how="dropped", token=shared, where=label, was=_cut(text))
        start, stop = place
        spelled = now.spelled(start, stop) or b""
        if spelled != text:
            same = first_difference(spelled, text)
            token = _token_at(now, start, same)
            sides = _cut(text[max(0, same - CONTEXT) :]), _cut(spelled[max(0, same - CONTEXT) :])
            return TokenComparison(
                min(token, kept, most), exact=True, how="rewritten", token=token, where=label, was=sides[0], now=sides[1]
            )
    end = None if answered is None else _end_of_answer(now, f"messages[{answered}]", shared)
    if end is not None and not end.first <= kept <= end.last:
        return TokenComparison(min(shared, most), exact=False, how="retokenised", token=shared, where=f"messages[{answered}]")
    return TokenComparison(min(kept, most), exact=True, how="extends", token=kept, where=None)


def _message_at(view: TokenView, token: int) -> str | None:
    """Return the part that a token comes from, or for a token of the template, the message that follows. None if unknown."""
    for run in view.parts or ():
        if run.end > token and run.label != "template":
            return run.label if run.start <= token else run.label.partition(".")[0]
    return None


def _sides(previous: TokenView, now: TokenView, at: int) -> tuple[str, str]:
    before, after = (view.spelled(max(0, at - CONTEXT), min(len(view), at + CONTEXT)) or b"" for view in (previous, now))
    return _cut(before), _cut(after)


def _cut(text: bytes) -> str:
    # The prompt contains the template's control tags, which must not appear in a log.
    return neutralise_report(text[: 2 * CONTEXT].decode("utf-8", "replace"), DEFAULT)[0]


def _number(view: TokenView, start: int) -> str | None:
    """Return the first message that has tokens at or after position `start`, such as ``messages[3]``; None if there is none."""
    for run in view.parts or ():
        if run.end > start and run.label.startswith("messages["):
            return run.label.partition(".")[0]
    return None


def _texts(body: bytes, number: int) -> Iterator[tuple[str, bytes]]:
    """Yield the label and the text of each part of the assistant message at index `number`, in the order of generation."""
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
    """Return the index of the assistant message that follows the previous prompt, whose length is `start`; None if unknown."""
    label = _number(now, start)
    if label is None:
        return None
    messages = decode(decode(body, dict[str, Raw])["messages"], list[dict[str, Any]])
    number = int(label[len("messages[") : -1])
    while number and messages[number].get("role") != "assistant":  # the template may omit an assistant message
        number -= 1
    return number if messages[number].get("role") == "assistant" else None


def _place(now: TokenView, label: str, start: int) -> tuple[int, int] | None:
    """Return the range of tokens, from `start` on, that come from the part `label`; None if there are none."""
    runs = [run for run in now.parts or () if run.label == label and run.end > start]
    return (max(start, runs[0].start), runs[-1].end) if runs else None


def _token_at(now: TokenView, start: int, same: int) -> int:
    """Return the position of the token that contains byte `same`, counted from the start of the token `start`."""
    token = start
    while token < len(now) and len(now.spelled(start, token + 1) or b"") <= same:
        token += 1
    return token


class _End(NamedTuple):
    first: int
    "Position where the last text of the assistant message ends. Prompt and completion together reach at least this far."
    last: int
    "Position where the next message begins or the prompt ends. Prompt and completion together reach at most this far."


def _end_of_answer(now: TokenView, label: str, start: int) -> _End | None:
    runs = [run for run in now.parts or () if run.end > start]
    own = [run for run in runs if run.label.startswith(label + ".")]
    if not own:
        return None
    behind = [run.start for run in runs if run.start >= own[-1].end and run.label != "template"]
    last = behind[0] if behind else len(now)
    calls = any(".tool_calls" in run.label for run in own)
    # After a text, the last sampled token is the end token. After a tool call, the model also wrote the template's closing text.
    return _End(own[-1].end - 1, last if calls else own[-1].end)
