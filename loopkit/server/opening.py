"""The functions that create a `Server`: `serve` starts an embedded server, `connect` uses any other."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec

import httpx

from loopkit.deprecation import warn_renamed
from loopkit.engines.llama_cpp import LlamaCpp
from loopkit.server import llama_api
from loopkit.server.client import Server
from loopkit.server.detection import Detected, detect
from loopkit.server.transport.connection import DEFAULT_TIMEOUT, TimeoutTypes, Wire

__all__ = ["connect", "serve"]

P = ParamSpec("P")


def _one_timeout(function: Callable[P, Server]) -> Callable[P, Server]:
    """Return a wrapper of `connect` that converts the old arguments `connect_timeout` and `read_timeout` to `timeout`."""

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
    """Connect to a server that implements OpenAI chat completions, and detect its engine, model and context size.

    Parameters
    ----------
    url : str
        Base URL, with or without ``/v1``.
    api_key : str, optional
        API key, sent as a bearer token. It is kept out of reprs, errors and logs.
    model : str, optional
        Name of the model. Required if the server has several models.
    headers : mapping of str to str, optional
        HTTP headers to send with each request.
    timeout : float, httpx.Timeout or None
        Time-outs as in httpx, in seconds. The default is 10 s to connect and 300 s without data.
    transport : httpx.BaseTransport, optional
        Transport that sends the requests, as in httpx. `Server.close` closes it.

    Returns
    -------
    Server
        The connected server. Attributes that the server does not report are None.

    Raises
    ------
    ServerUnreachable
        No server accepts connections at the address.
    ServerRefused
        The server requires an API key and none was sent, or the server rejects the key.
    InvalidConfig
        An argument has an invalid value, or the server has several models and `model` is None.

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
    template: str | os.PathLike[str] | None = None,
    cache_ram_mib: int = 256,
    slot_dir: Path | None = None,
    **parameters: Any,
) -> Server:
    """Start an embedded server: llama.cpp's own server in a child process, with a random API key that only this process has.

    Parameters
    ----------
    model : str or path
        ``"smollm2"``, ``"tiny"``, or the path of a GGUF file. ``"tiny"`` is a generated model: its cache counts are exact, but
        its answers are meaningless.
    slots : int
        Number of conversations that keep their cache at the same time.
    context : int
        Tokens per slot. If the model was trained on fewer, each slot has fewer, and a warning reports it.
    template : str or path, optional
        Chat template to use instead of the model's: its text, or the path of a file. A str without a brace is a path.
    cache_ram_mib : int
        MiB of host memory that keep the KV cache of conversations without a slot; 0 turns this off.
    slot_dir : path, optional
        Directory for saved slots. By default a private directory, which is removed when the server stops.
    **parameters
        Parameters of llama.cpp, named as in ``xllamacpp.CommonParams``, such as ``kv_unified`` or ``swa_full``.

    Returns
    -------
    Server
        The running server. It stops with `Server.close`, at the end of its ``with`` block, or when this process ends.

    Raises
    ------
    InvalidConfig
        An argument has an invalid value or an unknown name. For an unknown name, the message lists the nearest known ones.
    ServerNotStarted
        The extra ``local`` is not installed, or the server's process ended or hung before it accepted connections.
    ModelUnavailable
        The model file is missing and cannot be downloaded.

    Examples
    --------
    >>> serve("tiny")  # doctest: +ELLIPSIS
    Server tiny (embedded): llama.cpp ..., context 2 slots × 4,096 tokens
    """
    from loopkit.server.embedded.models import resolve
    from loopkit.server.embedded.process import read_template, start_child, warn_of_shorter_context
    from loopkit.server.embedded.slot_pool import SlotPool

    file = resolve(model)
    template = None if template is None else read_template(template)
    settings = {**parameters, "slots": slots, "context": context, "template": template, "cache_ram_mib": cache_ram_mib}
    child = start_child(file, slot_dir=slot_dir, **settings)
    try:
        wire = Wire(child.url, api_key=child.key, ended=child.gone)
        context_size = llama_api.props(wire).context_size  # llama.cpp rounds the requested size up
    except BaseException:
        child.close()
        raise
    if warn_of_shorter_context(file.name, asked=context, actual=context_size):
        settings["context"] = context_size  # so that `Server.another` does not warn again
    unified = bool(parameters.get("kv_unified"))
    return Server(
        wire,
        Detected(LlamaCpp.name, child.build, file.name, context_size, slots),
        child,
        # If the slots share one KV buffer, llama.cpp clears idle slots. A session with a reserved slot would then lose its cache.
        slot_pool=None if unified else SlotPool(slots),
        unified=unified,
        host_cache_mib=cache_ram_mib,
        another=lambda: serve(model, **settings),
    )
