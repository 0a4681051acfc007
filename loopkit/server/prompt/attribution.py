"""Which message, tool or template part each byte of a rendered prompt comes from.

The body is rendered a second time with a word of its own in place of each text: what stands around those words is the template's,
and it is the same in both renders. So the two are walked side by side, and every text has its place, however often it occurs
elsewhere and whatever the template does to it. Where a template looks into a text and writes something else because of it, the
walk takes up again behind that place, at the template's own words with an unchanged text beside them; what lies between has the
label of its message, or ``template`` where it is of several. Pure functions; knows nothing of servers or tokens.
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
_AHEAD = 16  # items that are looked for when the renders part: four messages or more
_ANCHOR = 12  # bytes that must agree before the walk is taken up again
_GROWTH, _ADDED = 6, 4096  # how much longer than expected what lies between may be: each byte an escape, and so many more
_NAMES = ("content", "reasoning_content", "reasoning", "name")
_STRUCTURE = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}]', re.S)


class _Text(NamedTuple):
    label: str
    text: bytes
    "As the body has it."
    value: dict[str, Any] | None = None
    "Of arguments: what they mean."


class Mask(NamedTuple):
    """A body with a word of its own in place of each text."""

    body: bytes
    texts: list[_Text]
    "By the number in the word."
    words: re.Pattern[bytes]
    "Finds the words in a prompt."
    tools: dict[str, str]
    "Labels by the tools' names."


def mask(body: bytes) -> Mask:
    """Put a word of its own in place of each text of a request's messages.

    Parameters
    ----------
    body : bytes
        A chat completion's, as it is sent.

    Returns
    -------
    Mask

    Raises
    ------
    ValueError
        When the body is not one.

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
        value, one = holder[name], f"{word}{len(texts)}QZ"
        if name == "arguments":
            if (arguments := _object(value)) is None:
                continue
            texts.append(_Text(label, value.encode() if isinstance(value, str) else encode(value), arguments))
            holder[name] = encode({one: 0}).decode() if isinstance(value, str) else {one: 0}
        elif isinstance(value, str) and value:
            texts.append(_Text(label, value.encode()))
            holder[name] = one
    plain = re.escape(word).encode() + rb"(\d+)QZ"
    words = re.compile(rb'\{\s*\\?"' + plain + rb'\\?"\s*:\s*0\s*\}|' + plain)
    return Mask(encode({**members, "messages": messages}), texts, words, _tool_labels(members.get("tools")))


def _places(messages: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Each member that holds a text: the object that it is of, its name, its label."""
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
    """Tell which part each byte of a prompt comes from.

    Parameters
    ----------
    prompt, skeleton : bytes
        What the body and the masked body are rendered to.
    mask : Mask
        Of that body.

    Returns
    -------
    list of Run
        In order and without gaps. A label is a member of the body, such as ``messages[3].content``; ``messages[3]`` where one
        of its texts changed what the template writes around it; ``tools[1]`` for each JSON object in which a tool is named;
        and else ``template``.

    Examples
    --------
    >>> made = mask(b'{"messages":[{"role":"user","content":" a"},{"role":"user","content":"user: a"}]}')
    >>> for run in runs(b"user: a;user: user: a;", b"user: ZQ0QZ;user: ZQ1QZ;", made):
    ...     print(*run)
    template 0 6
    messages[0].content 6 7
    template 7 14
    messages[1].content 14 21
    template 21 22
    """
    items = _items(skeleton, mask)
    found: list[Run] = []
    at, position = 0, 0
    while at < len(items):
        end = _end(prompt, position, items, at)
        following = at + 1
        if end is None:
            following, end = _resume(prompt, position, items, at)
        found.append(Run(_common(items[at:following]), position, end))
        at, position = following, end
    found.append(Run(TEMPLATE, position, len(prompt)))
    return list(_joined(found))


def _items(skeleton: bytes, mask: Mask) -> list[_Text]:
    """What the prompt should consist of, in order."""
    items: list[_Text] = []
    position = 0
    for match in mask.words.finditer(skeleton):
        items += _literal(skeleton[position : match.start()], mask.tools)
        items.append(mask.texts[int(match[1] or match[2])])
        position = match.end()
    items += _literal(skeleton[position:], mask.tools)
    return [item for item in items if item.text]


def _literal(text: bytes, tools: Mapping[str, str]) -> Iterator[_Text]:
    """The template's own text, and in it the JSON objects that name a tool."""
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
    """Where the JSON object ends that begins at `start`."""
    depth = 0
    for match in _STRUCTURE.finditer(text, start):
        depth += {b"{": 1, b"}": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return None


def _end(prompt: bytes, position: int, items: Sequence[_Text], at: int) -> int | None:
    """Where an item ends that begins at `position`; None where it does not stand there."""
    item = items[at]
    if item.label == TEMPLATE:
        return position + len(item.text) if prompt.startswith(item.text, position) else None
    behind = items[at + 1].text if at + 1 < len(items) and items[at + 1].label == TEMPLATE else b""
    for form in _forms(prompt, position, item):
        if prompt.startswith(form, position) and prompt.startswith(behind, position + len(form)):
            return position + len(form)
    return position + len(item.text) if prompt.startswith(item.text, position) else None


def _forms(prompt: bytes, position: int, item: _Text) -> Iterator[bytes]:
    """How templates write a text: as it is, trimmed, inside a JSON string; arguments anew."""
    yield item.text
    yield item.text.decode().strip().encode()
    yield encode(item.text.decode())[1:-1]
    if item.value is not None and prompt.startswith(b"{", position) and (end := _closing(prompt, position)) is not None:
        form = prompt[position:end]
        if _object(form) == item.value:
            yield form


def _resume(prompt: bytes, position: int, items: Sequence[_Text], at: int) -> tuple[int, int]:
    """The item at which the renders agree again, and where it begins: where more agrees behind it than is passed over."""
    best, most = (len(items), len(prompt)), -len(prompt) - 1
    reach = position + _ADDED
    for following in range(at + 1, min(at + _AHEAD, len(items))):
        reach += _GROWTH * len(items[following - 1].text)
        anchor, behind = b"", following
        while behind < len(items) and (behind < following + 2 or len(anchor) < _ANCHOR):
            anchor += items[behind].text
            behind += 1
        place = prompt.find(anchor, position, reach + len(anchor))
        if behind == len(items):  # the rest of the prompt: it can only stand at its end
            place = len(prompt) - len(anchor) if prompt.endswith(anchor) else -1
        if place < position:
            continue
        gain = _agreed(prompt, place, items[following : following + 2 * _AHEAD]) - place - (place - position)
        if gain > most:
            best, most = (following, place), gain
    return best


def _agreed(prompt: bytes, position: int, items: Sequence[_Text]) -> int:
    """How far the prompt is what the items say, from `position` on."""
    for at in range(len(items)):
        end = _end(prompt, position, items, at)
        if end is None:
            break
        position = end
    return position


def _common(items: Iterable[_Text]) -> str:
    """The label of one item; of several, the message that all their texts are of."""
    labels = {item.label for item in items}
    if len(labels) == 1:
        return labels.pop()
    owners = {label.split(".")[0] for label in labels if label != TEMPLATE}
    return owners.pop() if len(owners) == 1 else TEMPLATE


def _joined(found: Iterable[Run]) -> Iterator[Run]:
    last = Run(TEMPLATE, 0, 0)
    for run in found:
        if run.label == last.label:
            last = Run(last.label, last.start, run.end)
        else:
            if last.start < last.end:
                yield last
            last = run
    if last.start < last.end:
        yield last
