"""Ollama. Facts from its source (llm/llama_server.go, 21 August 2026)."""

from __future__ import annotations

from typing import ClassVar

from loopkit.engines.rules.own_server import OwnServer

__all__ = ["Ollama"]


class Ollama(OwnServer):
    """Ollama: a server around llama.cpp with an API of its own.

    Ollama starts a llama-server and does not show its slots. Neither ``/api`` nor ``/v1`` reports cached tokens. In the version
    of 21 August 2026, ``prompt_eval_count`` is the length of the whole prompt. Older versions counted only the processed tokens,
    and omitted the field if all tokens were cached. The field therefore shows cache hits only if the version is known to be an
    older one.
    """

    name: ClassVar[str] = "ollama"
    owned_by: ClassVar[str] = "library"
    version_path: ClassVar[str] = "/api/version"
