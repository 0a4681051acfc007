"""Detection of a server's engine, model and context size. `connect` runs it once."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from loopkit import engines
from loopkit.engines.llama_cpp import LlamaCpp
from loopkit.errors import InvalidConfig, ServerError, ServerRefused, ServerTimeout, ServerUnreachable
from loopkit.server import llama_api
from loopkit.server.transport.connection import Wire
from loopkit.server.transport.faults import is_connect_timeout
from loopkit.server.transport.refusals import KEY_REFUSED

__all__ = ["Detected", "detect"]

PATIENCE = 10.0  # seconds for each question


class Detected(NamedTuple):
    """Engine, version, model and sizes of a server. A member that the server does not report is None."""

    engine: str | None = None
    build: str | None = None
    model: str | None = None
    context_size: int | None = None
    """Largest number of tokens in one conversation."""
    slot_count: int | None = None


class _Version(msgspec.Struct):
    version: str | None = None


def detect(wire: Wire, model: str | None) -> Detected:
    """Ask a server for its engine, model and context size.

    Parameters
    ----------
    wire : Wire
        Connection to the server.
    model : str or None
        Name of the model to use. With None, the server must list at most one model, which is used.

    Returns
    -------
    Detected
        The facts that the server reports. All others are None.

    Raises
    ------
    ServerUnreachable, ServerTimeout
        No server accepts connections at the address.
    ServerRefused
        The server requires an API key and none was sent, or the server rejects the key.
    InvalidConfig
        The server lists several models and `model` is None, or the server's list does not contain `model`.
    """
    timeout = min(limit for limit in (wire.timeout.connect, wire.timeout.read, PATIENCE) if limit is not None)
    try:
        models = llama_api.models(wire, timeout=timeout)
    except ServerError as error:
        _raise_if_fatal(error, wire, timeout)
        models = []
    names = [entry.id for entry in models if entry.id]
    if model is None and len(names) > 1:
        raise InvalidConfig("model", f"the server has {len(names)} models: {_listed(names)}", "Pass one as model=")
    if model is not None and names and model not in names:
        raise InvalidConfig("model", f"the server does not list {model!a}. It lists {_listed(names)}", "Pass one of these")
    engine = next((found for entry in models if (found := engines.find_by_owner(entry.owned_by))), None)
    entry = next((each for each in models if model in (None, each.id)), llama_api.Model())
    model = model or next(iter(names), None)
    if engine is None or engine.has_slots:
        try:
            props = llama_api.props(wire, timeout=timeout)
        except ServerError as error:
            if engine is not None:
                _raise_if_key_refused(error, wire, timeout)
        else:
            if props.default_generation_settings is not None:
                return Detected(
                    engine=LlamaCpp.name,
                    build=props.build_info or None,
                    model=model or props.model_alias or None,
                    context_size=props.context_size or entry.max_model_len or None,
                    slot_count=props.total_slots or None,
                )
    build = None if engine is None or engine.version_path is None else _build(wire, engine.version_path, timeout)
    return Detected(None if engine is None else engine.name, build, model, entry.max_model_len or None)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


def _build(wire: Wire, path: str, timeout: float | None) -> str | None:
    try:
        return llama_api.ask(wire, path, _Version, timeout=timeout).version or None
    except ServerError:
        return None


def _raise_if_fatal(error: ServerError, wire: Wire, timeout: float | None) -> None:
    """Raise the error of the first request if it means that all later requests will fail, too."""
    if isinstance(error, ServerUnreachable) or (isinstance(error, ServerTimeout) and is_connect_timeout(error.__cause__)):
        raise error
    _raise_if_key_refused(error, wire, timeout)


def _raise_if_key_refused(error: ServerError, wire: Wire, timeout: float | None) -> None:
    """Raise `ServerRefused` if the server refuses completions because the API key is missing or wrong.

    `error` may come from an endpoint that only some keys may read, so a completion is requested as well. Its body is an empty
    object: servers check the key first and then reject the body, so nothing is generated.
    """
    if not isinstance(error, ServerRefused) or error.status not in KEY_REFUSED:
        return
    try:
        wire.ask(f"{wire.api}/chat/completions", b"{}", timeout=timeout)
    except ServerRefused as refused:
        if refused.status in KEY_REFUSED:
            raise
    except ServerError:
        return
