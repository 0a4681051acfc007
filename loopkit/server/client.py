"""`Server`, and the functions that create one: `serve` starts an embedded server, `connect` uses any other."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Self

import httpx
from msgspec.structs import replace as replace_in

from loopkit import engines
from loopkit.contract.neutralise import Tags
from loopkit.contract.records import ServerFacts
from loopkit.contract.request import Request
from loopkit.deprecation import renamed_argument, warn_renamed
from loopkit.engines.llama_cpp import LlamaCpp
from loopkit.engines.tokens import TokenView
from loopkit.errors import ServerError, ServerTimeout, StreamCut
from loopkit.reprs import Card, counted
from loopkit.server import llama_api
from loopkit.server.completion.assembly import Assembly, Completion, Delta, Progress, whole
from loopkit.server.detection import Detected, detect
from loopkit.server.doctor.checks import Doctor, examine
from loopkit.server.llama_api import SlotState
from loopkit.server.prompt.control_tags import server_tags
from loopkit.server.prompt.token_view import token_view
from loopkit.server.transport.cancellation import Cancellation
from loopkit.server.transport.connection import DEFAULT_TIMEOUT, TimeoutTypes, Wire
from loopkit.server.transport.response import Response

if TYPE_CHECKING:
    from loopkit.server.embedded.process import Child
    from loopkit.server.embedded.slot_pool import Handout

__all__ = ["Server", "connect", "serve"]

P = ParamSpec("P")


class Server:
    """A server for chat completions, created by `serve` or `connect`.

    Use it as a context manager, or call `close`.

    Parameters
    ----------
    wire : Wire
        HTTP to the server.
    detected : Detected
        What the server reports of itself.
    child : Child, optional
        The process of an embedded server.
    slot_pool : Handout, optional
        Gives slots to sessions.
    unified : bool, optional
        True if the slots share one KV buffer.
    host_cache_mib : int, optional
        Size of the host cache.
    another : callable, optional
        Starts another server like this one.

    Attributes
    ----------
    url : str
        Base URL, without key, password and ``/v1``.
    engine, build, model : str or None
        Engine, its version and the model's name, as far as the server reports them.
    context_size : int or None
        Tokens that one conversation may hold.
    slot_count : int or None
        Number of slots of a llama-server. Each slot has its own KV cache.
    embedded : bool
        True if the server runs in a child process of this one.
    unified : bool or None
        True if the slots share one KV buffer; None if unknown.
    host_cache_mib : int or None
        MiB of host memory for conversations that lost their slot; None if unknown.
    another : callable or None
        Starts another embedded server with the same settings and an empty cache. None if this server is not embedded.
    wire : Wire
        HTTP to the server, for functions such as those of `loopkit.server.llama_api`.

    Examples
    --------
    >>> with serve("tiny") as server:
    ...     server.model, server.context_size, server.slot_count
    ('tiny', 4096, 2)
    """

    def __init__(
        self,
        wire: Wire,
        detected: Detected,
        child: Child | None = None,
        *,
        slot_pool: Handout | None = None,
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
        """Send a request and return the complete answer.

        Parameters
        ----------
        request : Request
            Its bytes are sent unchanged.
        on_delta : callable, optional
            Called with each delta as it arrives. An exception that it raises closes the connection and is passed on.
        first_call : int
            Number of the answer's first tool call in the session. Missing call ids are made from it.
        cancellation : Cancellation, optional
            Setting it from another thread ends the request with the error of a broken connection. If the answer was already
            complete, it is returned.

        Returns
        -------
        Completion
            A final answer, with its usage.

        Raises
        ------
        ServerUnreachable, ServerRefused, ContextExceeded, ServerTimeout, StreamCut
            Nothing of the answer is kept. The same bytes may be sent again.
        """
        began = time.monotonic()
        with contextlib.closing(self.wire.send(request, cancellation)) as response:
            try:
                completion = self._received(response, on_delta, first_call)
            except ServerError as error:
                raise self.wire.hidden(error) from error.__cause__
        usage = completion.usage
        if usage.prompt_tokens is not None and usage.cached_tokens is not None:
            with self._lock:
                self._prompt_tokens += usage.prompt_tokens
                self._cached_tokens += usage.cached_tokens
        return replace(completion, attempts=response.attempts, elapsed_ms=(time.monotonic() - began) * 1000)

    def _received(self, response: Response, on_delta: Callable[[Delta], object] | None, first_call: int) -> Completion:
        if not response.is_stream:
            return whole(response.body(), self.url, first_call=first_call)
        assembly = Assembly(self.url, first_call=first_call)
        first: float | None = None
        events = response.events()
        while not assembly.done:
            try:
                event = next(events, None)
            except (StreamCut, ServerTimeout):
                if not assembly.final:
                    raise
                event = None  # the answer is complete; only the end of the stream is missing
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

    def count_tokens(self, request: Request) -> int | None:
        """Count the tokens of a request's prompt with the server's own template and tokenizer.

        Parameters
        ----------
        request : Request
            It is not processed by the model.

        Returns
        -------
        int or None
            None if the server cannot count.
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
            None if the server does not show its prompts.

        Raises
        ------
        ServerError
            The server is unreachable or too slow, or it refuses the body.

        Examples
        --------
        >>> with serve("tiny") as server:
        ...     view = server.tokens(b'{"messages":[{"role":"user","content":"Hi."}]}')
        >>> view, [run.label for run in view.parts]
        (TokenView(23 tokens, 3 parts, count not checked), ['template', 'messages[0].content', 'template'])
        """
        return token_view(self.wire, self.engine, request.body if isinstance(request, Request) else request)

    def default_options(self) -> dict[str, Any]:
        """Return the members that a request body needs on this server.

        Examples
        --------
        >>> with serve("tiny") as server:
        ...     list(server.default_options())
        ['model', 'stream', 'stream_options', 'cache_prompt', 'return_progress']
        """
        options: dict[str, Any] = {} if self.model is None else {"model": self.model}
        options |= {"stream": True, "stream_options": {"include_usage": True}}
        return options | dict(engines.find(self.engine).body_members)

    def facts(self) -> ServerFacts:
        """Return what is logged of the server when an epoch begins."""
        return ServerFacts(engine=self.engine, build=self.build, model=self.model, context_size=self.context_size)

    def take_slot(self, slot: int | None = None) -> int | None:
        """Reserve a slot for a session.

        Only an embedded server gives slots out, to this process and its forks. With the defaults of other llama-servers, two
        pinned sessions that alternate lose their whole cache at every turn.

        Parameters
        ----------
        slot : int, optional
            Number of the slot. By default the least recently used free slot.

        Returns
        -------
        int or None
            None if no slot is free. Release it with `release_slot`.

        Examples
        --------
        >>> with serve("tiny", slots=2) as server:
        ...     [server.take_slot(), server.take_slot(), server.take_slot()]
        [0, 1, None]
        """
        return None if self._slot_pool is None else self._slot_pool.take(slot)

    def release_slot(self, slot: int | None) -> None:
        """Release a slot.

        Parameters
        ----------
        slot : int or None
            None, and a slot that this process did not take, are ignored.
        """
        if self._slot_pool is not None:
            self._slot_pool.release(slot)

    def tags(self) -> Tags:
        """Return the control tags to neutralise for this server. It is asked once; without an answer they are the default ones.

        Examples
        --------
        >>> with serve("tiny") as server:
        ...     server.tags()
        <Tags d6ebeb1439b5d8d9: 2 literals, 0 cuts>
        """
        if self._tags is None:
            self._tags = server_tags(self.wire)
        return self._tags

    def doctor(self) -> Doctor:
        """Check what this server offers and lacks for a warm cache.

        Sends a completion of one token twice. All other questions only read.

        Returns
        -------
        Doctor
            One row per check, with its state and what to do.

        Raises
        ------
        ServerRefused
            The server refuses a completion because its key is missing or wrong.

        Examples
        --------
        >>> with serve("tiny-swa") as server:
        ...     print(server.doctor())  # doctest: +ELLIPSIS
        ok       cached counts      the same prompt twice: 0, then 53 of 58 tokens cached
        ...
        harmful  memory kind        sliding window: of 58 tokens just processed, 5 had to be processed again
        ...
        """
        return examine(self)

    def props(self) -> dict[str, Any]:
        """Return all properties that a llama-server reports, such as ``chat_template``.

        Raises
        ------
        ServerRefused
            The server has no such endpoint.

        Examples
        --------
        >>> with serve("tiny") as server:
        ...     server.props()["total_slots"]
        2
        """
        return llama_api.raw_props(self.wire)

    def slots(self) -> list[SlotState]:
        """Return the state of each slot of a llama-server.

        Raises
        ------
        ServerRefused
            The server has no such endpoint.

        Examples
        --------
        >>> with serve("tiny") as server:
        ...     [(slot.id, slot.busy, slot.context_size) for slot in server.slots()]
        [(0, False, 4096), (1, False, 4096)]
        """
        return llama_api.slots(self.wire)

    def metrics(self) -> dict[str, float]:
        """Return the counters of a llama-server by name. They start at 0 with the server.

        Raises
        ------
        ServerRefused
            The server has no such endpoint.

        Examples
        --------
        >>> with serve("tiny") as server:
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
            Plain name of the file, without directory.

        Returns
        -------
        int
            Tokens written.

        Raises
        ------
        InvalidConfig
            `filename` is not a plain file name.
        ServerRefused
            The server has no slot directory.
        """
        return llama_api.save_slot(self.wire, slot, filename)

    def restore_slot(self, slot: int, filename: str) -> int:
        """Load the KV cache of a slot from a file that `save_slot` wrote.

        Parameters
        ----------
        slot : int
            Number of the slot.
        filename : str
            Plain name of the file, without directory.

        Returns
        -------
        int
            Tokens loaded.

        Raises
        ------
        InvalidConfig
            `filename` is not a plain file name.
        ServerRefused
            The server has no slot directory, or the file does not fit.
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
            Tokens erased.
        """
        return llama_api.erase_slot(self.wire, slot)

    @property
    def slot_dir(self) -> Path | None:
        """Directory in which the embedded server saves slots; None for any other server."""
        return None if self._child is None else self._child.slot_dir

    @property
    def api_key(self) -> str | None:
        """Key of the embedded server, for other clients; None for any other server."""
        return None if self._child is None else self._child.key

    def close(self) -> None:
        """Close the connection and stop the embedded server. Safe to call twice."""
        if self._child is not None:
            self._child.close()  # first: an interrupt must not leave the process running
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


def _one_timeout(function: Callable[P, Server]) -> Callable[P, Server]:
    """Accept `connect_timeout` and `read_timeout`, the old arguments of `connect`."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Server:
        old: dict[str, Any] = {name: kwargs.pop(name) for name in ("connect_timeout", "read_timeout") if name in kwargs}
        if old:
            warn_renamed("connect(connect_timeout=…, read_timeout=…)", "connect(timeout=httpx.Timeout(…, connect=…))")
            kwargs["timeout"] = httpx.Timeout(old.get("read_timeout", 300.0), connect=old.get("connect_timeout", 10.0))
        return function(*args, **kwargs)

    return call


