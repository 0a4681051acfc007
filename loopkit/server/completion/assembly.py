"""A chat completion out of a stream's events, or out of one whole answer.

Takes the text of each event, gives typed deltas for whoever watches, and in the end a `Completion` with the message exactly as
the server returned it: null, empty and absent told apart, reasoning under its own name, unknown members as bytes in their order.
Streams are taken as they really are; what is not a final answer is an error, never a shorter completion. Pure: knows nothing of
HTTP, time or logs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from loopkit.contract.messages import Extra
from loopkit.contract.records import Assistant, Usage
from loopkit.encoding import compact, decode
from loopkit.errors import StreamCut
from loopkit.server.completion.json_fragments import NULL, Halves, Members, Reader, join
from loopkit.server.completion.tool_calls import ToolCalls
from loopkit.server.completion.usage import normalise
from loopkit.server.transport.refusals import refusal

__all__ = ["Assembly", "Completion", "Delta", "Progress", "ReasoningDelta", "TextDelta", "ToolCallDelta", "whole"]

REASONING = ("reasoning_content", "reasoning")


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer; whole characters only."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the reasoning; whole characters only."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a tool call."""

    index: int
    "Position of the call in its message, from 0."
    name: str | None
    "The tool's name where the call begins, else None."
    arguments: str
    "What was added to the arguments; may be empty."


@dataclass(frozen=True, slots=True)
class Progress:
    """How far llama.cpp has read the prompt."""

    total: int
    cached: int
    processed: int
    ms: float


Delta: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta | Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A final answer: the message as the server returned it, and what the server said of it."""

    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    tool_calls: Raw | UnsetType = UNSET
    extra: Extra | UnsetType = UNSET
    replaced: int = 0
    "Lone surrogates that became U+FFFD."
    usage: Usage = field(default_factory=Usage)
    reported: Raw | UnsetType = UNSET
    "The server's own usage, where it does not add up."
    usage_fault: str | None = None
    "What does not add up, for a person."
    finish_reason: str | None = None
    response_id: str | None = None
    model: str | None = None
    build: str | None = None
    "The server's ``system_fingerprint``."
    attempts: int = 1
    elapsed_ms: float = 0.0
    "The whole call, waiting between attempts included."

    @property
    def text(self) -> str:
        """The answer's text; empty where there is none."""
        return self.content if isinstance(self.content, str) else ""

    def assistant(self, time: str) -> Assistant:
        """Return the record of this message.

        Parameters
        ----------
        time : str
            When the completion ended, in RFC 3339 format.

        Examples
        --------
        >>> Completion(content="Done.").assistant("2026-11-30T07:31:05.000000Z").content
        'Done.'
        """
        return Assistant(
            time=time,
            content=self.content,
            reasoning_content=self.reasoning_content,
            tool_calls=self.tool_calls,
            extra=self.extra,
            replaced=self.replaced or UNSET,
        )


class _Choice(msgspec.Struct):
    index: int | None = None
    delta: Raw = Raw()
    message: Raw = Raw()
    finish_reason: Any = None
    usage: Raw = Raw()


class _Progress(msgspec.Struct):
    total: int
    cache: int
    processed: int
    time_ms: float


class _Chunk(msgspec.Struct):
    id: Any = None
    object: Any = None
    model: Any = None
    system_fingerprint: Any = None
    choices: list[_Choice] | None = None
    usage: Raw = Raw()
    timings: Raw = Raw()
    prompt_progress: _Progress | None = None
    error: Any = None


