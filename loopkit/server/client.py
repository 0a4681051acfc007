"""The server in the user's hand: what it is, and one question at a time.

`serve` starts the embedded one, `connect` finds any other that speaks OpenAI chat completions; both give a `Server`. It sends a
request as it was built and gives back the whole completion. Knows nothing of sessions, tools or logs.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace as replace_in

from loopkit import engines
from loopkit.contract.neutralise import Tags
from loopkit.contract.records import ServerFacts
from loopkit.contract.request import Request
from loopkit.engines.tokens import TokenView
from loopkit.errors import ServerError, ServerTimeout, StreamCut
from loopkit.reprs import Card, counted
from loopkit.server import llama_api
from loopkit.server.completion.assembly import Assembly, Completion, Delta, Progress, whole
from loopkit.server.detection import Detected, detect
from loopkit.server.prompt.control_tags import server_tags
from loopkit.server.prompt.token_view import token_view
from loopkit.server.transport.cancellation import HangUp
from loopkit.server.transport.connection import Wire
from loopkit.server.transport.response import Answer

if TYPE_CHECKING:
    from loopkit.server.doctor.checks import Doctor
    from loopkit.server.embedded.process import Child
    from loopkit.server.embedded.slot_pool import Handout

__all__ = ["Server", "connect", "serve"]


class Server:
    """A server that answers chat completions; made by `serve` and `connect`.

    Attributes
    ----------
    url : str
        Its base, without key, password and ``/v1``.
    engine, build, model : str or None
        What it is, where it says so.
    context_size : int or None
        Tokens that one conversation may hold.
    slot_count : int or None
        Sequences of a llama-server, each with its own KV state.
    embedded : bool
        Whether it runs in a child process of this one.
    unified : bool or None
        Whether its slots share one KV buffer; None where that is not known.
    host_cache_mib : int or None
        Memory for conversations that have lost their slot; None where that is not known.
    another : callable or None
        Starts one more embedded server, as this one was started, which holds nothing yet; None where this one is not embedded.
    wire : Wire
        For the rooms that ask the server more, such as `loopkit.server.llama_api`.
    """

    def __init__(self, wire: Wire, detected: Detected, child: Child | None = None) -> None:
        self.wire, self.url, self._child = wire, wire.url, child
        self.engine, self.build, self.model, self.context_size, self.slot_count = detected
        self.embedded = child is not None
        self.host_cache_mib: int | None = None
        self.unified: bool | None = False if child is not None else None
        self._handout: Handout | None = None
        self._lock, self._prompt_tokens, self._cached_tokens = threading.Lock(), 0, 0
        self._tags: Tags | None = None
        self.another: Callable[[], Server] | None = None

    def complete(
        self,
        request: Request,
        on_delta: Callable[[Delta], object] | None = None,
        *,
        first_call: int = 1,
        hang_up: HangUp | None = None,
    ) -> Completion:
        """Send a request and wait for the whole answer.

        Parameters
        ----------
        request : Request
            Its bytes are sent as they are.
        on_delta : callable, optional
            Takes every delta as it comes. What it raises closes the connection and comes out here.
        first_call : int
            The number that the answer's first tool call has in the session; a missing call id is made from it.
        hang_up : HangUp, optional
            Setting it, from any thread, cuts the connection; what comes out here is then the error of a cut connection, or the
            completion where that was whole already.

        Returns
        -------
        Completion
            Final; what is not is an error.

        Raises
        ------
        ServerUnreachable, ServerRefused, ContextExceeded, ServerTimeout, StreamCut
            Nothing of the answer is left; the same bytes may be sent again.
        """
        began = time.monotonic()
        with contextlib.closing(self.wire.send(request, hang_up)) as answer:
            try:
                completion = self._read(answer, on_delta, first_call)
            except ServerError as error:
                raise self.wire.hidden(error) from error.__cause__
        usage = completion.usage
        if usage.prompt_tokens is not None and usage.cached_tokens is not None:
            with self._lock:
                self._prompt_tokens += usage.prompt_tokens
                self._cached_tokens += usage.cached_tokens
        return replace(completion, attempts=answer.attempts, elapsed_ms=(time.monotonic() - began) * 1000)

    def _read(self, answer: Answer, on_delta: Callable[[Delta], object] | None, first_call: int) -> Completion:
        if not answer.is_stream:
            return whole(answer.body(), self.url, first_call=first_call)
        assembly = Assembly(self.url, first_call=first_call)
        first: float | None = None
        events = answer.events()
        while not assembly.done:
            try:
                event = next(events, None)
            except (StreamCut, ServerTimeout):
                if not assembly.final:
                    raise
                event = None  # the answer is whole; only the stream's own end did not come
            if event is None:
                break
            for delta in assembly.feed(event.data, event.event):
                if first is None and not isinstance(delta, Progress):
                    first = time.monotonic()
                if on_delta is not None:
                    on_delta(delta)
        completion = assembly.finish()
        waited = None if first is None else (first - answer.started) * 1000
        return replace(completion, usage=replace_in(completion.usage, ttft_ms=waited))

    def count_tokens(self, request: Request) -> int | None:
        """The server's own count of a request's prompt, without reading it; None where it has no way to say."""
        if not engines.find(self.engine).has_slots:
            return None
        try:
            return len(llama_api.tokenize(self.wire, llama_api.apply_template(self.wire, request.body)))
        except ServerError:
            return None

    def tokens(self, request: Request | bytes) -> TokenView | None:
        """The prompt of a request, or of a body, as this server renders and tokenises it; None where it has no way to say.

        Examples
        --------
        >>> with serve("tiny") as server:
        ...     view = server.tokens(b'{"messages":[{"role":"user","content":"Hi."}]}')
        >>> view, [run.label for run in view.parts]
        (TokenView(23 tokens, 3 parts, count not checked), ['template', 'messages[0].content', 'template'])
        """
        return token_view(self.wire, self.engine, request.body if isinstance(request, Request) else request)

    def default_options(self) -> dict[str, Any]:
        """The pinned members that a request body needs on this server.

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
        """What is logged of the server when an epoch begins."""
        return ServerFacts(engine=self.engine, build=self.build, model=self.model, context_size=self.context_size)

    def take_slot(self, slot: int | None = None) -> int | None:
        """Take the least recently used slot that no open session holds, or a given one; None where there is none.

        Only the embedded server gives slots out, to this process and to those forked from it: with llama-server's defaults
        pinning costs the whole cache at every turn.

        Examples
        --------
        >>> with serve("tiny", slots=2) as server:
        ...     [server.take_slot(), server.take_slot(), server.take_slot()]
        [0, 1, None]
        """
        return None if self._handout is None else self._handout.take(slot)

    def release_slot(self, slot: int | None) -> None:
        """Give a slot back; None, and one that this process does not hold, do nothing."""
        if self._handout is not None:
            self._handout.release(slot)

    def tags(self) -> Tags:
        """The control tags to neutralise for this server, asked once; the default ones where it does not answer.

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
        """A table of what this server offers and lacks for a warm cache; sends one tiny completion, twice.

        Examples
        --------
        >>> with serve("tiny-swa") as server:
        ...     print(server.doctor())  # doctest: +ELLIPSIS
        ok       cached counts      the same prompt twice: 0, then 53 of 58 tokens cached
        ...
        harmful  memory kind        sliding window: of 58 tokens just read, 5 had to be read again
        ...
        """
        from loopkit.server.doctor.checks import examine

        return examine(self)

    def props(self) -> dict[str, Any]:
        """A llama-server's properties; see `loopkit.server.llama_api`."""
        return llama_api.raw_props(self.wire)

    def slots(self) -> list[llama_api.SlotState]:
        """What each slot of a llama-server holds."""
        return llama_api.slots(self.wire)

    def metrics(self) -> dict[str, float]:
        """A llama-server's counters by name."""
        return llama_api.metrics(self.wire)

    def save_slot(self, slot: int, filename: str) -> int:
        """Write a slot into the server's slot directory; gives the number of tokens."""
        return llama_api.save_slot(self.wire, slot, filename)

    def restore_slot(self, slot: int, filename: str) -> int:
        """Read a slot back; gives the number of tokens."""
        return llama_api.restore_slot(self.wire, slot, filename)

    def erase_slot(self, slot: int) -> int:
        """Empty a slot; gives the number of tokens that it held."""
        return llama_api.erase_slot(self.wire, slot)

    @property
    def slot_dir(self) -> Path | None:
        """Where the embedded server saves slots; None for any other."""
        return None if self._child is None else self._child.slot_dir

    @property
    def api_key(self) -> str | None:
        """Key of the embedded server, for a client of another kind; None for any other, whose key you have."""
        return None if self._child is None else self._child.key

    def close(self) -> None:
        """Let go of the server; the embedded one ends. Again does nothing."""
        if self._child is not None:
            self._child.close()  # first: whatever else is interrupted, no process is left
        self.wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _card(self) -> Card:
        model = (self.model or "of unknown model").replace("\\", "/").rsplit("/", 1)[-1]
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


