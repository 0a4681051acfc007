"""An answer that has begun: its events, or its whole body, as they come off the connection.

Every fault on the way is one of loopkit's errors; text that is not UTF-8 is one of them. Knows nothing of what the events hold.
"""

from __future__ import annotations

import codecs
import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, cast

import httpx
from httpx_sse import EventSource, ServerSentEvent

from loopkit.errors import StreamCut
from loopkit.server.transport.refusals import refusal

if TYPE_CHECKING:
    from loopkit.server.transport.connection import Wire

__all__ = ["ERROR_BYTES", "FAULTS", "Answer"]

ERROR_BYTES = 1 << 16  # of an error's body, the rest is not read
FAULTS = (httpx.HTTPError, httpx.InvalidURL, httpx.CookieConflict, httpx.StreamError)


class _Utf8:
    """An event stream as strict UTF-8 text, whatever charset it names: httpx would replace what is not without a word."""

    headers: ClassVar = {"content-type": "text/event-stream"}

    def __init__(self, response: httpx.Response) -> None:
        self._response = response

    def iter_text(self) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        last = ""
        for data in self._response.iter_bytes():
            try:
                text = decoder.decode(data)
            except UnicodeDecodeError as error:
                yield error.object[: error.start].decode("utf-8")  # what came before counts
                raise
            if text:
                last = text
                yield text
        decoder.decode(b"", final=True)
        if last.endswith(("\n", "\r")):
            yield "\n\n"  # the empty line after the last event, which some servers leave out


class Answer:
    """An answer that has begun; must be closed.

    Attributes
    ----------
    attempts : int
        How often it was asked for.
    started : float
        When the attempt that succeeded was sent, on the monotonic clock.
    is_stream : bool
        Whether it comes as events, by its content type.
    """

    def __init__(self, wire: Wire, client: httpx.Client, response: httpx.Response, attempts: int, started: float) -> None:
        self._wire, self._client, self._response = wire, client, response
        self.attempts, self.started = attempts, started
        self._type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        self.is_stream = self._type == "text/event-stream"

    def close(self) -> None:
        """Hang up; a server that is still writing sees it."""
        with contextlib.closing(self._client):
            self._response.close()

    def events(self) -> Iterator[ServerSentEvent]:
        """The events, as they come.

        Raises
        ------
        StreamCut, ServerTimeout
            Whatever stops them before their end.
        """
        received = 0
        try:
            for event in EventSource(cast(httpx.Response, _Utf8(self._response))).iter_sse():
                received += 1
                yield event
        except FAULTS as error:
            raise self._wire.mapped(error, self._seconds(), received=received) from error
        except UnicodeDecodeError as error:
            raise StreamCut(self._wire.url, f"bytes that are not UTF-8: {error.reason}", received) from error

    def body(self) -> bytes:
        """The whole body, of an answer that does not come as events."""
        try:
            data = self._response.read()
        except FAULTS as error:
            raise self._wire.mapped(error, self._seconds(), received=0) from error
        if self._type == "text/html":
            then = "Check that this is the base URL of an OpenAI-style API"
            raise self._wire.hidden(refusal(self._wire.url, self._response.status_code, data[:ERROR_BYTES], then=then))
        return data

    def _seconds(self) -> float:
        return time.monotonic() - self.started
