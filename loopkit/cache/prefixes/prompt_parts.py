"""The parts of a request that a prompt cache compares, in prompt order: members first, then messages.

Members of the body that chat templates ignore, such as the temperature or the slot, are left out, because they do not change the
prompt. Every other byte counts: if two bodies spell the same value differently, their prompts differ. A body that is not a JSON
object, or that contains a member twice, is not split and is compared as a whole.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast

from msgspec import Raw

from loopkit.contract.messages import ChatMessage, encode_message
from loopkit.contract.request import Request
from loopkit.encoding import decode, encode
from loopkit.errors import InvalidConfig, kind_of

__all__ = [
    "UNREAD",
    "Body",
    "HasRequests",
    "Known",
    "Parts",
    "Prompt",
    "Requests",
    "Span",
    "body_of",
    "parts",
    "read",
    "requests_of",
]

UNREAD: Final = frozenset(
    [
        *("temperature", "top_p", "top_k", "min_p", "typical_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        *("repeat_penalty", "logit_bias", "seed", "n", "stop", "stop_sequences", "ignore_eos", "logprobs", "top_logprobs"),
        *("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict", "min_tokens", "stream", "stream_options"),
        *("timings_per_token", "return_progress", "cache_prompt", "id_slot", "user", "metadata", "store", "service_tier"),
        *("prompt_cache_key", "safety_identifier"),
    ]
)
"""Members of a body that affect sampling, caching or transport, but not the tokens of the prompt."""

MESSAGES = ("messages", "input")
"Names of the message array: ``messages`` in chat completions and Anthropic's API, ``input`` in OpenAI's responses API."


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Prompt:
    """One request from any source, for `loopkit.cache`. Give exactly one of `body`, `messages`, `tokens` and `blocks`.

    Examples
    --------
    >>> Prompt(tokens=[1, 2, 3], session="a")
    Prompt(3 tokens, session 'a')
    >>> Prompt(session="a")
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidConfig: Prompt: 0 of body, messages, tokens, blocks were given. Give exactly one
    """

    body: bytes | None = None
    "The request body, as it was sent."
    messages: Sequence[Mapping[str, Any] | ChatMessage] | None = None
    "Chat messages, for a request whose bytes are unknown. Messages with their members in another order are not equal."
    tokens: Sequence[int] | None = None
    "Token ids of the prompt."
    blocks: Sequence[int | str | bytes] | None = None
    "Hashes of the blocks of the prompt, in order, as in Mooncake's traces."
    session: str | None = None
    "Id of the conversation."
    time: str | None = None
    "When the request was sent, as an ISO 8601 text."
    slot: int | None = None
    "Number of the llama-server slot that the request asked for; None if it asked for none."

    def __post_init__(self) -> None:
        given = sum(value is not None for value in (self.body, self.messages, self.tokens, self.blocks))
        if given != 1:
            raise InvalidConfig("Prompt", f"{given} of body, messages, tokens, blocks were given", "Give exactly one")

    def __repr__(self) -> str:
        known = (("bytes", self.body), ("messages", self.messages), ("tokens", self.tokens), ("blocks", self.blocks))
        facts = [f"{len(value)} {unit}" for unit, value in known if value is not None]
        about = (("session", self.session), ("time", self.time), ("slot", self.slot))
        return f"Prompt({', '.join(facts + [f'{name} {value!r}' for name, value in about if value is not None])})"


class HasRequests(Protocol):
    """An object with a ``requests`` method, such as ``Logs`` or ``Session``."""

    def requests(self) -> Iterable[Request | Prompt]: ...


Requests: TypeAlias = HasRequests | Iterable[Request | Prompt | bytes]
"Type of a parameter for requests: ``Logs``, a ``Session``, or an iterable of requests in the order in which they were sent."


def requests_of(source: Requests) -> Iterable[Request | Prompt | bytes]:
    """Return `source` itself if it is iterable, or the requests that its ``requests`` method returns.

    Raises
    ------
    InvalidConfig
        If `source` is neither iterable nor has a ``requests`` method.
    """
    method = getattr(source, "requests", None)
    if callable(method):
        return cast("HasRequests", source).requests()
    if isinstance(source, Iterable):
        return source
    raise InvalidConfig("requests", f"expected Logs, a Session or an iterable of requests; got {kind_of(source)}", "Pass Logs")


class Span(NamedTuple):
    """The bytes of one member or message in a body: those between two commas, including white space."""

    name: str
    "Name of the member, or a path such as ``messages[3]``."
    start: int
    "Byte offset in the body where the span begins."
    stop: int
    "Byte offset after the last byte."


class Body(NamedTuple):
    """A body split into spans, in prompt order."""

    members: list[Span]
    "Spans of the members that a chat template may read, except the messages."
    opening: Span | None
    "Span of the message array's name and opening bracket; None if the body has no message array."
    messages: list[Span]
    "Spans of the messages."
    unread: list[Span]
    "Spans of the members that no template reads."


Known: TypeAlias = dict[tuple[int, int], tuple[Sequence[bytes], Sequence[bytes], int]]
"""Cache of comparisons. The key is the ``id`` of two sequences of chunks. The value is both sequences and how many leading chunks
they share. Storing the sequences keeps Python from reusing their ids."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A prompt as a sequence of byte strings (chunks), such as one per message.

    The chunks are those of `head`, then the first `count` of `shared`, then those of `tail`. Two prompts share the longest common
    prefix of their joined chunks.
    """

    unit: str
    "The unit in which prefixes are counted: ``bytes``, ``tokens`` or ``blocks``."
    lead: int | None
    "Number of chunks before the first message; None if the messages are unknown."
    head: list[bytes]
    "The first chunks. Requests of one epoch refer to the same list."
    shared: Sequence[bytes] = ()
    "A sequence of chunks that other prompts also refer to. Its first `count` chunks follow the head."
    count: int = 0
    "How many chunks of `shared` belong to this prompt."
    tail: Sequence[bytes] = ()
    "The last chunks."

    def __len__(self) -> int:
        return len(self.head) + self.count + len(self.tail)

    def __getitem__(self, at: int) -> bytes:
        if at < len(self.head):
            return self.head[at]
        at -= len(self.head)
        return self.shared[at] if at < self.count else self.tail[at - self.count]

    def joined(self, start: int) -> bytes:
        """Return the chunks from `start` on as one byte string."""
        return b"".join(self[at] for at in range(start, len(self)))

    def agree(self, other: Parts, known: Known) -> int:
        """Return how many leading chunks two prompts have in common.

        Chunks are not compared again if both prompts refer to the same sequence, or if `known` has the result of an earlier
        comparison. This call adds its own result to `known`.
        """
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
"Pattern of a member's name and colon, with the white space around them. It ends where the value begins."


def read(body: bytes) -> Body | None:
    """Split a body into spans. Return None if the body is not a JSON object or contains a member twice.

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
            return None  # a member occurs twice: the decoder keeps the last value
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
    """Return the offset after the white space that begins at offset `at`."""
    match = _SPACE.match(body, at)
    return match.end() if match else at


