"""Reception of a completion from the stream or the body of a response."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from msgspec.structs import replace as replace_in

from loopkit.errors import ServerTimeout, StreamCut
from loopkit.server.completion.assembly import Assembly, Completion, parse_completion
from loopkit.server.completion.deltas import Delta, Progress
from loopkit.server.transport.response import Response

__all__ = ["receive"]


def receive(response: Response, url: str, on_delta: Callable[[Delta], object] | None, *, first_call: int) -> Completion:
    """Read a response to its end and return the completion.

    Parameters
    ----------
    response : Response
        A response whose head has been received. It may be a stream or a JSON body.
    url : str
        The server's base URL, for error messages.
    on_delta : callable or None
        Called with each delta of a stream as it arrives.
    first_call : int
        Number of this completion's first tool call, counted over the session. It is used to generate missing call ids.

    Returns
    -------
    Completion
        The complete response. For a stream, ``usage.ttft_ms`` is the time from the start of the attempt to the first delta that
        is not `Progress`.

    Raises
    ------
    StreamCut, ServerTimeout, ServerRefused, ContextExceeded
        The response ended early or timed out, the server refused the request, or the prompt exceeds the context.
    """
    if not response.is_stream:
        return parse_completion(response.body(), url, first_call=first_call)
    assembly = Assembly(url, first_call=first_call)
    first: float | None = None
    events = response.events()
    while not assembly.done:
        try:
            event = next(events, None)
        except (StreamCut, ServerTimeout):
            if not assembly.final:
                raise
            event = None  # the completion has its finish reason, so it is complete although the stream broke off
        if event is None:
            break
        for delta in assembly.feed(event.data, event.event):
            if first is None and not isinstance(delta, Progress):
                first = time.monotonic()
            if on_delta is not None:
                on_delta(delta)
    completion = assembly.finish()
    response.finish()
    ttft_ms = None if first is None else (first - response.started) * 1000
    return replace(completion, usage=replace_in(completion.usage, ttft_ms=ttft_ms))
