"""Prefix reuse: the longest prefix that each request of a sequence shares with earlier requests.

The requests grow a prefix tree whose edges are slices of their own messages. Each input byte is compared about once, and a
message object that two requests share is not compared again, so the time is linear in the input. The result says what a cache
could have reused, not what a server kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from loopkit.cache.prefixes.prompt_parts import Known, Parts, Prompt, Requests, parts, requests_of
from loopkit.contract.json_position import first_difference
from loopkit.contract.request import Request

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["WIDTH", "Node", "Reuse", "Shared", "grown", "reuse", "roots", "shared_prefixes"]

WIDTH = {"bytes": 1, "tokens": 8, "blocks": 8}
"Bytes for one byte, token or block of a prompt in its chunks."


class Shared(Struct, frozen=True, gc=False):
    """A prefix shared with another request, or the size of a request."""

    request: int | None = None
    "Position of the other request in the sequence; None if no request shares a prefix."
    bytes: int | None = None
    "Bytes of the prompt. Each count is None if the two requests cannot be compared in this unit."
    messages: int | None = None
    "Whole messages from the first on, the system message included."
    tokens: int | None = None
    blocks: int | None = None


class Reuse(Struct, frozen=True, gc=False):
    """What a request shares with the requests before it."""

    size: Shared
    "Size of this request, in the same units."
    earlier: Shared
    "The longest prefix shared with any earlier request. Among several, the first one counts."
    before: Shared
    "The prefix shared with the request just before it in the sequence."
    session: Shared
    "The prefix shared with the previous request of the same session; empty if there is none."

    @property
    def share(self) -> float | None:
        """Share of the prompt that an earlier request shares, from 0 to 1; None for an empty prompt."""
        whole = self.size.bytes or self.size.tokens or self.size.blocks
        return (self.earlier.bytes or self.earlier.tokens or self.earlier.blocks or 0) / whole if whole else None


class Node(Struct, gc=False):
    """The end of a prefix. The edge from its parent is ``chunk[start:stop]``."""

    chunk: bytes
    start: int
    stop: int
    first: int
    "Position of the first request that passes this node."
    depth: int
    "Bytes from the root."
    below: dict[bytes, Node]


class _Inserted(NamedTuple):
    """A request in the tree."""

    place: int
    parts: Parts
    path: list[Node]
    "The node where each of its chunks ends."


def reuse(requests: Requests) -> pd.DataFrame:
    r"""Return how much of each request's prompt earlier requests already contained.

    Parameters
    ----------
    requests : Logs, Session, or iterable of Request, Prompt or bytes
        In the order in which they were sent. Bytes are request bodies. Requests known by bytes, tokens and blocks are compared
        only with requests of the same kind.

    Returns
    -------
    DataFrame
        One row per request, indexed by its position in the sequence. ``session``: its session. ``share``: the share of the
        prompt that some earlier request begins with, from 0 to 1. ``size_*``: the whole prompt. ``earlier_request`` and
        ``earlier_*``: the longest prefix shared with any earlier request, and the position of that request.
        ``previous_request`` and ``previous_*``: the prefix shared with the request just before it. ``session_request`` and
        ``session_*``: the prefix shared with the previous request of the same session. Each ``*`` is ``bytes``, ``messages``,
        ``tokens`` or ``blocks``; a count is ``<NA>`` if it is unknown. Bytes are those of the prompt: members that a template
        may read, then the messages.

    Raises
    ------
    InvalidConfig
        If an item is not a request.

    Examples
    --------
    >>> first = b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}'
    >>> other = b'{"model":"m","messages":[{"role":"user","content":"Ho"}]}'
    >>> grown = first[:-2] + b',{"role":"assistant","content":"Yes?"}]}'
    >>> frame = reuse([first, other, grown])
    >>> frame[["earlier_request", "earlier_bytes", "earlier_messages", "size_messages"]].values.tolist()
    [[<NA>, 0, 0, 1], [0, 52, 0, 1], [0, 55, 1, 2]]
    >>> int(reuse([Prompt(tokens=[1, 2, 3]), Prompt(tokens=[1, 2, 4, 5])])["earlier_tokens"][1])
    2
    """
    import pandas as pd

    sessions: list[str | None] = []

    def noted() -> Iterator[Request | Prompt | bytes]:
        for request in requests_of(requests):
            sessions.append(None if isinstance(request, bytes) else getattr(request, "session", None))
            yield request

    found = shared_prefixes(noted())
    columns: dict[str, Any] = {
        "session": pd.array(sessions, dtype=pd.StringDtype()),
        "share": pd.array([each.share for each in found], dtype=pd.Float64Dtype()),
    }
    for name, part in (("size", "size"), ("earlier", "earlier"), ("previous", "before"), ("session", "session")):
        for count in Shared.__struct_fields__:
            if (name, count) != ("size", "request"):
                values = [getattr(getattr(each, part), count) for each in found]
                columns[f"{name}_{count}"] = pd.array(values, dtype=pd.Int64Dtype())
    return pd.DataFrame(columns)


def shared_prefixes(requests: Iterable[Request | Prompt | bytes]) -> list[Reuse]:
    """Return, for each request, the prefixes it shares with earlier ones; `reuse` gives them as a frame."""
    return [found for found, _, _ in grown(requests, roots())]


def roots() -> dict[str, Node]:
    """Return an empty tree for each unit."""
    return {unit: Node(b"", 0, 0, -1, 0, {}) for unit in WIDTH}


def grown(requests: Iterable[Request | Prompt | bytes], trees: Mapping[str, Node]) -> Iterator[tuple[Reuse, str, Node]]:
    """Insert requests into the trees, one by one.

    Yields
    ------
    tuple of Reuse, str and Node
        What the request shares, its unit, and the node where it ends. That node keeps its identity.
    """
    heads: dict[bytes, Parts] = {}
    numbers: dict[object, int] = {}
    sessions: dict[str, _Inserted] = {}
    known: Known = {}
    before: _Inserted | None = None
    for index, request in enumerate(requests):
        now = parts(request, heads, numbers)
        session = None if isinstance(request, bytes) else request.session
        last = None if session is None else sessions.get(session)
        with_before, same = _with(before, now, known)
        with_last, also = (with_before, same) if last is before else _with(last, now, known)
        path = [] if last is None else last.path  # the session's path grows in place
        del path[also:]
        if before is not None and also < same:
            path += before.path[also:same]
        earlier = _insert(trees[now.unit], path, now, index)
        size = _shared(None, now, path[-1].depth if path else 0, len(now))
        before = _Inserted(index, now, path)
        if session is not None:
            sessions[session] = before
        yield Reuse(size, earlier, with_before, with_last), now.unit, path[-1] if path else trees[now.unit]


def _with(other: _Inserted | None, now: Parts, known: Known) -> tuple[Shared, int]:
    """Return what is shared with one request, and how many whole chunks."""
    if other is None:
        return Shared(), 0
    if other.parts.unit != now.unit:
        return Shared(other.place), 0
    same = whole = now.agree(other.parts, known)
    depth = other.path[same - 1].depth if same else 0
    if same < min(len(now), len(other.parts)):
        theirs, ours = other.parts[same], now[same]
        part = first_difference(theirs, ours)
        if part == min(len(theirs), len(ours)):  # one chunk ends inside the other: compare across chunk borders
            part = first_difference(other.parts.joined(same), now.joined(same))
        depth += part
        while whole < len(now) and len(now[whole]) <= part:
            part -= len(now[whole])
            whole += 1
    return _shared(other.place, now, depth, whole), same


def _insert(root: Node, path: list[Node], now: Parts, index: int) -> Shared:
    """Extend ``path`` with the remaining chunks, adding nodes, and return the prefix that was there already."""
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
    """Insert a node into an edge. The node below stays the same object, since paths refer to it."""
    chunk, start = node.chunk, node.start
    between = Node(chunk, start, start + size, node.first, node.depth - (node.stop - start) + size, {})
    between.below[chunk[start + size : start + size + width]] = node
    node.start += size
    above.below[chunk[start : start + width]] = between
    return between


def _shared(request: int | None, now: Parts, depth: int, whole: int) -> Shared:
    """Return the counts of a prefix of ``depth`` bytes and ``whole`` chunks. A partial token does not count."""
    count = depth // WIDTH[now.unit]
    if now.unit == "tokens":
        return Shared(request, tokens=count)
    if now.unit == "blocks":
        return Shared(request, blocks=count)
    return Shared(request, count, None if now.lead is None else max(0, whole - now.lead))
