"""Attribution of each byte of a rendered prompt to a message, a tool or the chat template.

The server renders the request's body twice: unchanged, and with a unique placeholder instead of each text. Whatever surrounds the
placeholders comes from the template, and is the same in both prompts. Comparing the two prompts from beginning to end therefore
locates every text, even if a text occurs several times or the template changes it.

Some templates write different text around a message because of its content, so that the two prompts differ there. The comparison
then skips to the next place where they agree again. The skipped bytes get the label of their message, or ``template`` if they
belong to several messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Raw

from loopkit.encoding import decode, encode
from loopkit.engines.evidence.tokens import Run

__all__ = ["TEMPLATE", "Mask", "mask", "runs"]

TEMPLATE = "template"
_AHEAD = 16  # number of items after a difference at which the comparison may continue; they cover at least 4 messages
_ANCHOR = 12  # bytes that must agree before the comparison continues
_GROWTH, _ADDED = 6, 4096  # skipped bytes: at most 6 times the expected number, because of escapes, plus 4,096
_NAMES = ("content", "reasoning_content", "reasoning", "name")
_STRUCTURE = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}]', re.S)


class _Text(NamedTuple):
    label: str
    text: bytes
    "The text as it is in the request's body."
    value: dict[str, Any] | None = None
    "The decoded arguments if the text is the arguments of a tool call, else None."


class Mask(NamedTuple):
    """A request's body with a unique placeholder instead of each text, and the replaced texts."""

    body: bytes
    "The body with placeholders."
    texts: list[_Text]
    "The replaced texts. The index of a text is the number in its placeholder."
    placeholders: re.Pattern[bytes]
    "Pattern that matches the placeholders in a rendered prompt."
    tools: dict[str, str]
    "The label of each tool, such as ``tools[1]``, by the tool's name."


def mask(body: bytes) -> Mask:
    """Replace each text in the messages of a request by a unique placeholder.

    Parameters
    ----------
    body : bytes
        Body of a chat completion request.

    Returns
    -------
    Mask
        The body with placeholders, and the replaced texts.

    Raises
    ------
    ValueError
        The body is not a chat completion request.

    Examples
    --------
    >>> mask(b'{"seed":1,"messages":[{"role":"user","content":"Hi"}]}').body
    b'{"seed":1,"messages":[{"role":"user","content":"ZQ0QZ"}]}'
    """
    members = decode(body, dict[str, Raw])
    messages = decode(bytes(members.get("messages", b"[]")), list[dict[str, Any]])
    word = "ZQ"
    while word.encode() in body:
        word += "Q"
    texts: list[_Text] = []
    for holder, name, label in _places(messages):
        value, placeholder = holder[name], f"{word}{len(texts)}QZ"
        if name == "arguments":
            if (arguments := _object(value)) is None:
                continue
            texts.append(_Text(label, value.encode() if isinstance(value, str) else encode(value), arguments))
            holder[name] = encode({placeholder: 0}).decode() if isinstance(value, str) else {placeholder: 0}
        elif isinstance(value, str) and value:
            texts.append(_Text(label, value.encode()))
            holder[name] = placeholder
    plain = re.escape(word).encode() + rb"(\d+)QZ"
    placeholders = re.compile(rb'\{\s*\\?"' + plain + rb'\\?"\s*:\s*0\s*\}|' + plain)
    return Mask(encode({**members, "messages": messages}), texts, placeholders, _tool_labels(members.get("tools")))