@_one_timeout
def connect(
    url: str,
    *,
    api_key: str | None = None,
    model: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: TimeoutTypes = DEFAULT_TIMEOUT,
    transport: httpx.BaseTransport | None = None,
) -> Server:
    """Connect to a server that speaks OpenAI chat completions, and ask once what it is.

    Parameters
    ----------
    url : str
        Base URL, with or without ``/v1``.
    api_key : str, optional
        Sent as a bearer token. No repr, error or log contains it.
    model : str, optional
        Name of the model. Needed if the server has several.
    headers : mapping of str to str, optional
        Sent with each request.
    timeout : float, httpx.Timeout or None
        Time-outs as in httpx, in seconds. The default is 10 s to connect and 300 s without data.
    transport : httpx.BaseTransport, optional
        Sends the requests, as in httpx. It is closed with the server.

    Returns
    -------
    Server
        What the server does not report is None.

    Raises
    ------
    ServerUnreachable
        No server accepts connections at the address.
    ServerRefused
        The server needs a key and got none, or it rejects the key.
    InvalidConfig
        An argument cannot be used, or the server has several models and none was chosen.

    Examples
    --------
    >>> connect("http://127.0.0.1:9")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    loopkit.errors.ServerUnreachable: http://127.0.0.1:9: no response after ... Check that the server is running at this address
    """
    wire = Wire(url, api_key=api_key, headers=headers, timeout=timeout, transport=transport)
    try:
        return Server(wire, detect(wire, model))
    except BaseException:
        wire.close()
        raise


