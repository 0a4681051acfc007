"""Inference engines and providers: one module each, with all that loopkit knows about it.

`find` returns an engine by its name. No other module compares an engine's name; it asks the engine instead. To add an engine,
write a module with a subclass of `Engine`, add it to `ENGINES`, and write a module of tests in ``tests/engines``. `rules` has the
rules that several engines share. `evidence` has what a diagnosis is made from.
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
"""An unknown engine: only bounds are known."""

_BY_NAME = {engine.name: engine for engine in ENGINES}


def __dir__() -> list[str]:
    return list(__all__)


def find(name: str | None) -> Engine:
    """Return an engine by its name.

    Parameters
    ----------
    name : str or None
        Name as in the ``engine`` column, such as ``"llama.cpp"``.

    Returns
    -------
    Engine
        `UNKNOWN` if there is no engine of that name.

    Examples
    --------
    >>> find("openai").minimum, find(None).exact
    (1024, False)
    """
    return _BY_NAME.get(name, UNKNOWN)


def find_by_owner(owner: object) -> Engine | None:
    """Return the engine that gives `owner` as ``owned_by`` in its list of models, or None.

    Parameters
    ----------
    owner : object
        Value of the member in the first model of the list. Anything but text gives None.

    Examples
    --------
    >>> find_by_owner("llamacpp").name
    'llama.cpp'
    """
    return next((engine for engine in ENGINES if engine.owned_by is not None and engine.owned_by == owner), None)


def find_by_headers(headers: Mapping[str, str]) -> Engine | None:
    """Return the engine that response headers name, or None.

    Parameters
    ----------
    headers : mapping of str to str
        Names in lower case.

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
    """Return the engine that writes such a response, or None.

    Parameters
    ----------
    response : mapping
        The members of the response, merged over its stream events.

    Examples
    --------
    >>> find_by_response({"system_fingerprint": "fp_1a2b"}).name
    'openai'
    """
    return next((engine for engine in ENGINES if engine.wrote_response(response)), None)


def find_by_log_name(name: object) -> Engine | None:
    """Return the engine that other tools' logs call `name`, or None. Case does not matter.

    Parameters
    ----------
    name : object
        Name of a provider or a system, as the log has it.

    Examples
    --------
    >>> find_by_log_name("Azure_OpenAI").name, find_by_log_name("acme") is None
    ('openai', True)
    """
    lower = str(name).lower()
    return next((engine for engine in ENGINES if lower in engine.log_names), None)


def verdict(word: str | None, ours: Diagnosis) -> Diagnosis:
    """Let a provider's own verdict on a cache miss win, and keep our diagnosis in the evidence.

    Parameters
    ----------
    word : str or None
        The provider's word; None or an unknown word changes nothing.
    ours : Diagnosis
        Our diagnosis.
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
