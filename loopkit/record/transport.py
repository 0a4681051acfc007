"""A transport for clients that speak through httpx, or through its successor httpx2, as the OpenAI and Anthropic SDKs do.

It hands every request to another transport and looks on. Which of the two libraries the client uses is seen by its requests, so
one object serves both, with and without asyncio. Knows nothing of what is sent.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from loopkit.record.recorder import How, ObservedExchange, Recorder
from loopkit.reprs import counted

__all__ = ["Transport"]


class Transport:
    """Records what passes through it; made by `loopkit.record.transport`."""

    def __init__(self, home: str | Path, inner: Any = None) -> None:
        self._recorder, self._inner = Recorder(home), inner

    @property
    def path(self) -> Path:
        """The recording; it is made with its first line."""
        return self._recorder.path

    def handle_request(self, request: Any) -> Any:
        """Send a request of a client, as every transport does."""
        library = _library(request)
        inner = self._inner = self._inner or library.HTTPTransport()
        exchange = self._recorder.begin(request.method, request.url.raw_path.decode("ascii"))
        if exchange is None:
            return inner.handle_request(request)
        exchange.body += request.read()
        try:
            response = inner.handle_request(request)
        except BaseException as error:
            exchange.end(_how(error))
            raise
        return _watched(library, response, exchange)

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request of an asynchronous client."""
        library = _library(request)
        inner = self._inner = self._inner or library.AsyncHTTPTransport()
        exchange = self._recorder.begin(request.method, request.url.raw_path.decode("ascii"))
        if exchange is None:
            return await inner.handle_async_request(request)
        exchange.body += await request.aread()
        try:
            response = await inner.handle_async_request(request)
        except BaseException as error:
            exchange.end(_how(error))
            raise
        return _watched(library, response, exchange)

    def close(self) -> None:
        """Close the transport inside, and wait until all is written."""
        if self._inner is not None:
            self._inner.close()
        self._recorder.close()

    async def aclose(self) -> None:
        """Close the transport inside, and wait until all is written."""
        if self._inner is not None:
            await self._inner.aclose()
        self._recorder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Transport: {counted(self._recorder.recorded, 'request')} recorded>"


def _library(request: Any) -> ModuleType:
    """The library that a request is of."""
    return importlib.import_module(type(request).__module__.partition(".")[0])


def _how(error: BaseException) -> How:
    """Who broke off: an exception comes from the server, and Ctrl-C, a task's end or a generator's from the client."""
    return "cut" if isinstance(error, Exception) else "hung_up"


def _wait(written: Future[None] | None) -> None:
    """Wait for a line: whoever has read an answer finds it in the recording."""
    if written is not None:
        written.result()


def _watched(library: ModuleType, response: Any, exchange: ObservedExchange) -> Any:
    if response.is_closed:  # it was read and decoded already, by a cache or a mock
        exchange.head(response.status_code, {**response.headers, "content-encoding": "identity"}.items())
        exchange.data(response.content)
        _wait(exchange.end("whole"))
    else:
        exchange.head(response.status_code, response.headers.items())
        response.stream = _kind(library)(response.stream, exchange)
    return response


@functools.cache
def _kind(library: ModuleType) -> type[_Stream]:
    """The class of a body that is looked at: its client asks for one of the library's own."""
    return type("Watched", (_Stream, library.SyncByteStream, library.AsyncByteStream), {})


class _Stream:
    """The body of an answer, looked at as it is read."""

    def __init__(self, stream: Any, exchange: ObservedExchange) -> None:
        self._stream, self._exchange = stream, exchange

    def __iter__(self) -> Iterator[bytes]:
        try:
            for data in self._stream:
                self._exchange.data(data)
                yield data
        except BaseException as error:
            _wait(self._exchange.end(_how(error)))
            raise
        _wait(self._exchange.end("whole"))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for data in self._stream:
                self._exchange.data(data)
                yield data
        except BaseException as error:
            self._exchange.end(_how(error))
            raise
        self._exchange.end("whole")

    def close(self) -> None:
        self._stream.close()
        _wait(self._exchange.end("hung_up"))

    async def aclose(self) -> None:
        await self._stream.aclose()
        self._exchange.end("hung_up")