def serve(
    model: str | os.PathLike[str] = "smollm2",
    *,
    slots: int = 2,
    context: int = 4096,
    template: str | None = None,
    cache_ram_mib: int = 256,
    slot_dir: Path | None = None,
    **parameters: Any,
) -> Server:
    """Start llama.cpp's own server in a child process that only this process can reach.

    Parameters
    ----------
    model : str or path
        ``"smollm2"``, ``"tiny"`` (created on the spot: exact cache, meaningless words), or the path of a GGUF file.
    slots : int
        Number of conversations that keep their cache at the same time.
    context : int
        Tokens per slot.
    template : str, optional
        Chat template to use instead of the model's.
    cache_ram_mib : int
        MiB of host memory for conversations that lost their slot; 0 for none.
    slot_dir : path, optional
        Directory for saved slots. By default a private one that is removed at the end.
    **parameters
        Parameters of llama.cpp, by the names of ``xllamacpp.CommonParams``, such as ``kv_unified`` or ``swa_full``.

    Returns
    -------
    Server
        It stops with `Server.close`, at the end of its ``with`` block, or with this process.

    Raises
    ------
    InvalidConfig
        An argument cannot be used. An unknown parameter is answered with the nearest known names.
    ServerNotStarted
        The extra ``local`` is not installed, or the process ended before it accepted connections.
    ModelUnavailable
        The model file is missing and cannot be downloaded.

    Examples
    --------
    >>> serve("tiny")  # doctest: +ELLIPSIS
    Server tiny (embedded): llama.cpp ..., context 2 slots × 4,096 tokens
    """
    from loopkit.server.embedded.models import resolve
    from loopkit.server.embedded.process import start_child
    from loopkit.server.embedded.slot_pool import Handout

    file = resolve(model)
    settings = {**parameters, "slots": slots, "context": context, "template": template, "cache_ram_mib": cache_ram_mib}
    child = start_child(file, slot_dir=slot_dir, **settings)
    try:
        wire = Wire(child.url, api_key=child.key, gone=child.gone)
        context_size = llama_api.props(wire).context_size  # llama.cpp rounds it up
    except BaseException:
        child.close()
        raise
    unified = bool(parameters.get("kv_unified"))
    return Server(
        wire,
        Detected(LlamaCpp.name, child.build, file.name, context_size, slots),
        child,
        # With one KV buffer, idle slots are cleared: a pinned session would lose its cache at every turn.
        slot_pool=None if unified else Handout(slots),
        unified=unified,
        host_cache_mib=cache_ram_mib,
        another=lambda: serve(model, **settings),
    )
