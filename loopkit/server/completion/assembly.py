"""Assembly of a completion from the events of a stream, or from a response that was not streamed.

`Assembly` takes the text of each event and returns deltas, and at the end a `Completion`. The completion's message is exactly
what the server returned: null, empty and missing values stay different, the member with the reasoning keeps its name, and
unknown members keep their bytes and order. A stream that ends without a finish reason and without ``[DONE]`` is incomplete and
raises `StreamCut`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from loopkit.contract.messages import Extra
from loopkit.contract.records import Assistant, Usage
from loopkit.encoding import compact, decode
from loopkit.errors import StreamCut
from loopkit.server.completion.deltas import Delta, Progress, ReasoningDelta, TextDelta, ToolCallDelta
from loopkit.server.completion.json_fragments import NULL, FragmentDecoder, Members, TextBuffer, join
from loopkit.server.completion.tool_calls import ToolCalls
from loopkit.server.completion.usage import normalise
from loopkit.server.transport.refusals import refusal

__all__ = ["Assembly", "Completion", "parse_completion"]

REASONING = ("reasoning_content", "reasoning")


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A complete response: the message as the server returned it, the usage, and other facts that the server reported.

    A member of the message that the server did not send is ``UNSET``, in contrast to None for null.
    """

    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    tool_calls: Raw | UnsetType = UNSET
    extra: Extra | UnsetType = UNSET
    replaced: int = 0
    "Number of lone surrogates in the message that were replaced by U+FFFD."
    usage: Usage = field(default_factory=Usage)
    reported: Raw | UnsetType = UNSET
    "The usage as the server reported it, if its counts are inconsistent; otherwise ``UNSET``."
    usage_fault: str | None = None
    "Text that names the inconsistencies of the reported usage; None if there are none."
    finish_reason: str | None = None
    response_id: str | None = None
    model: str | None = None
    build: str | None = None
    "The response's ``system_fingerprint``, which identifies the server's version."
    attempts: int = 1
    "Number of times that the request was sent, including the retries."
    elapsed_ms: float = 0.0
    "Milliseconds that `Server.complete` took, including the waits between attempts."

    @property
    def text(self) -> str:
        """Text of the response; empty if it has no text."""
        return self.content if isinstance(self.content, str) else ""

    def assistant(self, time: str) -> Assistant:
        """Return this message as a record for the log.

        Parameters
        ----------
        time : str
            Time when the completion ended, in RFC 3339 format.

        Returns
        -------
        Assistant
            The record.

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
    """Builder of one completion from the events of a stream.

    Call `feed` with each event, and then `finish`.

    Parameters
    ----------
    url : str
        The server's base URL, for error messages.
    first_call : int
        Number of this completion's first tool call, counted over the session. It is used to generate missing call ids.

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
        self._decoder, self._members, self._calls = FragmentDecoder(), Members(), ToolCalls()
        self._no_calls: Raw | UnsetType = UNSET
        self._text_buffers = {name: TextBuffer() for name in ("content", *REASONING)}
        self._reasoning: str | None = None
        self._usage = self._timings = Raw()
        self._facts: dict[str, str] = {}
        self._has_choice = self._has_message = False
        self.received = 0
        "Number of events received so far."
        self.finish_reason: str | None = None
        self.done = False
        "True once the server has sent ``[DONE]``."

    @property
    def final(self) -> bool:
        """True once the server has sent a ``finish_reason`` or ``[DONE]``."""
        return self.done or self.finish_reason is not None

    def feed(self, data: str, event: str = "") -> list[Delta]:
        """Add one event of the stream.

        Parameters
        ----------
        data : str
            Data of the event: JSON, or ``[DONE]``.
        event : str
            Type of the event; empty if it has none.

        Returns
        -------
        list of Delta
            The pieces of text, reasoning and tool calls that the event adds, and the progress that it reports.

        Raises
        ------
        ServerRefused, ContextExceeded
            The event contains an error of the server.
        StreamCut
            The event cannot be decoded as part of a chat completion.
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
            chunk, loose = self._decoder.decode(data, _Chunk)
            if chunk.error or chunk.object == "error":
                raise refusal(self._url, 200, data)
            return self._absorb(chunk, loose)
        except (ValueError, AttributeError, TypeError) as error:
            raise self._cut(f"{ascii(data)[:80]} is not part of a chat completion: {error}") from error

    def _absorb(self, chunk: _Chunk, loose: Any) -> list[Delta]:
        deltas: list[Delta] = []
        for name in ("id", "model", "system_fingerprint"):
            if isinstance(value := getattr(chunk, name), str) and value:
                self._facts[name] = value
        if (progress := chunk.prompt_progress) is not None:
            deltas.append(Progress(progress.total, progress.cache, progress.processed, progress.time_ms))
        for position, choice in enumerate(chunk.choices or ()):
            if choice.index:  # only the first of several choices is used
                continue
            self._has_choice = True
            key = "delta" if bytes(choice.delta) not in (b"", NULL) else "message"
            raw = choice.delta if key == "delta" else choice.message
            if bytes(raw) not in (b"", NULL):
                self._has_message = True
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
        fragment = self._decoder.open(raw, loose, deeper="tool_calls")
        fragment.pop("role", None)
        calls = fragment.pop("tool_calls", None)
        self._members.add(fragment)
        deltas: list[Delta] = []
        for name in REASONING:
            if isinstance(text := fragment.get(name), str) and text:
                self._reasoning = self._reasoning or name
                if name == self._reasoning and (shown := self._text_buffers[name].push(text)):
                    deltas.append(ReasoningDelta(shown))
        if isinstance(text := fragment.get("content"), str) and (shown := self._text_buffers["content"].push(text)):
            deltas.append(TextDelta(shown))
        if isinstance(calls, bytes) and calls != NULL:
            for position, item in enumerate(decode(calls, list[Raw])):
                inner = None if loose is None else loose["tool_calls"][position]
                deltas.append(ToolCallDelta(*self._calls.add(item, inner, self._decoder, whole=whole)))
        if whole and isinstance(calls, bytes) and not self._calls:
            self._no_calls = Raw(compact(calls))
        return deltas

    def _flush(self) -> list[Delta]:
        reasoning = self._text_buffers[self._reasoning].flush() if self._reasoning else ""
        text = self._text_buffers["content"].flush()
        return [*([ReasoningDelta(reasoning)] if reasoning else []), *([TextDelta(text)] if text else [])]

    def finish(self) -> Completion:
        """Return the completion. Call this after the last event.

        Returns
        -------
        Completion
            The complete response.

        Raises
        ------
        StreamCut
            The stream ended early, without a ``finish_reason`` or ``[DONE]``, or no event had an element in ``choices``.
        """
        if not self._has_choice:
            raise self._cut("it has no choice")
        if not self.final:
            raise self._cut("it ended without a finish_reason")
        members = self._members
        name = self._reasoning or next((each for each in REASONING if each in members.values), REASONING[0])
        content, reasoning = members.pop_text("content"), members.pop_text(name)
        replaced = self._decoder.replaced
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
        reasoning_name: str | UnsetType = name if reasoning is not None and name != REASONING[0] else UNSET
        usage, timings = _mapping(self._usage), _mapping(self._timings)
        normalised = normalise(usage, timings)
        reported = self._timings if usage is None else self._usage
        return Completion(
            content=UNSET if content is None else content[0],
            reasoning_content=UNSET if reasoning is None else reasoning[0],
            tool_calls=calls,
            extra=Extra(reasoning_name=reasoning_name, members=extra or UNSET) if extra or reasoning_name is not UNSET else UNSET,
            replaced=replaced + (content[1] if content else 0) + (reasoning[1] if reasoning else 0),
            usage=normalised.usage,
            reported=UNSET if normalised.fault is None else Raw(compact(bytes(reported))),
            usage_fault=normalised.fault,
            finish_reason=self.finish_reason,
            response_id=self._facts.get("id"),
            model=self._facts.get("model"),
            build=self._facts.get("system_fingerprint"),
        )

    def finish_unstreamed(self) -> Completion:
        """Return the completion of a response that was not streamed.

        A response without a ``finish_reason`` counts as complete if it has text, reasoning or tool calls.

        Returns
        -------
        Completion
            The complete response.

        Raises
        ------
        StreamCut
            The response has no message, or is incomplete.
        """
        if self._has_choice and not self._has_message:
            raise self._cut("it has no message")
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
    except ValueError:  # for example a number that exceeds both 64 bits and the range of a float, which a log cannot store
        return None
    return value if isinstance(value, dict) else None


def parse_completion(data: bytes, url: str, *, first_call: int = 1) -> Completion:
    """Parse a response that was not streamed.

    Parameters
    ----------
    data : bytes
        Body of the response.
    url : str
        The server's base URL, for error messages.
    first_call : int
        Number of this completion's first tool call, counted over the session. It is used to generate missing call ids.

    Returns
    -------
    Completion
        The complete response.

    Raises
    ------
    ServerRefused, ContextExceeded
        The response contains an error of the server.
    StreamCut
        The response is not a chat completion, or it is incomplete.

    Examples
    --------
    >>> parse_completion(b'{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}', "http://host").content
    ''
    """
    assembly = Assembly(url, first_call=first_call)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StreamCut(url, f"byte {error.start} is not UTF-8", 0) from error
    assembly.feed(text)
    return assembly.finish_unstreamed()
