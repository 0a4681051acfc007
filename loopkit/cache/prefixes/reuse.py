"""How much of a prompt any other prompt began with: the longest shared prefixes of a sequence of requests.

A tree of prefixes, its edges pieces of the very messages that came in: each byte of the input is looked at about once, and a
message that two requests share as one object is not looked at again. So the time is linear in what comes in, never in pairs, and
a conversation that grows costs what is new of it. Says what could have been reused, not what a server kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

from loopkit.cache.prefixes.prompt_parts import Known, Parts, Prompt, parts
from loopkit.contract.request import Request, first_difference

__all__ = ["WIDTH", "Node", "Reuse", "Shared", "grown", "reuse", "roots"]

WIDTH = {"bytes": 1, "tokens": 8, "blocks": 8}
"Bytes that one symbol of a prompt takes in its chunks."


class Shared(Struct, frozen=True, gc=False):
    """A prefix in common with another request."""

    request: int | None = None
    "Which, by its place in the sequence; None where there is none, or nothing is shared with any."
    bytes: int | None = None
    "None, as with the other counts, where the two are not known in this unit."
    messages: int | None = None
    "Whole messages from the first on; the system message, where it is one, counts."
    tokens: int | None = None
    blocks: int | None = None


class Reuse(Struct, frozen=True, gc=False):
    """What a request shares with those before it."""

    size: Shared
    "All of this request, in the same units."
    earlier: Shared
    "The longest prefix in common with any earlier one; of several, the first, which brought it in."
    before: Shared
    "With the one before it in the sequence."
    session: Shared
    "With the same session's last; no counts where the session is not known, or this is its first."

    @property
    def share(self) -> float | None:
        """Share of the prompt that an earlier one began with, 0 to 1; None of an empty prompt."""
        whole = self.size.bytes or self.size.tokens or self.size.blocks
        return (self.earlier.bytes or self.earlier.tokens or self.earlier.blocks or 0) / whole if whole else None


class Node(Struct, gc=False):
    """The end of a prefix; its edge from the node above is ``chunk[start:stop]``."""

    chunk: bytes
    start: int
    stop: int
    first: int
    "The first request that came by."
    depth: int
    "Bytes from the root."
    below: dict[bytes, Node]


class _Seen(NamedTuple):
    """A request in the tree."""

    place: int
    parts: Parts
    path: list[Node]
    "Where each of its chunks ends."


def reuse(requests: Iterable[Request | Prompt | bytes]) -> list[Reuse]:
    r"""Find each request's longest shared prefix with any earlier one, with the one before it, and with its session's last.

    Parameters
    ----------
    requests : iterable of Request, Prompt or bytes
        In the order in which they were sent: those of ``Session.requests()``, prompts of other logs, or plain bodies. Read once;
        of bodies only what is new in them is kept. Those known by bytes, tokens and blocks are compared among their like.

    Returns
    -------
    list of Reuse
        One a request, in their order. Bytes are those that a prompt is made of: name and value of each member that a template may
        read (not sampling, not the slot), then the messages; the closing brackets do not count.

    Examples
    --------
    >>> first = b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}'
    >>> other = b'{"model":"m","messages":[{"role":"user","content":"Ho"}]}'
    >>> grown = first[:-2] + b',{"role":"assistant","content":"Yes?"}]}'
    >>> for each in reuse([first, other, grown]):
    ...     print(each.earlier.request, each.earlier.bytes, each.earlier.messages, "of", each.size.messages)
    None 0 0 of 1
    0 52 0 of 1
    0 55 1 of 2
    >>> reuse([Prompt(tokens=[1, 2, 3]), Prompt(tokens=[1, 2, 4, 5])])[1].earlier.tokens
    2
    """
    return [found for found, _, _ in grown(requests, roots())]


def roots() -> dict[str, Node]:
    """A tree for each unit, of no request yet."""
    return {unit: Node(b"", 0, 0, -1, 0, {}) for unit in WIDTH}


def grown(requests: Iterable[Request | Prompt | bytes], trees: Mapping[str, Node]) -> Iterator[tuple[Reuse, str, Node]]:
    """Grow trees by one request after the other.

    Yields
    ------
    tuple of Reuse, str and Node
        What the request shares, the unit that it is known in, and the node where it ends, which stays that.
    """
    heads: dict[bytes, Parts] = {}
    numbers: dict[object, int] = {}
    sessions: dict[str, _Seen] = {}
    known: Known = {}
    before: _Seen | None = None
    for index, request in enumerate(requests):
        now = parts(request, heads, numbers)
        session = None if isinstance(request, bytes) else request.session
        last = None if session is None else sessions.get(session)
        with_before, same = _with(before, now, known)
        with_last, also = (with_before, same) if last is before else _with(last, now, known)
        path = [] if last is None else last.path  # the session's next is now the last: its path grows, and is not copied
        del path[also:]
        if before is not None and also < same:
            path += before.path[also:same]
        earlier = _insert(trees[now.unit], path, now, index)
        size = _shared(None, now, path[-1].depth if path else 0, len(now))
        before = _Seen(index, now, path)
        if session is not None:
            sessions[session] = before
        yield Reuse(size, earlier, with_before, with_last), now.unit, path[-1] if path else trees[now.unit]


def _with(other: _Seen | None, now: Parts, known: Known) -> tuple[Shared, int]:
    """What is shared with one request, and how many whole chunks of it."""
    if other is None:
        return Shared(), 0
    if other.parts.unit != now.unit:
        return Shared(other.place), 0
    same = whole = now.agree(other.parts, known)
    depth = other.path[same - 1].depth if same else 0
    if same < min(len(now), len(other.parts)):
        theirs, ours = other.parts[same], now[same]
        part = first_difference(theirs, ours)
        if part == min(len(theirs), len(ours)):  # one ends within the other: cut elsewhere, they may go on alike
            part = first_difference(other.parts.joined(same), now.joined(same))
        depth += part
        while whole < len(now) and len(now[whole]) <= part:
            part -= len(now[whole])
            whole += 1
    return _shared(other.place, now, depth, whole), same


def _insert(root: Node, path: list[Node], now: Parts, index: int) -> Shared:
    """Walk on from where ``path`` ends, make what is missing, and say how far others had come."""
    width = WIDTH[now.unit]
    node = path[-1] if path else root
    parted: Shared | None = None
    for number in range(len(path), len(now)):
        chunk = now[number]
        at, end = 0, len(chunk)
        while at < end:
            child = node.below.get(chunk[at : at + width])
            if child is None:
                if parted is None:
                    parted = _shared(node.first if node.depth else None, now, node.depth, number)
                child = Node(chunk, at, end, index, node.depth + end - at, {})
                node.below[chunk[at : at + width]] = child
                at = end
            elif child.chunk is chunk and child.start == at and child.stop == end:
                at = end
            else:
                size = min(child.stop - child.start, end - at)
                same = first_difference(child.chunk[child.start : child.start + size], chunk[at : at + size])
                same -= same % width
                if same < child.stop - child.start:
                    child = _split(node, child, same, width)
                at += same
            node = child
        path.append(node)
    if parted is None:
        parted = _shared(node.first if node.depth else None, now, node.depth, len(now))
    return parted


def _split(above: Node, node: Node, size: int, width: int) -> Node:
    """Make a node in the midst of an edge; the one below stays the same object, for paths lead to it."""
    chunk, start = node.chunk, node.start
    between = Node(chunk, start, start + size, node.first, node.depth - (node.stop - start) + size, {})
    between.below[chunk[start + size : start + size + width]] = node
    node.start += size
    above.below[chunk[start : start + width]] = between
    return between


def _shared(request: int | None, now: Parts, depth: int, whole: int) -> Shared:
    """Counts of a prefix of ``depth`` bytes that holds ``whole`` chunks; part of a token is none."""
    count = depth // WIDTH[now.unit]
    if now.unit == "tokens":
        return Shared(request, tokens=count)
    if now.unit == "blocks":
        return Shared(request, blocks=count)
    return Shared(request, count, None if now.lead is None else max(0, whole - now.lead))
