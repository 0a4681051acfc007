"""`Server`: send requests to a server, and ask it about its slots, counters, templates and tokens."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from loopkit import engines
from loopkit.contract.neutralise import Tags
from loopkit.contract.records import ServerFacts
from loopkit.contract.request import Request
from loopkit.deprecation import renamed_argument
from loopkit.engines.evidence.tokens import TokenView
from loopkit.errors import ServerError
from loopkit.reprs import Card, counted
from loopkit.server import llama_api
from loopkit.server.completion.assembly import Completion
from loopkit.server.completion.deltas import Delta
from loopkit.server.completion.reception import receive
from loopkit.server.detection import Detected
from loopkit.server.doctor.checks import Doctor, examine
from loopkit.server.prompt.control_tags import server_tags
from loopkit.server.prompt.token_view import token_view
from loopkit.server.transport.cancellation import Cancellation
from loopkit.server.transport.connection import Wire

if TYPE_CHECKING:
    from loopkit.server.embedded.process import Child
    from loopkit.server.embedded.slot_pool import SlotPool

__all__ = ["Server"]


class Server:
    """A server for chat completions, created by `serve` or `connect`.

    Use it as a context manager, or call `close`. The methods `props`, `slots`, `metrics` and those for single slots need a
    llama-server; other servers refuse them with `ServerRefused`.

    Attributes
    ----------
    url : str
        Base URL, without key, password and ``/v1``.
    engine, build, model : str or None
        Name of the engine, version of the engine, and name of the model. None if the server does not report it.
    context_size : int or None
        Largest number of tokens in one conversation: prompt and completion together.
    slot_count : int or None
        Number of slots of a llama-server. Each slot has its own KV cache.
    embedded : bool
        True if the server runs in a child process of this one.
    unified : bool or None
        True if all slots share one KV buffer, False if each slot has its own, None if unknown.
    host_cache_mib : int or None
        MiB of host memory that keep the KV cache of conversations without a slot; None if unknown.
    another : callable or None
        Starts and returns an embedded `Server` with the same settings and an empty cache. None if this server is not embedded.
    wire : Wire
        HTTP client of this server. Pass it to the functions of `loopkit.server.llama_api`.

    Examples
    --------
    >>> import loopkit
    >>> with loopkit.serve("tiny") as server:
    ...     server.model, server.context_size, server.slot_count
    ('tiny', 4096, 2)
    """

    def __init__(
        self,
        wire: Wire,
        detected: Detected,
        child: Child | None = None,
        *,
        slot_pool: SlotPool | None = None,
        unified: bool | None = None,
        host_cache_mib: int | None = None,
        another: Callable[[], Server] | None = None,
    ) -> None:
        self.wire, self.url, self._child, self._slot_pool = wire, wire.url, child, slot_pool
        self.engine, self.build, self.model, self.context_size, self.slot_count = detected
        self.embedded, self.unified = child is not None, unified
        self.host_cache_mib, self.another = host_cache_mib, another
        self._lock, self._prompt_tokens, self._cached_tokens = threading.Lock(), 0, 0
        self._tags: Tags | None = None

    @renamed_argument("hang_up", "cancellation")
    def complete(
        self,
        request: Request,
        on_delta: Callable[[Delta], object] | None = None,
        *,
        first_call: int = 1,
        cancellation: Cancellation | None = None,
    ) -> Completion:
        """Send a request and return the complete response.

        Parameters
        ----------
        request : Request
            The request. The bytes of its body are sent unchanged.
        on_delta : callable, optional
            Called with each delta as it arrives. If it raises an exception, the connection is closed and `complete` raises it.
        first_call : int
            Number of this response's first tool call, counted over the session. It is used to generate missing call ids.
        cancellation : Cancellation, optional
            Call its `set` in another thread to cancel the request. `complete` then raises a `ServerError`, as after a broken
            connection, unless the response is already complete.

        Returns
        -------
        Completion
            The message, its usage and its finish reason.

        Raises
        ------
        ServerUnreachable, ServerRefused, ContextExceeded, ServerTimeout, StreamCut
            There is no complete response; a partial one is discarded. The same request may be sent again.
        """
        began = time.monotonic()
        with contextlib.closing(self.wire.send(request, cancellation)) as response:
            try:
                completion = receive(response, self.url, on_delta, first_call=first_call)
            except ServerError as error:
                raise self.wire.hidden(error) from error.__cause__
        usage = completion.usage
        if usage.prompt_tokens is not None and usage.cached_tokens is not None:
            with self._lock:
                self._prompt_tokens += usage.prompt_tokens
                self._cached_tokens += usage.cached_tokens
        return replace(completion, attempts=response.attempts, elapsed_ms=(time.monotonic() - began) * 1000)

    def count_tokens(self, request: Request) -> int | None:
        """Count the tokens of a request's prompt with the server's own template and tokenizer.

        Parameters
        ----------
        request : Request
            The request. It is only rendered and tokenised; the model does not process it.

        Returns
        -------
        int or None
            Number of prompt tokens. None if the server is not a llama-server, or if its endpoints for this fail.
        """
        if not engines.find(self.engine).has_slots:
            return None
        try:
            return len(llama_api.tokenize(self.wire, llama_api.apply_template(self.wire, request.body)))
        except ServerError:
            return None

    def tokens(self, request: Request | bytes) -> TokenView | None:
        """Return the prompt of a request as this server renders and tokenises it.

        Parameters
        ----------
        request : Request or bytes
            A request, or the body of one.

        Returns
        -------
        TokenView or None
            The prompt's tokens. None if the server has no endpoint that returns them.

        Raises
        ------
        ServerError
            The server is unreachable or too slow, or it refuses the body.

        Examples
        --------
        >>> import loopkit
        >>> with loopkit.serve("tiny") as server:
        ...     view = server.tokens(b'{"messages":[{"role":"user","content":"Hi."}]}')
        >>> view, [run.label for run in view.parts]
        (TokenView(23 tokens, 3 parts, count not checked), ['template', 'messages[0].content', 'template'])
        """
        return token_view(self.wire, self.engine, request.body if isinstance(request, Request) else request)

    def default_options(self) -> dict[str, Any]:
        """Return the members of a request body that loopkit sends to this server besides the messages, with their values.

        Examples
        --------
        >>> import loopkit
        >>> with loopkit.serve("tiny") as server:
        ...     list(server.default_options())
        ['model', 'stream', 'stream_options', 'cache_prompt', 'return_progress']
        """
        options: dict[str, Any] = {} if self.model is None else {"model": self.model}
        options |= {"stream": True, "stream_options": {"include_usage": True}}
        return options | dict(engines.find(self.engine).body_members)

    def facts(self) -> ServerFacts:
        """Return the server's engine, version, model and context size, as they are recorded when an epoch begins."""
        return ServerFacts(engine=self.engine, build=self.build, model=self.model, context_size=self.context_size)

    def take_slot(self, slot: int | None = None) -> int | None:
        """Reserve a slot of an embedded server for a session, among all sessions of this process and its forks.

        Slots of other llama-servers cannot be reserved: with their default settings, two sessions that are pinned to slots
        and alternate lose their whole cache at every turn.

        Parameters
        ----------
        slot : int, optional
            Number of the slot. By default the least recently used free slot.

        Returns
        -------
        int or None
            Number of the slot, to release with `release_slot`. None if it is in use, if no slot is free, or on other servers.

        Examples
        --------
        >>> import loopkit
        >>> with loopkit.serve("tiny", slots=2) as server:
        ...     [server.take_slot(), server.take_slot(), server.take_slot()]
        [0, 1, None]
        """
        return None if self._slot_pool is None else self._slot_pool.take(slot)

    def release_slot(self, slot: int | None) -> None:
        """Release a slot that `take_slot` reserved.

        Parameters
        ----------
        slot : int or None
            Number of the slot. The call does nothing for None, or for a slot that this process did not reserve.
        """
        if self._slot_pool is not None:
            self._slot_pool.release(slot)

    def tags(self) -> Tags:
        """Return the control tags to neutralise in text for this server. They are read once; if that fails, they are the default.

        Examples
        --------
        >>> import loopkit
        >>> with loopkit.serve("tiny") as server:
        ...     server.tags()
        <Tags d6ebeb1439b5d8d9: 2 literals, 0 cuts>
        """
        if self._tags is None:
            self._tags = server_tags(self.wire)
        return self._tags

    def doctor(self) -> Doctor:
        """Check which of the server's properties and settings help or harm prompt caching.

        The same completion of one token is requested twice. All other requests only read.

        Raises
        ------
        ServerRefused
            The server refuses a completion because the API key is missing or wrong.

        Examples
        --------
        >>> import loopkit
        >>> with loopkit.serve("tiny-swa") as server:
        ...     print(server.doctor())  # doctest: +ELLIPSIS
        ok       cached counts      the same prompt twice: 0, then 53 of 58 tokens cached
        ...
        harmful  memory kind        sliding window: of 58 tokens just processed, 5 had to be processed again
        ...
        """
        return examine(self)

    def props(self) -> dict[str, Any]:
        """Return all properties that a llama-server reports, such as ``chat_template``.

        Examples
        --------
        >>> import loopkit
        >>> with loopkit.serve("tiny") as server:
        ...     server.props()["total_slots"]
        2
        """
        return llama_api.raw_props(self.wire)

    def slots(self) -> list[llama_api.SlotState]:
        """Return the state of each slot of a llama-server.

        Examples
        --------
        >>> import loopkit
        >>> with loopkit.serve("tiny") as server:
        ...     [(slot.id, slot.busy, slot.context_size) for slot in server.slots()]
        [(0, False, 4096), (1, False, 4096)]
        """
        return llama_api.slots(self.wire)

    def metrics(self) -> dict[str, float]:
        """Return the counters of a llama-server by name. They are 0 when the server starts.

        Examples
        --------
        >>> import loopkit
        >>> with loopkit.serve("tiny") as server:
        ...     server.metrics()["prompt_tokens_total"]
        0.0
        """
        return llama_api.metrics(self.wire)

    def save_slot(self, slot: int, filename: str) -> int:
        """Write the KV cache of a slot to a file in the server's slot directory.

        Parameters
        ----------
        slot : int
            Number of the slot.
        filename : str
            Name of the file, without a directory.

        Returns
        -------
        int
            Number of tokens written.

        Raises
        ------
        InvalidConfig
            `filename` is not a plain file name.
        """
        return llama_api.save_slot(self.wire, slot, filename)

    def restore_slot(self, slot: int, filename: str) -> int:
        """Load the KV cache of a slot from a file that `save_slot` wrote.

        Parameters
        ----------
        slot, filename
            As for `save_slot`.

        Returns
        -------
        int
            Number of tokens loaded.
        """
        return llama_api.restore_slot(self.wire, slot, filename)

    def erase_slot(self, slot: int) -> int:
        """Erase the KV cache of a slot.

        Parameters
        ----------
        slot : int
            Number of the slot.

        Returns
        -------
        int
            Number of tokens erased.
        """
        return llama_api.erase_slot(self.wire, slot)

    @property
    def slot_dir(self) -> Path | None:
        """Directory in which the embedded server saves slots; None for any other server."""
        return None if self._child is None else self._child.slot_dir

    @property
    def api_key(self) -> str | None:
        """API key of the embedded server, to connect other clients to it; None for any other server."""
        return None if self._child is None else self._child.key

    def close(self) -> None:
        """Close the connection and stop the embedded server. Safe to call twice."""
        if self._child is not None:
            self._child.close()  # before the connection, so that an interrupt cannot leave the process running
        self.wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _card(self) -> Card:
        model = (self.model or "(unknown model)").replace("\\", "/").rsplit("/", 1)[-1]
        facts = [("engine", "unknown") if self.engine is None else (self.engine, self.build or "")]
        if self.context_size is not None:
            slots = "" if self.slot_count is None else f"{counted(self.slot_count, 'slot')} × "
            facts.append(("context", f"{slots}{self.context_size:,} tokens"))
        if self._prompt_tokens:
            facts.append(("cached", f"{self._cached_tokens:,} of {self._prompt_tokens:,}"))
        return Card(f"Server {model}" + (" (embedded)" if self.embedded else ""), facts)

    def __repr__(self) -> str:
        return self._card().text()

    def _repr_html_(self) -> str:
        return self._card().html()
