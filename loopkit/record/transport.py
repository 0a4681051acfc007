"""A recording transport for clients that use httpx or its successor httpx2, as the OpenAI and Anthropic SDKs do.

The transport records each request and passes it to another transport, which sends it. One object works for both libraries, with
and without asyncio, because the class of a request shows which library the client uses.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

from loopkit.record.recorder import Ending, ObservedExchange, Recorder
from loopkit.reprs import counted

if TYPE_CHECKING:  # type checkers see a subclass of both libraries' classes; at run time neither library is needed
    import httpx
    import httpx2

    class _AnyTransport(httpx.BaseTransport, httpx.AsyncBaseTransport, httpx2.BaseTransport, httpx2.AsyncBaseTransport):
        def handle_request(self, request: Any) -> Any: ...

        async def handle_async_request(self, request: Any) -> Any: ...

else:
    _AnyTransport = object

__all__ = ["InnerTransport", "Transport"]


class SyncTransport(Protocol):
    """A transport for synchronous clients, of httpx or httpx2."""

    def handle_request(self, request: Any, /) -> Any:
        """Send a request and return the response."""

    def close(self) -> None:
        """Close the connections."""


class AsyncTransport(Protocol):
    """A transport for asynchronous clients, of httpx or httpx2."""

    async def handle_async_request(self, request: Any, /) -> Any:
        """Send a request and return the response."""

    async def aclose(self) -> None:
        """Close the connections."""


InnerTransport: TypeAlias = SyncTransport | AsyncTransport
"A transport of httpx or httpx2."


class Transport(_AnyTransport):
    """A recording transport, returned by `loopkit.record.transport`."""

    def __init__(self, home: str | Path, inner: InnerTransport | None = None) -> None:
        self._recorder = Recorder(home)
        self._inner: Any = inner

    @property
    def path(self) -> Path:
        """Path of the recording. The file is created when the first line is written."""
        return self._recorder.path

    def handle_request(self, request: Any) -> Any:
        """Send a request of a synchronous client and record it. Return the response, whose body is recorded while it is read.

        Parameters
        ----------
        request : httpx.Request or httpx2.Request
            The client's request.
        """
        library = _library(request)
        inner = self._inner = self._inner or library.HTTPTransport()
        exchange = self._recorder.start(request.method, request.url.raw_path.decode("ascii"))
        if exchange is None:
            return inner.handle_request(request)
        exchange.body += request.read()
        try:
            response = inner.handle_request(request)
        except BaseException as error:
            exchange.end(_ending(error))
            raise
        return _observed(library, response, exchange)

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request of an asynchronous client and record it, as :meth:`handle_request` does.

        Parameters
        ----------
        request : httpx.Request or httpx2.Request
            The client's request.
        """
        library = _library(request)
        inner = self._inner = self._inner or library.AsyncHTTPTransport()
        exchange = self._recorder.start(request.method, request.url.raw_path.decode("ascii"))
        if exchange is None:
            return await inner.handle_async_request(request)
        exchange.body += await request.aread()
        try:
            response = await inner.handle_async_request(request)
        except BaseException as error:
            exchange.end(_ending(error))
            raise
        return _observed(library, response, exchange)

    def close(self) -> None:
        """Close the inner transport and wait until the recording is written."""
        if self._inner is not None:
            self._inner.close()
        self._recorder.close()

    async def aclose(self) -> None:
        """Close the inner transport and wait until the recording is written."""
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
    """Return the module of the library that made a request: httpx or httpx2."""
    return importlib.import_module(type(request).__module__.partition(".")[0])


def _ending(error: BaseException) -> Ending:
    """Return how an exchange ended, given its error: ``cut`` by the server, or ``hung_up`` by the client.

    Ctrl-C, cancelled tasks and closed generators raise errors that are not an `Exception`; they mean that the client hung up.
    """
    return "cut" if isinstance(error, Exception) else "hung_up"


def _wait(line: Future[None] | None) -> None:
    """Wait until a line is on disk, so that a response that the client has received completely is in the recording."""
    if line is not None:
        line.result()


def _observed(library: ModuleType, response: Any, exchange: ObservedExchange) -> Any:
    if response.is_closed:  # already read and decoded, for example by a cache or a mock
        exchange.start_response(response.status_code, {**response.headers, "content-encoding": "identity"}.items())
        exchange.feed(response.content)
        _wait(exchange.end("whole"))
    else:
        exchange.start_response(response.status_code, response.headers.items())
        response.stream = _stream_class(library)(response.stream, exchange)
    return response


@functools.cache
def _stream_class(library: ModuleType) -> type[_ObservedStream]:
    """Return a class of recorded streams for a library, whose clients accept only subclasses of its own stream classes."""
    return type("ObservedStream", (_ObservedStream, library.SyncByteStream, library.AsyncByteStream), {})


class _ObservedStream:
    """The body of a response, which is recorded while the client reads it."""

    def __init__(self, stream: Any, exchange: ObservedExchange) -> None:
        self._stream, self._exchange = stream, exchange

    def __iter__(self) -> Iterator[bytes]:
        try:
            for data in self._stream:
                self._exchange.feed(data)
                yield data
        except BaseException as error:
            _wait(self._exchange.end(_ending(error)))
            raise
        _wait(self._exchange.end("whole"))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for data in self._stream:
                self._exchange.feed(data)
                yield data
        except BaseException as error:
            self._exchange.end(_ending(error))
            raise
        self._exchange.end("whole")

    def close(self) -> None:
        self._stream.close()
        _wait(self._exchange.end("hung_up"))

    async def aclose(self) -> None:
        await self._stream.aclose()
        self._exchange.end("hung_up")
