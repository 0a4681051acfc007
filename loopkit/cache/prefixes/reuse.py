"""Prefix reuse: the longest prefix that each request of a sequence shares with earlier requests.

The result is what a perfect cache could have reused, not what a server did reuse. Requests are inserted one by one into a prefix
tree, whose edges are slices of the request's bytes. Each input byte is compared about once, and messages that two requests share
as one Python object are not compared. The time is therefore linear in the input.
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
"Number of bytes in a chunk that encode one unit of the prompt: a byte, a token id or the number of a block."


class Shared(Struct, frozen=True, gc=False):
    """Size of a prefix that a request shares with another one, or of a whole request. Counts in unknown units are None."""

    request: int | None = None
    "Index of the other request in the sequence; None if there is no other request or no shared prefix."
    bytes: int | None = None
    "Number of bytes of the prompt: members that a chat template may read, then the messages."
    messages: int | None = None
    "Number of whole messages, including the system message."
    tokens: int | None = None
    "Number of tokens."
    blocks: int | None = None
    "Number of whole blocks."


class Reuse(Struct, frozen=True, gc=False):
    """The prefixes that one request shares with the requests before it."""

    size: Shared
    "Size of this whole request."
    earlier: Shared
    "The longest prefix shared with any earlier request. If several share it, `Shared.request` is the first of them."
    before: Shared
    "The prefix shared with the request just before it in the sequence."
    session: Shared
    "The prefix shared with the previous request of the same session. All fields are None if there is none."

    @property
    def share(self) -> float | None:
        """Size of `earlier` divided by the size of the prompt, from 0 to 1; None for an empty prompt."""
        whole = self.size.bytes or self.size.tokens or self.size.blocks
        return (self.earlier.bytes or self.earlier.tokens or self.earlier.blocks or 0) / whole if whole else None


class Node(Struct, gc=False):
    """A node of the prefix tree: the end of a prefix. The bytes on the edge from its parent are ``chunk[start:stop]``."""

    chunk: bytes
    "The chunk that contains the bytes of the edge."
    start: int
    stop: int
    first: int
    "Index of the first request that begins with this prefix."
    depth: int
    "Length of the prefix in bytes."
    below: dict[bytes, Node]
    "Children, by the first unit of their edges."


class _Inserted(NamedTuple):
    """A request that was inserted into the tree."""

    place: int
    "Index of the request in the sequence."
    parts: Parts
    "The chunks of the request's prompt."
    path: list[Node]
    "For each chunk, the node where it ends."


def reuse(requests: Requests) -> pd.DataFrame:
    r"""Return how much of each request's prompt is a prefix of earlier requests.

    Parameters
    ----------
    requests : Logs, Session, or iterable of Request, Prompt or bytes
        The requests in the order in which they were sent. Bytes are taken as request bodies. A request with a body or messages is
        compared only with others of this kind; the same applies to token ids and to block hashes.

    Returns
    -------
    DataFrame
        One row per request. The index is the position of the request in the sequence, from 0. Columns:

        - ``session``: id of the session.
        - ``share``: the longest shared prefix divided by the size of the prompt, from 0 to 1.
        - ``size_*``: size of the whole prompt.
        - ``earlier_*``: size of the longest prefix shared with any earlier request. ``earlier_request`` is its index.
        - ``previous_*``: size of the prefix shared with the request just before. ``previous_request`` is its index.
        - ``session_*``: size of the prefix shared with the previous request of the session. ``session_request`` is its index.

        Each ``*`` is ``bytes``, ``messages``, ``tokens`` or ``blocks``. A count is ``<NA>`` if it is unknown. Bytes are counted
        over the members that a chat template may read, and the messages.

    Raises
    ------
    InvalidConfig
        If an item is not a `Request`, `Prompt` or bytes.

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
    """Return a `Reuse` for each request. `reuse` returns the same as a frame."""
    return [found for found, _, _ in grown(requests, roots())]


def roots() -> dict[str, Node]:
    """Return the root node of a new, empty tree for each unit: bytes, tokens and blocks."""
    return {unit: Node(b"", 0, 0, -1, 0, {}) for unit in WIDTH}


def grown(requests: Iterable[Request | Prompt | bytes], trees: Mapping[str, Node]) -> Iterator[tuple[Reuse, str, Node]]:
    """Insert requests one by one into the trees of `roots`, and yield what each shares with the earlier ones.

    Yields
    ------
    tuple of Reuse, str and Node
        The shared prefixes of the request, its unit, and the node where its prompt ends. Later insertions keep this node object.
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
        path = [] if last is None else last.path  # changed in place: it becomes the path of this request
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
    """Return the prefix that `now` shares with `other`, and how many leading chunks of both are equal."""
    if other is None:
        return Shared(), 0
    if other.parts.unit != now.unit:
        return Shared(other.place), 0
    same = whole = now.agree(other.parts, known)
    depth = other.path[same - 1].depth if same else 0
    if same < min(len(now), len(other.parts)):
        theirs, ours = other.parts[same], now[same]
        part = first_difference(theirs, ours)
        if part == min(len(theirs), len(ours)):  # one chunk is a prefix of the other: compare the joined rest
            part = first_difference(other.parts.joined(same), now.joined(same))
        depth += part
        while whole < len(now) and len(now[whole]) <= part:
            part -= len(now[whole])
            whole += 1
    return _shared(other.place, now, depth, whole), same


def _insert(root: Node, path: list[Node], now: Parts, index: int) -> Shared:
    """Insert the chunks that `path` lacks, append their nodes to `path`, and return the prefix that was already in the tree."""
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
    """Split the edge above `node` after `size` bytes, and return the new node. `node` stays the same object, as paths need it."""
    chunk, start = node.chunk, node.start
    between = Node(chunk, start, start + size, node.first, node.depth - (node.stop - start) + size, {})
    between.below[chunk[start + size : start + size + width]] = node
    node.start += size
    above.below[chunk[start : start + width]] = between
    return between


def _shared(request: int | None, now: Parts, depth: int, whole: int) -> Shared:
    """Return the size of a prefix of `depth` bytes and `whole` complete chunks. Only complete tokens and blocks count."""
    count = depth // WIDTH[now.unit]
    if now.unit == "tokens":
        return Shared(request, tokens=count)
    if now.unit == "blocks":
        return Shared(request, blocks=count)
    return Shared(request, count, None if now.lead is None else max(0, whole - now.lead))
