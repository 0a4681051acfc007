"""A response that has begun: its events or its body, read to the end so that the connection can be kept."""

from __future__ import annotations

import codecs
import contextlib
import time
from collections.abc import Iterator
from typing import ClassVar, Protocol, cast

import httpx
from httpx_sse import EventSource, ServerSentEvent

from loopkit.errors import StreamCut
from loopkit.server.transport.faults import FAULTS, Faults

__all__ = ["Response"]

DRAIN = 0.05
"Longest wait, in seconds, for the end of a response after its last event."


class _Utf8:
    """An event stream that is decoded as UTF-8, whatever charset its headers declare.

    Invalid bytes raise `UnicodeDecodeError`; httpx would silently replace them.
    """

    headers: ClassVar = {"content-type": "text/event-stream"}

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks

    def iter_text(self) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        last = ""
        for data in self._chunks:
            try:
                text = decoder.decode(data)
            except UnicodeDecodeError as error:
                yield error.object[: error.start].decode("utf-8")  # the text before the invalid bytes may complete an event
                raise
            if text:
                last = text
                yield text
        decoder.decode(b"", final=True)
        if last.endswith(("\n", "\r")):
            yield "\n\n"  # add the empty line that ends an event, because some servers omit it after the last one


class Release(Protocol):
    def __call__(self, *, is_complete: bool) -> None: ...


class Response:
    """A response whose head has been received. Read it with `events` or `body`, and call `close` at the end.

    Parameters
    ----------
    response : httpx.Response
        The response, with a body that has not been read yet.
    faults : Faults
        Translator of errors to loopkit's.
    release : callable
        Function that `close` calls, with ``is_complete=True`` if the whole response was received.
    attempts : int
        Number of times that the request was sent.
    started : float
        Time when the successful attempt was sent, as returned by ``time.monotonic()``.

    Attributes
    ----------
    is_stream : bool
        True if the content type is ``text/event-stream``.
    """

    def __init__(self, response: httpx.Response, faults: Faults, release: Release, *, attempts: int, started: float) -> None:
        self._response, self._faults, self._release = response, faults, release
        self.attempts, self.started = attempts, started
        self._type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        self.is_stream = self._type == "text/event-stream"
        self._chunks = response.iter_bytes()
        self._is_complete = False

    def close(self) -> None:
        """Release the connection. If the response is not complete, the server sees that the client disconnected."""
        self._release(is_complete=self._is_complete)

    def events(self) -> Iterator[ServerSentEvent]:
        """Yield the events of a stream.

        Raises
        ------
        StreamCut, ServerTimeout
            The connection broke, no data arrived within the time-out, or the stream is not UTF-8.
        """
        received = 0
        try:
            for event in EventSource(cast(httpx.Response, _Utf8(self._chunks))).iter_sse():
                received += 1
                yield event
        except FAULTS as error:
            raise self._faults.translated(error, self._seconds(), received=received) from error
        except UnicodeDecodeError as error:
            raise StreamCut(self._faults.url, f"bytes that are not UTF-8: {error.reason}", received) from error
        self._is_complete = True

    def finish(self) -> None:
        """Read what follows the last event, so that the connection can be used again. Give up after `DRAIN` seconds."""
        stream = self._response.extensions.get("network_stream")
        if stream is None or self._is_complete:
            return
        read, end = stream.read, time.monotonic() + DRAIN
        # The time-out is replaced here, because httpcore reads its setting only once per response.
        stream.read = lambda size, timeout=None: read(size, timeout=DRAIN)
        try:
            with contextlib.suppress(*FAULTS):
                for _ in self._chunks:
                    if time.monotonic() > end:
                        return
                self._is_complete = True
        finally:
            del stream.read

    def body(self) -> bytes:
        """Return the whole body of a response that is not a stream."""
        try:
            data = b"".join(self._chunks)
        except FAULTS as error:
            raise self._faults.translated(error, self._seconds(), received=0) from error
        self._is_complete = True
        if self._type == "text/html":
            then = "Check that this is the base URL of an OpenAI-style API"
            raise self._faults.refused(self._response.status_code, data, then=then)
        return data

    def _seconds(self) -> float:
        return time.monotonic() - self.started