def connect(
    url: str,
    *,
    api_key: str | None = None,
    model: str | None = None,
    connect_timeout: float = 10.0,
    read_timeout: float = 300.0,
) -> Server:
    """Connect to a server that speaks OpenAI chat completions, and ask once what it is.

    Parameters
    ----------
    url : str
        Its base URL, with or without ``/v1``.
    api_key : str, optional
        Sent as a bearer token; in no repr, error or log.
    model : str, optional
        Needed where the server has several.
    connect_timeout, read_timeout : float
        Seconds until a connection stands, and that nothing may come for.

    Returns
    -------
    Server

    Raises
    ------
    ServerUnreachable
        Nothing listens there. A server that refuses the questions is taken as it is.

    Examples
    --------
    >>> connect("http://127.0.0.1:9")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    loopkit.errors.ServerUnreachable: http://127.0.0.1:9: no response after ... Check that the server is running at this address
    """
    wire = Wire(url, api_key=api_key, connect_timeout=connect_timeout, read_timeout=read_timeout)
    return Server(wire, detect(wire, model, connect_timeout))


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
    """Start llama.cpp's own server in a child process, reachable by this process alone.

    Parameters
    ----------
    model : str or path
        ``"smollm2"``, ``"tiny"`` (made on the spot: exact cache, meaningless words), or the path of a GGUF file.
    slots : int
        Conversations that can be held at a time, each with its own KV cache.
    context : int
        Tokens per slot.
    template : str, optional
        A chat template in place of the model's.
    cache_ram_mib : int
        Host memory for conversations that have lost their slot; 0 for none.
    slot_dir : path, optional
        Where slots are saved; by default a private directory, removed at the end.
    **parameters
        llama.cpp's own parameters.

    Returns
    -------
    Server
        Ends with `Server.close`, its ``with`` block, or this process.

    Examples
    --------
    >>> serve("tiny")  # doctest: +ELLIPSIS
    Server tiny (embedded): llama.cpp ..., context 2 slots × 4,096 tokens
    """
    from loopkit.server.embedded.models import resolve
    from loopkit.server.embedded.process import start_child
    from loopkit.server.embedded.slot_pool import Handout

    file = resolve(model)
    parameters |= {"slots": slots, "context": context, "template": template, "cache_ram_mib": cache_ram_mib}
    child = start_child(file, slot_dir=slot_dir, **parameters)
    try:
        wire = Wire(child.url, api_key=child.key, gone=child.gone)
        size = llama_api.props(wire).context_size  # llama.cpp rounds what was asked for
    except BaseException:
        child.close()
        raise
    server = Server(wire, Detected("llama.cpp", child.build, file.name, size, slots), child)
    server.host_cache_mib = cache_ram_mib
    server.another = lambda: serve(model, **parameters)
    if parameters.get("kv_unified"):  # idle slots are cleared then: a pinned session would lose its cache at every turn
        server.unified = True
    else:
        server._handout = Handout(slots)
    return server
