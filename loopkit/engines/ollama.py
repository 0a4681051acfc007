"""Ollama, through its OpenAI-compatible API. It does not report cached tokens there (2026-11)."""

from __future__ import annotations

from typing import ClassVar

from loopkit.engines.rules.own_server import OwnServer

__all__ = ["Ollama"]


class Ollama(OwnServer):
    """Ollama: a server around llama.cpp with an API of its own."""

    name: ClassVar[str] = "ollama"
    owned_by: ClassVar[str] = "library"
    version_path: ClassVar[str] = "/api/version"
