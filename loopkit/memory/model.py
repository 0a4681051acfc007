"""A server as the model that builds memory: one request per prompt, in its own slot so that the prompt cache stays warm.

Prompts contain text from outside, so control tags in them are neutralised. The requests are not logged.
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
from loopkit.memory.ingest import Count, estimate_tokens
from loopkit.server import llama_api
from loopkit.server.client import Server

__all__ = ["ServerModel", "counter"]

_MORE = (
    'Build with model=lk.memory.ServerModel(server, options={"max_tokens": 4096}) or more, or with a more concise model. '
    "Finished steps are not repeated"
)
SYSTEM = "You keep the memory of an assistant. You write it plainly and briefly, and nothing else."


def counter(server: Server | None) -> Count:
    """Return a function from text to its number of tokens: exact on a llama-server, otherwise an estimate."""
    if server is None or not engines.find(server.engine).has_slots:
        return estimate_tokens
    return lambda text: len(llama_api.tokenize(server.wire, text, parse_special=False))


class ServerModel:
    """A callable that sends each prompt to a server and returns the text of the response.

    In a ``with`` block, all its requests use one reserved slot of the embedded server.

    Parameters
    ----------
    server : Server
        The server to send requests to.
    options : mapping, optional
        Further members of the request body. By default, ``temperature`` is 0 and ``max_tokens`` is 1024.

    Attributes
    ----------
    usage : list of Usage
        Token counts of each request so far. Their cached tokens show whether the prompt cache is reused.

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
        """Send a prompt to the server and return the text of its response.

        Raises
        ------
        ServerError
            If the request fails.
        InvalidConfig
            If the response was cut off by the token limit or a full context, because a partial memory must not be stored.
        """
        encoder = RequestEncoder(Baseline(SYSTEM, ()), self.options, self._slot)
        completion = self.server.complete(encoder.request([], User(time=Timestamp.now(), content=neutralise(prompt, self.tags))))
        self.usage.append(completion.usage)
        if completion.finish_reason == "length":
            raise self._cut_off(completion.usage.completion_tokens)
        return completion.text

    def _cut_off(self, written: int | None) -> InvalidConfig:
        """Return the error for a response that was cut off after `written` tokens (None if unknown)."""
        limit, why = self.options["max_tokens"], "the model's answer was cut off"
        why += "" if written is None else f" after {written:,} tokens"
        if written is not None and isinstance(limit, int) and written < limit:
            return InvalidConfig(
                "context", f"{why}: the context is full", "Serve with a larger context, or ingest with a smaller budget"
            )
        return InvalidConfig("max_tokens", why, _MORE)

    def __enter__(self) -> Self:
        self._slot = self.server.take_slot()
        return self

    def __exit__(self, *exception: object) -> None:
        self.server.release_slot(self._slot)
        self._slot = None
