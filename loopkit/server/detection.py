"""What is there: the few questions that tell engine, models and context size.

Asked once, when a person connects. A question that is refused or not known is no error: what it would have told stays None. Only
a server that cannot be reached is one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from loopkit.encoding import decode
from loopkit.errors import InvalidConfig, ServerError, ServerTimeout, ServerUnreachable
from loopkit.server.transport.connection import Wire

__all__ = ["Found", "probe"]

_ENGINES = {"llamacpp": "llama.cpp", "vllm": "vllm", "sglang": "sglang", "library": "ollama"}  # by `owned_by` in /v1/models
_VERSIONS = {"vllm": "/version", "sglang": "/server_info", "ollama": "/api/version"}


class Found(NamedTuple):
    """What a server says of itself; None where it does not."""

    engine: str | None = None
    build: str | None = None
    model: str | None = None
    context_size: int | None = None
    "Tokens that one conversation may hold."
    slot_count: int | None = None


def probe(wire: Wire, model: str | None, timeout: float) -> Found:
    """Ask a server what it is.

    Parameters
    ----------
    wire : Wire
        The server.
    model : str or None
        The one that was asked for; None takes the only one that there is.
    timeout : float
        Seconds for each question.

    Raises
    ------
    ServerUnreachable, ServerTimeout
        There is no server.
    InvalidConfig
        It has several models and none was asked for.
    """
    listed = _ask(wire, f"{wire.address.api}/models", timeout, first=True).get("data")
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    names = [name for entry in entries if (name := _text(entry.get("id")))]
    if model is None and len(names) > 1:
        some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        raise InvalidConfig("model", f"the server has {len(names)} models: {some}", "Pass one as model=")
    entry = next((each for each in entries if model in (None, each.get("id"))), {})
    engine = next((found for each in entries if (found := _ENGINES.get(str(each.get("owned_by"))))), None)
    if model is not None and names and model not in names:
        raise InvalidConfig("model", f"the server has no {model!a}; it has {', '.join(names[:5])}", "Pass one of its own")
    model = model or next(iter(names), None)
    size = _number(entry.get("max_model_len"))
    props = _ask(wire, f"{wire.url}/props", timeout) if engine in (None, "llama.cpp") else {}
    if isinstance(settings := props.get("default_generation_settings"), dict):
        return Found(
            engine="llama.cpp",
            build=_text(props.get("build_info")),
            model=model or _text(props.get("model_alias")),
            context_size=_number(settings.get("n_ctx")) or size,
            slot_count=_number(props.get("total_slots")),
        )
    version = _ask(wire, wire.url + _VERSIONS[engine], timeout).get("version") if engine in _VERSIONS else None
    return Found(engine=engine, build=_text(version), model=model, context_size=size)


def _ask(wire: Wire, url: str, timeout: float, *, first: bool = False) -> dict[str, Any]:
    try:
        value = decode(wire.ask(url, timeout=timeout))
    except (ServerError, ValueError) as error:
        absent = isinstance(error, ServerUnreachable) or (isinstance(error, ServerTimeout) and error.setting == "connect_timeout")
        if first and absent:
            raise
        return {}
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None