def _places(messages: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yield each member that may contain a text, as three values: the containing object, the member's name and its label."""
    for number, message in enumerate(messages):
        at = f"messages[{number}]"
        yield from ((message, name, f"{at}.{name}") for name in _NAMES if name in message)
        for place, part in _objects(message.get("content")):
            if "text" in part:
                yield part, "text", f"{at}.content[{place}].text"
        for place, call in _objects(message.get("tool_calls")):
            for _, function in _objects([call.get("function")]):
                names = [name for name in ("name", "arguments") if name in function]
                yield from ((function, name, f"{at}.tool_calls[{place}].function.{name}") for name in names)


def _objects(value: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    return ((place, each) for place, each in enumerate(value if isinstance(value, list) else ()) if isinstance(each, dict))


def _object(value: Any) -> dict[str, Any] | None:
    try:
        value = decode(value) if isinstance(value, str | bytes) else value
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _tool_labels(tools: Raw | None) -> dict[str, str]:
    labels: dict[str, str] = {}
    for place, tool in _objects(decode(bytes(tools)) if tools is not None else None):
        if (name := _tool_name(tool)) is not None:
            labels.setdefault(name, f"tools[{place}]")
    return labels


def _tool_name(tool: Mapping[str, Any]) -> str | None:
    function = tool.get("function")
    name = (function if isinstance(function, dict) else tool).get("name")
    return name if isinstance(name, str) else None


def runs(prompt: bytes, skeleton: bytes, mask: Mask) -> list[Run]:
    """Return which part of the request each byte of a prompt comes from.

    Parameters
    ----------
    prompt : bytes
        Prompt that the server rendered from the original body.
    skeleton : bytes
        Prompt that the server rendered from the body with placeholders.
    mask : Mask
        Result of `mask` for the original body.

    Returns
    -------
    list of Run
        Ranges of bytes in order and without gaps. The label of a range is one of:

        - a member of the body, such as ``messages[3].content``;
        - a message, such as ``messages[3]``, where the content of the message changed what the template writes around it;
        - a tool, such as ``tools[1]``, for a JSON object that contains the tool's name;
        - ``template`` for all other text.

    Examples
    --------
    >>> masked = mask(b'{"messages":[{"role":"user","content":" a"},{"role":"user","content":"user: a"}]}')
    >>> for run in runs(b"user: a;user: user: a;", b"user: ZQ0QZ;user: ZQ1QZ;", masked):
    ...     print(*run)
    template 0 6
    messages[0].content 6 7
    template 7 14
    messages[1].content 14 21
    template 21 22
    """
    items = _items(skeleton, mask)
    labelled: list[Run] = []
    at, position = 0, 0
    while at < len(items):
        end = _end(prompt, position, items, at)
        following = at + 1
        if end is None:
            following, end = _resume(prompt, position, items, at)
        labelled.append(Run(_common_label(items[at:following]), position, end))
        at, position = following, end
    labelled.append(Run(TEMPLATE, position, len(prompt)))
    return list(_merged(labelled))


def _items(skeleton: bytes, mask: Mask) -> list[_Text]:
    """Return the parts that the prompt should consist of, in order: texts of the request and literal text of the template."""
    items: list[_Text] = []
    position = 0
    for match in mask.placeholders.finditer(skeleton):
        items += _literal(skeleton[position : match.start()], mask.tools)
        items.append(mask.texts[int(match[1] or match[2])])
        position = match.end()
    items += _literal(skeleton[position:], mask.tools)
    return [item for item in items if item.text]


def _literal(text: bytes, tools: Mapping[str, str]) -> Iterator[_Text]:
    """Split literal text of the template, so that each JSON object with a tool's name is an item with the label of the tool."""
    done = start = 0
    while tools and (start := text.find(b"{", start)) >= 0:
        end = _closing(text, start)
        value = None if end is None else _object(text[start:end])
        label = None if value is None else tools.get(_tool_name(value) or "")
        if end is None or label is None:
            start += 1
            continue
        yield _Text(TEMPLATE, text[done:start])
        yield _Text(label, text[start:end])
        done = start = end
    yield _Text(TEMPLATE, text[done:])


def _closing(text: bytes, start: int) -> int | None:
    """Return the position after the JSON object that begins at `start`; None if the object is not closed."""
    depth = 0
    for match in _STRUCTURE.finditer(text, start):
        depth += {b"{": 1, b"}": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return None


def _end(prompt: bytes, position: int, items: Sequence[_Text], at: int) -> int | None:
    """Return the position after the item number `at`; None if the prompt does not contain the item at `position`."""
    item = items[at]
    if item.label == TEMPLATE:
        return position + len(item.text) if prompt.startswith(item.text, position) else None
    following = items[at + 1].text if at + 1 < len(items) and items[at + 1].label == TEMPLATE else b""
    for form in _forms(prompt, position, item):
        if prompt.startswith(form, position) and prompt.startswith(following, position + len(form)):
            return position + len(form)
    return position + len(item.text) if prompt.startswith(item.text, position) else None


def _forms(prompt: bytes, position: int, item: _Text) -> Iterator[bytes]:
    """Yield each form in which a template may write a text: unchanged, trimmed, as a JSON string, or as newly serialised JSON."""
    yield item.text
    yield item.text.decode().strip().encode()
    yield encode(item.text.decode())[1:-1]
    if item.value is not None and prompt.startswith(b"{", position) and (end := _closing(prompt, position)) is not None:
        form = prompt[position:end]
        if _object(form) == item.value:
            yield form


def _resume(prompt: bytes, position: int, items: Sequence[_Text], at: int) -> tuple[int, int]:
    """Return the number of the next item at which both prompts agree again, and its position in `prompt`.

    The score of a candidate is the number of agreeing bytes from there on, minus the number of skipped bytes. The candidate with
    the highest score is returned.
    """
    best, most = (len(items), len(prompt)), -len(prompt) - 1
    reach = position + _ADDED
    for following in range(at + 1, min(at + _AHEAD, len(items))):
        reach += _GROWTH * len(items[following - 1].text)
        anchor, last = b"", following
        while last < len(items) and (last < following + 2 or len(anchor) < _ANCHOR):
            anchor += items[last].text
            last += 1
        place = prompt.find(anchor, position, reach + len(anchor))
        if last == len(items):  # the anchor contains all remaining items, so it must be at the end of the prompt
            place = len(prompt) - len(anchor) if prompt.endswith(anchor) else -1
        if place < position:
            continue
        gain = _agreement_end(prompt, place, items[following : following + 2 * _AHEAD]) - place - (place - position)
        if gain > most:
            best, most = (following, place), gain
    return best


def _agreement_end(prompt: bytes, position: int, items: Sequence[_Text]) -> int:
    """Return the position up to which the prompt, starting at `position`, consists of the items in order."""
    for at in range(len(items)):
        end = _end(prompt, position, items, at)
        if end is None:
            break
        position = end
    return position


def _common_label(items: Iterable[_Text]) -> str:
    """Return one label for several items: their label if it is the same, else their common message, else ``template``."""
    labels = {item.label for item in items}
    if len(labels) == 1:
        return labels.pop()
    owners = {label.split(".")[0] for label in labels if label != TEMPLATE}
    return owners.pop() if len(owners) == 1 else TEMPLATE


def _merged(runs: Iterable[Run]) -> Iterator[Run]:
    """Merge adjacent runs with the same label, and drop empty ones."""
    last = Run(TEMPLATE, 0, 0)
    for run in runs:
        if run.label == last.label:
            last = Run(last.label, last.start, run.end)
        else:
            if last.start < last.end:
                yield last
            last = run
    if last.start < last.end:
        yield last
