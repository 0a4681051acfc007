"""What a prompt cache sees of a request: its parts, in the order in which a server makes a prompt of them.

A body is read as its members and then its messages, wherever these stand in it; members that no chat template reads (sampling,
transport) are left out, since another temperature, or another slot, does not part two prompts. Every other byte counts: two forms
of one value are two prompts. A body that is no JSON object, or says a member twice, is one part, compared as bytes alone.
Knows nothing of tokenizers, templates or engines.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import Raw

from loopkit.contract.messages import ChatMessage, encode_message
from loopkit.contract.request import Request
from loopkit.encoding import decode, encode
from loopkit.errors import InvalidConfig, kind_of

__all__ = ["UNREAD", "Body", "Known", "Parts", "Prompt", "Span", "body_of", "parts", "read"]

UNREAD: Final = frozenset(
    [
        *("temperature", "top_p", "top_k", "min_p", "typical_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        *("repeat_penalty", "logit_bias", "seed", "n", "stop", "stop_sequences", "ignore_eos", "logprobs", "top_logprobs"),
        *("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict", "min_tokens", "stream", "stream_options"),
        *("timings_per_token", "return_progress", "cache_prompt", "id_slot", "user", "metadata", "store", "service_tier"),
        *("prompt_cache_key", "safety_identifier"),
    ]
)
"""Members of a body that change how an answer is drawn or carried, and not a token of the prompt."""

MESSAGES = ("messages", "input")
"What the array of messages is called: in chat completions and Anthropic's, in OpenAI's responses."


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Prompt:
    """A request of any log: what is known of its prompt, and whose it was. Exactly one of the first four is given.

    Examples
    --------
    >>> Prompt(tokens=[1, 2, 3], session="a")
    Prompt(3 tokens, session 'a')
    >>> Prompt(session="a")
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidConfig: Prompt: 0 of body, messages, tokens, blocks are given. Give exactly one
    """

    body: bytes | None = None
    "The bytes that were sent."
    messages: Sequence[Mapping[str, Any] | ChatMessage] | None = None
    "Chat messages, where the bytes are not known; members in their order."
    tokens: Sequence[int] | None = None
    "Token numbers."
    blocks: Sequence[int | str | bytes] | None = None
    "Hashes of the prompt's blocks, as traces hold them."
    session: str | None = None
    time: str | None = None
    slot: int | None = None

    def __post_init__(self) -> None:
        given = sum(value is not None for value in (self.body, self.messages, self.tokens, self.blocks))
        if given != 1:
            raise InvalidConfig("Prompt", f"{given} of body, messages, tokens, blocks are given", "Give exactly one")

    def __repr__(self) -> str:
        known = (("bytes", self.body), ("messages", self.messages), ("tokens", self.tokens), ("blocks", self.blocks))
        facts = [f"{len(value)} {unit}" for unit, value in known if value is not None]
        about = (("session", self.session), ("time", self.time), ("slot", self.slot))
        return f"Prompt({', '.join(facts + [f'{name} {value!r}' for name, value in about if value is not None])})"


class Span(NamedTuple):
    """A member or a message: what stands between two commas of a body, white space too."""

    name: str
    start: int
    "Byte offset in the body."
    stop: int


class Body(NamedTuple):
    """A body, taken apart in prompt order."""

    members: list[Span]
    "What a template may read, messages apart."
    opening: Span | None
    "Name and bracket of the array of messages; None where there is none."
    messages: list[Span]
    unread: list[Span]


Known: TypeAlias = dict[tuple[int, int], tuple[Sequence[bytes], Sequence[bytes], int]]
"How many of the first are the same in two rows, by the rows' ids; the rows themselves keep these from being given again."


@dataclass(frozen=True, slots=True)
class Parts:
    """A prompt as byte strings in a row; two prompts share what their rows, joined, begin with."""

    unit: str
    "``bytes``, ``tokens`` or ``blocks``: what a prefix is counted in."
    lead: int | None
    "How many stand before the first message; None where messages are not known."
    head: list[bytes]
    shared: Sequence[bytes] = ()
    "A row that other prompts have too; its first ``count`` come after the head."
    count: int = 0
    tail: Sequence[bytes] = ()

    def __len__(self) -> int:
        return len(self.head) + self.count + len(self.tail)

    def __getitem__(self, at: int) -> bytes:
        if at < len(self.head):
            return self.head[at]
        at -= len(self.head)
        return self.shared[at] if at < self.count else self.tail[at - self.count]

    def joined(self, start: int) -> bytes:
        """All from one of them on, as one."""
        return b"".join(self[at] for at in range(start, len(self)))

    def agree(self, other: Parts, known: Known) -> int:
        """How many of the first are the same; what is one row for both, or is ``known`` of two rows, is not looked at again."""
        same, both = 0, min(self.count, other.count)
        rows = id(self.shared), id(other.shared)
        beside = self.head is other.head and self.shared is not other.shared
        sure = known[rows][2] if beside and rows in known else 0
        if self.head is other.head:
            same = len(self.head) + (min(sure, both) if beside else both)
        least = min(len(self), len(other))
        while same < least and self[same] == other[same]:
            same += 1
        if beside and min(same - len(self.head), both) > sure:
            known[rows] = self.shared, other.shared, min(same - len(self.head), both)
        return same


_SPACE = re.compile(rb"[ \t\n\r]*")
NAME = re.compile(rb'[ \t\n\r]*("[^"\\]*(?:\\.[^"\\]*)*")[ \t\n\r]*:[ \t\n\r]*', re.S)
"A member's name, up to where its value begins."


def read(body: bytes) -> Body | None:
    """Take a body apart; None where it is no JSON object, or says a member twice.

    Examples
    --------
    >>> body = b'{"messages": [{"role":"user"}, {}], "seed":1, "model":"m"}'
    >>> [body[span.start : span.stop] for part in read(body) if isinstance(part, list) for span in part]
    [b' "model":"m"', b'{"role":"user"}', b' {}', b' "seed":1']
    >>> read(b'{"n":1,"n":2}') is None
    True
    """
    try:
        values = decode(body, dict[str, Raw])
    except ValueError:
        return None
    listed = next((name for name in MESSAGES if bytes(values.get(name, b""))[:1] == b"["), None)
    members: list[Span] = []
    unread: list[Span] = []
    opening: Span | None = None
    messages: list[Span] = []
    at, seen = body.index(b"{") + 1, 0
    while name := NAME.match(body, at):
        seen += 1
        key = decode(name[1], str)
        value = values[key]
        stop = name.end() + len(value)
        if value != Raw(body[name.end() : stop]):
            return None  # what is kept of a member said twice is its last value
        end = _stop(body, stop)
        if key == listed:
            opening = Span(key, at, name.end() + 1)
            messages = _items(body, key, name.end() + 1, decode(value, list[Raw]))
        else:
            (unread if key in UNREAD else members).append(Span(key, at, end))
        at = end + 1
    return Body(members, opening, messages, unread) if seen == len(values) else None


def _items(body: bytes, name: str, at: int, items: list[Raw]) -> list[Span]:
    spans = []
    for index, item in enumerate(items):
        stop = _stop(body, _stop(body, at) + len(item))
        spans.append(Span(f"{name}[{index}]", at, stop))
        at = stop + 1
    return spans


def _stop(body: bytes, at: int) -> int:
    """Where white space that begins at ``at`` ends."""
    match = _SPACE.match(body, at)
    return match.end() if match else at


def parts(request: Request | Prompt | bytes, heads: dict[bytes, Parts], numbers: dict[Any, int]) -> Parts:
    """The parts of a prompt.

    Parameters
    ----------
    request : Request, Prompt or bytes
        Bytes are a body.
    heads : dict
        Of heads taken apart before; the requests of an epoch share theirs.
    numbers : dict
        Of block hashes seen before.
    """
    if isinstance(request, Request):
        head, messages, count, newest = request.chunks
        if not count:
            return _of_body(request.body)
        if head not in heads:
            heads[head] = _of_body(head + b"]}")
        first = heads[head]
        return Parts(first.unit, first.lead, first.head, messages, count, () if newest is None else (newest,))
    if isinstance(request, Prompt):
        try:
            if request.tokens is not None:
                return Parts("tokens", None, [array("q", request.tokens).tobytes()])
            if request.blocks is not None:
                dense = [numbers.setdefault(block, len(numbers)) for block in request.blocks]
                return Parts("blocks", None, [array("q", dense).tobytes()])
        except (TypeError, OverflowError) as error:
            unit = "blocks" if request.tokens is None else "tokens"
            raise InvalidConfig(f"Prompt.{unit}", str(error), "Tokens are whole numbers of 64 bits, blocks hashes") from error
    return _of_body(body_of(request))


def body_of(request: Request | Prompt | bytes) -> bytes:
    """The body of a request, or one made of its messages.

    Raises
    ------
    InvalidConfig
        Where only tokens or blocks are known, or it is no request.
    """
    if isinstance(request, bytes):
        return request
    if not isinstance(request, Request | Prompt):
        raise InvalidConfig("requests", f"{kind_of(request)} is no request", "Give Request, Prompt or bytes")
    if request.body is not None:
        return request.body
    assert isinstance(request, Prompt)
    if request.messages is None:
        raise InvalidConfig("Prompt", "it holds no text, only numbers", "loopkit.cache.reuse says how far two of them agree")
    encoded = [encode_message(each) if isinstance(each, ChatMessage) else encode(each, "message") for each in request.messages]
    return b'{"messages":[' + b",".join(encoded) + b"]}"


def _of_body(body: bytes) -> Parts:
    found = read(body)
    if found is None:
        return Parts("bytes", None, [body])
    chunks = [body[span.start : span.stop] + b"," for span in found.members]
    if found.opening is not None:
        chunks.append(body[found.opening.start : found.opening.stop])
    lead = len(chunks)
    # A message after the first takes the comma before it along: so it is the very chunk that loopkit sends.
    chunks += [body[start - (index > 0) : stop] for index, (_, start, stop) in enumerate(found.messages)]
    chunks[:1] = [b"{" + b"".join(chunks[:1])]
    return Parts("bytes", lead if found.opening is not None else None, chunks)
