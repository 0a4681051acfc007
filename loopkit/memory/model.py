"""A server as the model that folds memory: one request a prompt, in a slot of its own, so that the fold's cache stays warm.

A prompt holds text from outside, so its control tags are written as text before it is sent. Nothing of it is logged: what comes
of it stands in the memory. Knows nothing of nodes or of what a prompt says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from loopkit import engines
from loopkit.contract.baseline import Baseline
from loopkit.contract.neutralise import Tags, neutralise
from loopkit.contract.records import Usage, User
from loopkit.contract.request import RequestEncoder
from loopkit.errors import InvalidConfig
from loopkit.ids import Timestamp
from loopkit.memory.chunk import Count, estimate
from loopkit.server import llama_api
from loopkit.server.client import Server

__all__ = ["ServerModel", "counter"]

_MORE = (
    'Build with model=lk.memory.ServerModel(server, options={"max_tokens": 4096}), or more, or with a model that is briefer; '
    "steps that stand are not paid for again"
)
SYSTEM = "You keep the memory of an assistant. You write it plainly and briefly, and nothing else."


def counter(server: Server | None) -> Count:
    """How to count a text's tokens: the server's own tokenizer where there is one, else a careful guess."""
    if server is None or not engines.find(server.engine).has_slots:
        return estimate
    return lambda text: len(llama_api.tokenize(server.wire, text, parse_special=False))


class ServerModel:
    """A server that answers prompts one by one; a context manager, for it holds a slot where the server gives one out.

    Parameters
    ----------
    server : Server
        The session's, or any other.
    options : mapping, optional
        Members of the request body; ``temperature`` 0 and ``max_tokens`` 1024 where not given.

    Attributes
    ----------
    usage : list of Usage
        What the server said of each request: its cached tokens show that the fold's prefix stays warm.

    Examples
    --------
    >>> from loopkit.server.opening import serve
    >>> with serve("tiny") as server, ServerModel(server) as model:
    ...     model("Say something.")
    'Done.'
    """

    def __init__(self, server: Server, options: Mapping[str, Any] | None = None) -> None:
        self.server = server
        self.options = {**server.default_options(), "temperature": 0, "max_tokens": 1024, **(options or {})}
        self.tags = Tags.default() | server.tags()
        self.usage: list[Usage] = []
        self._slot: int | None = None

    def __call__(self, prompt: str) -> str:
        """Answer a prompt.

        Raises
        ------
        ServerError
            When there is no whole answer.
        InvalidConfig
            When the answer was cut off, at the token limit or since the context is full: a part of a memory is none.
        """
        encoder = RequestEncoder(Baseline(SYSTEM, ()), self.options, self._slot)
        completion = self.server.complete(encoder.request([], User(time=Timestamp.now(), content=neutralise(prompt, self.tags))))
        self.usage.append(completion.usage)
        if completion.finish_reason == "length":
            raise self._cut(completion.usage.completion_tokens)
        return completion.text

    def _cut(self, written: int | None) -> InvalidConfig:
        """A part of a memory is none."""
        limit, why = self.options["max_tokens"], "the model's answer was cut off"
        why += "" if written is None else f" after {written:,} tokens"
        if written is not None and isinstance(limit, int) and written < limit:
            return InvalidConfig("context", f"{why}: it is full", "Serve with a larger one, or ingest with a smaller budget")
        return InvalidConfig("max_tokens", why, _MORE)

    def __enter__(self) -> Self:
        self._slot = self.server.take_slot()
        return self

    def __exit__(self, *exception: object) -> None:
        self.server.release_slot(self._slot)
        self._slot = None