class Assembly:
    """Puts the events of one answer together.

    Parameters
    ----------
    url : str
        For errors.
    first_call : int
        The number that the answer's first tool call has in the session; a missing id is made from it.

    Examples
    --------
    >>> assembly = Assembly("http://host")
    >>> assembly.feed('{"choices":[{"delta":{"role":"assistant","content":null}}]}')
    []
    >>> assembly.feed('{"choices":[{"delta":{"content":"Done."},"finish_reason":"stop"}]}')
    [TextDelta(text='Done.')]
    >>> assembly.finish().content
    'Done.'
    """

    def __init__(self, url: str, *, first_call: int = 1) -> None:
        self._url, self._first_call = url, first_call
        self._reader, self._members, self._calls = Reader(), Members(), ToolCalls()
        self._no_calls: Raw | UnsetType = UNSET
        self._halves = {name: Halves() for name in ("content", *REASONING)}
        self._reasoning: str | None = None
        self._usage = self._timings = Raw()
        self._facts: dict[str, str] = {}
        self._answered = self._messaged = False
        self.received = 0
        "Events taken in."
        self.finish_reason: str | None = None
        self.done = False
        "The server has said that no more comes."

    @property
    def final(self) -> bool:
        """True once the server has said how or that the answer ends."""
        return self.done or self.finish_reason is not None

    def feed(self, data: str, event: str = "") -> list[Delta]:
        """Take in the data of one event; gives what it adds.

        Raises
        ------
        ServerRefused, ContextExceeded
            The event holds an error.
        StreamCut
            It is no part of a chat completion.
        """
        data = data.strip(" \t\r\n")
        if self.done or not data:
            return []
        if data == "[DONE]":
            self.done = True
            return self._flush()
        self.received += 1
        if event == "error":
            raise refusal(self._url, 200, data)
        try:
            chunk, loose = self._reader.decode(data, _Chunk)
            if chunk.error or chunk.object == "error":
                raise refusal(self._url, 200, data)
            return self._absorb(chunk, loose)
        except (ValueError, AttributeError, TypeError) as error:
            raise self._cut(f"{ascii(data)[:80]} is no part of a chat completion: {error}") from error

    def _absorb(self, chunk: _Chunk, loose: Any) -> list[Delta]:
        deltas: list[Delta] = []
        for name in ("id", "model", "system_fingerprint"):
            if isinstance(value := getattr(chunk, name), str) and value:
                self._facts[name] = value
        if (read := chunk.prompt_progress) is not None:
            deltas.append(Progress(read.total, read.cache, read.processed, read.time_ms))
        for position, choice in enumerate(chunk.choices or ()):
            if choice.index:  # only the first of several choices is ours
                continue
            self._answered = True
            key = "delta" if bytes(choice.delta) not in (b"", NULL) else "message"
            raw = choice.delta if key == "delta" else choice.message
            if bytes(raw) not in (b"", NULL):
                self._messaged = True
                inner = None if loose is None else loose["choices"][position][key]
                deltas += self._absorb_message(raw, inner, whole=key == "message")
            if isinstance(choice.finish_reason, str) and choice.finish_reason:
                self.finish_reason = choice.finish_reason
                deltas += self._flush()
            self._usage = _newer(self._usage, choice.usage)
        self._usage = _newer(self._usage, chunk.usage)
        self._timings = _newer(self._timings, chunk.timings)
        return deltas

    def _absorb_message(self, raw: Raw, loose: Any, *, whole: bool) -> list[Delta]:
        fragment = self._reader.open(raw, loose, deeper="tool_calls")
        fragment.pop("role", None)
        calls = fragment.pop("tool_calls", None)
        self._members.add(fragment)
        deltas: list[Delta] = []
        for name in REASONING:
            if isinstance(text := fragment.get(name), str) and text:
                self._reasoning = self._reasoning or name
                if name == self._reasoning and (shown := self._halves[name].push(text)):
                    deltas.append(ReasoningDelta(shown))
        if isinstance(text := fragment.get("content"), str) and (shown := self._halves["content"].push(text)):
            deltas.append(TextDelta(shown))
        if isinstance(calls, bytes) and calls != NULL:
            for position, item in enumerate(decode(calls, list[Raw])):
                inner = None if loose is None else loose["tool_calls"][position]
                deltas.append(ToolCallDelta(*self._calls.add(item, inner, self._reader, whole=whole)))
        if whole and isinstance(calls, bytes) and not self._calls:
            self._no_calls = Raw(compact(calls))
        return deltas

    def _flush(self) -> list[Delta]:
        reasoning = self._halves[self._reasoning].flush() if self._reasoning else ""
        text = self._halves["content"].flush()
        return [*([ReasoningDelta(reasoning)] if reasoning else []), *([TextDelta(text)] if text else [])]

    def finish(self) -> Completion:
        """The whole answer, when no more comes.

        Raises
        ------
        StreamCut
            It is not final: neither a ``finish_reason`` nor ``[DONE]`` came, or there was no choice at all.
        """
        if not self._answered:
            raise self._cut("it holds no choice")
        if not self.final:
            raise self._cut("it ended without a finish_reason")
        members = self._members
        name = self._reasoning or next((each for each in REASONING if each in members.values), REASONING[0])
        content, reasoning = members.pop_text("content"), members.pop_text(name)
        replaced = self._reader.replaced
        calls = self._no_calls
        extra: dict[str, Raw] = {}
        try:
            for other, values in members.values.items():
                data, count = join(other, values)
                extra[other] = Raw(data)
                replaced += count
            if self._calls:
                calls, count = self._calls.render(self._first_call)
                replaced += count
        except ValueError as error:
            raise self._cut(str(error)) from error
        named: str | UnsetType = name if reasoning is not None and name != REASONING[0] else UNSET
        usage, timings = _mapping(self._usage), _mapping(self._timings)
        read = normalise(usage, timings)
        reported = self._timings if usage is None else self._usage
        return Completion(
            content=UNSET if content is None else content[0],
            reasoning_content=UNSET if reasoning is None else reasoning[0],
            tool_calls=calls,
            extra=Extra(reasoning_name=named, members=extra or UNSET) if extra or named is not UNSET else UNSET,
            replaced=replaced + (content[1] if content else 0) + (reasoning[1] if reasoning else 0),
            usage=read.usage,
            reported=UNSET if read.fault is None else Raw(compact(bytes(reported))),
            usage_fault=read.fault,
            finish_reason=self.finish_reason,
            response_id=self._facts.get("id"),
            model=self._facts.get("model"),
            build=self._facts.get("system_fingerprint"),
        )

    def finish_whole(self) -> Completion:
        """As `finish`, of an answer that came at once: without a ``finish_reason`` it is final where its message says something.

        Raises
        ------
        StreamCut
            It holds no message, or is not final.
        """
        if self._answered and not self._messaged:
            raise self._cut("it holds no message")
        texts = (value for name in ("content", *REASONING) for value in self._members.values.get(name, ()))
        self.done = bool(self._calls) or any(value not in ("", NULL, b"[]") for value in texts)
        return self.finish()

    def _cut(self, why: str) -> StreamCut:
        return StreamCut(self._url, why, self.received)


def _newer(old: Raw, new: Raw) -> Raw:
    return old if bytes(new) in (b"", NULL) else new


def _mapping(raw: Raw) -> dict[str, Any] | None:
    try:
        value = decode(bytes(raw)) if bytes(raw) else None
    except ValueError:  # such as a number beyond 64 bits and every float: no log could hold it, so nothing was reported
        return None
    return value if isinstance(value, dict) else None


def whole(data: bytes, url: str, *, first_call: int = 1) -> Completion:
    """Read an answer that was not streamed.

    Raises
    ------
    ServerRefused, ContextExceeded, StreamCut
        As in `Assembly`.

    Examples
    --------
    >>> whole(b'{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}', "http://host").content
    ''
    """
    assembly = Assembly(url, first_call=first_call)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StreamCut(url, f"byte {error.start} is not UTF-8", 0) from error
    assembly.feed(text)
    return assembly.finish_whole()
