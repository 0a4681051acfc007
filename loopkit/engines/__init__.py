"""Inference engines and providers: one module each, with all that loopkit knows about it.

`find` returns an engine by its name. Other modules read the engine's attributes and call its methods; they never compare names.
To add an engine, write a module with a subclass of `Engine`, add an instance to `ENGINES`, and write tests in ``tests/engines``.
The package `rules` contains the diagnosis rules that several engines share. The package `evidence` defines the input and the
result of a diagnosis.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from loopkit.engines.anthropic import Anthropic
from loopkit.engines.base import Engine, Kept, Retention
from loopkit.engines.deepseek import DeepSeek
from loopkit.engines.evidence.diagnosis import Diagnosis
from loopkit.engines.gemini import Gemini
from loopkit.engines.llama_cpp import LlamaCpp
from loopkit.engines.ollama import Ollama
from loopkit.engines.openai import OpenAI
from loopkit.engines.rules.own_server import OwnServer
from loopkit.engines.sglang import SGLang
from loopkit.engines.vllm import VLLM

__all__ = [
    "ENGINES",
    "UNKNOWN",
    "Diagnosis",
    "Engine",
    "Kept",
    "Retention",
    "find",
    "find_by_headers",
    "find_by_log_name",
    "find_by_owner",
    "find_by_response",
    "verdict",
]

ENGINES: Final[tuple[Engine, ...]] = (LlamaCpp(), VLLM(), SGLang(), Ollama(), Anthropic(), OpenAI(), DeepSeek(), Gemini())
"""Every known engine."""
UNKNOWN: Final[Engine] = OwnServer()
"""The engine that `find` returns for an unknown name. It gives a lower bound of the cached tokens, not an exact number."""

_BY_NAME = {engine.name: engine for engine in ENGINES}


def __dir__() -> list[str]:
    return list(__all__)


def find(name: str | None) -> Engine:
    """Return an engine by its name.

    Parameters
    ----------
    name : str or None
        Name as in the ``engine`` column of a frame, such as ``"llama.cpp"``.

    Returns
    -------
    Engine
        The engine with this name; `UNKNOWN` if there is none or the name is None.

    Examples
    --------
    >>> find("openai").minimum, find(None).exact
    (1024, False)
    """
    return _BY_NAME.get(name, UNKNOWN)


def find_by_owner(owner: object) -> Engine | None:
    """Return the engine whose ``/v1/models`` has `owner` as ``owned_by``, or None.

    Parameters
    ----------
    owner : object
        Value of ``owned_by`` in the first listed model. The result is None if it is not a str.

    Examples
    --------
    >>> find_by_owner("llamacpp").name
    'llama.cpp'
    """
    return next((engine for engine in ENGINES if engine.owned_by is not None and engine.owned_by == owner), None)


def find_by_headers(headers: Mapping[str, str]) -> Engine | None:
    """Return the engine that sent a response, recognised by its headers, or None.

    The ``Server`` header is compared first, then the header names that only one provider uses.

    Parameters
    ----------
    headers : mapping of str to str
        The response headers, with their names in lower case.

    Examples
    --------
    >>> find_by_headers({"openai-processing-ms": "12"}).name
    'openai'
    """
    server = headers.get("server", "")
    for engine in ENGINES:
        if engine.server_header is not None and server.startswith(engine.server_header):
            return engine
    for engine in ENGINES:
        if engine.header_prefix is not None and any(name.startswith(engine.header_prefix) for name in headers):
            return engine
    return None


def find_by_response(response: Mapping[str, Any]) -> Engine | None:
    """Return the engine that wrote a response, recognised by the members of the response, or None.

    Parameters
    ----------
    response : mapping
        The decoded response. For a streamed response, the members of all its events, merged.

    Examples
    --------
    >>> find_by_response({"system_fingerprint": "fp_1a2b"}).name
    'openai'
    """
    return next((engine for engine in ENGINES if engine.wrote_response(response)), None)


def find_by_log_name(name: object) -> Engine | None:
    """Return the engine that the logs of other tools call `name`, or None. Upper and lower case are equal.

    Parameters
    ----------
    name : object
        Name of the provider or system, as the log spells it.

    Examples
    --------
    >>> find_by_log_name("Azure_OpenAI").name, find_by_log_name("acme") is None
    ('openai', True)
    """
    lower = str(name).lower()
    return next((engine for engine in ENGINES if lower in engine.log_names), None)


def verdict(word: str | None, ours: Diagnosis) -> Diagnosis:
    """Return the provider's own reason for a cache miss as the diagnosis, if the provider gave one.

    If both name the same cause, the result is loopkit's diagnosis with the certainty ``confirmed``. Otherwise the provider's
    cause replaces loopkit's, which moves to ``evidence["ours"]``.

    Parameters
    ----------
    word : str or None
        The reason in the provider's response, such as ``"tools_changed"``. If it is None or unknown, `ours` is returned.
    ours : Diagnosis
        The diagnosis by loopkit's rules.
    """
    found = None if word is None else next((each.verdicts[word] for each in ENGINES if word in each.verdicts), None)
    if found is None:
        return ours
    cause, fixable_by = found
    evidence = {**ours.evidence, "provider_verdict": word}
    if cause == ours.cause:
        return ours._replace(certainty="confirmed", evidence=evidence)
    evidence["ours"] = {name: getattr(ours, name) for name in ("cause", "certainty", "fixable_by", "location")}
    return Diagnosis(cause, "confirmed", fixable_by, None, evidence)
