"""Ollama. Facts from its source (llm/llama_server.go, 21 August 2026)."""

from __future__ import annotations

from typing import ClassVar

from loopkit.engines.rules.own_server import OwnServer

__all__ = ["Ollama"]


class Ollama(OwnServer):
    """Ollama: a server around llama.cpp with an API of its own.

    It starts a llama-server and does not show its slots. Neither ``/api`` nor ``/v1`` reports cached tokens. In this version
    ``prompt_eval_count`` is the whole prompt. Older runners counted only processed tokens, or left it out if all were cached.
    So it does not show cache hits unless the version is known.
    """

    name: ClassVar[str] = "ollama"
    owned_by: ClassVar[str] = "library"
    version_path: ClassVar[str] = "/api/version"