def parts(request: Request | Prompt | bytes, heads: dict[bytes, Parts], numbers: dict[Any, int]) -> Parts:
    """Return the parts of a request's prompt.

    Parameters
    ----------
    request : Request, Prompt or bytes
        The request. Bytes are taken as a request body.
    heads : dict
        Cache of split bodies without messages, which this call fills. Requests of one epoch share an entry.
    numbers : dict
        Cache that gives each block hash a number, which this call fills. Pass the same dict for all prompts to be compared.
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
            raise InvalidConfig(f"Prompt.{unit}", str(error), "Give token ids as 64-bit integers and blocks as hashes") from error
    return _of_body(body_of(request))


def body_of(request: Request | Prompt | bytes) -> bytes:
    """Return the body of a request. For a `Prompt` with messages, return a body that is built from these.

    Raises
    ------
    InvalidConfig
        If the prompt consists of token ids or block hashes, or `request` has another type.
    """
    if isinstance(request, bytes):
        return request
    if not isinstance(request, Request | Prompt):
        raise InvalidConfig(
            "requests", f"expected Request, Prompt or bytes; got {kind_of(request)}", "Give requests, such as Session.requests()"
        )
    if request.body is not None:
        return request.body
    assert isinstance(request, Prompt)
    if request.messages is None:
        raise InvalidConfig(
            "Prompt", "it holds token ids or block hashes, not text", "Use loopkit.cache.reuse to compare such prompts"
        )
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
    # Each message after the first includes the comma before it, as in the chunks of a `Request`.
    chunks += [body[start - (index > 0) : stop] for index, (_, start, stop) in enumerate(found.messages)]
    chunks[:1] = [b"{" + b"".join(chunks[:1])]
    return Parts("bytes", lead if found.opening is not None else None, chunks)
