"""Facts of a response of any API, read while it is forwarded: usage, finish reason, model, time of the first token.

The reader supports chat completions, plain completions, OpenAI's Responses, Anthropic's Messages and llama.cpp's own format,
streamed or not. If a response cannot be parsed, its facts are None. The generated text is not stored.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import httpx

from loopkit import engines
from loopkit.encoding import decode_lenient
from loopkit.engines.llama_cpp import LlamaCpp
from loopkit.server.completion.finish_reason import finish_reason

__all__ = ["ResponseReader"]

MAX_BYTES = 1 << 26
"Largest size in bytes of a response that is not streamed, or of one event of a stream. Longer ones give no facts."


class ResponseReader:
    """Collects facts about one response from the pieces of its body, as they arrive.

    Parameters
    ----------
    headers : mapping of str to str
        The response headers, with names in lower case.

    Attributes
    ----------
    first_token : float or None
        Time of the first token, from ``time.monotonic()``. None if the response was not streamed.
    is_complete, has_failed : bool
        True if the response reports its own end, and True if it contains an error.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._encoding = headers.get("content-encoding", "identity")
        self._is_streamed = headers.get("content-type", "").startswith("text/event-stream")
        self._is_readable_now = self._is_streamed and self._encoding == "identity"
        self._bytes = bytearray()
        self.usage: dict[str, Any] = {}
        self.timings: dict[str, Any] | None = None
        self.finish_reason: str | None = None
        self.response_id: str | None = None
        self.model: str | None = None
        found = engines.find_by_headers(headers)
        self.engine = None if found is None else found.name
        self.first_token: float | None = None
        self.is_complete = self.has_failed = False

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the body."""
        if len(self._bytes) <= MAX_BYTES:
            self._bytes += data
        if self._is_readable_now and b"\n" in data:
            *lines, rest = self._bytes.split(b"\n")
            self._bytes = rest
            self._read_events(lines)

    def close(self) -> None:
        """Read the bytes that are left when the body has ended."""
        data = bytes(self._bytes)
        if self._encoding != "identity":
            try:
                data = httpx.Response(200, headers={"content-encoding": self._encoding}, content=data).content
            except httpx.DecodingError:
                return
        first_token = self.first_token
        self._read_events(data.split(b"\n") if self._is_streamed else [b"data:" + data])
        self.first_token = first_token  # buffered events arrived at an unknown time

    def _read_events(self, lines: Iterable[bytes | bytearray]) -> None:
        for line in lines:
            if line.startswith(b"data:"):
                self._read_event(bytes(line[5:]))

    def _read_event(self, data: bytes) -> None:
        if data.strip() == b"[DONE]":
            self.is_complete = True
            return
        try:
            event = decode_lenient(data)
        except ValueError:
            return
        if isinstance(event, dict):
            if self.first_token is None and _has_token(event):
                self.first_token = time.monotonic()
            self.has_failed = self.has_failed or bool(event.get("error")) or event.get("type") in ("error", "response.failed")
            for part in (event, event.get("message"), event.get("response"), event.get("delta")):
                if isinstance(part, dict):
                    self._read_part(part)

    def _read_part(self, part: dict[str, Any]) -> None:
        for usage in (_first_choice(part).get("usage"), part.get("usage")):
            if isinstance(usage, dict):  # Anthropic reports input and output in two events; later counts win
                self.usage |= {name: value for name, value in usage.items() if value is not None}
        if isinstance(timings := part.get("timings"), dict):
            self.timings = timings
            self.engine = LlamaCpp.name
        self.finish_reason = finish_reason(part) or self.finish_reason
        self.is_complete = self.is_complete or self.finish_reason is not None
        if isinstance(part.get("id"), str):
            self.response_id = self.response_id or part["id"]
        if isinstance(part.get("model"), str):
            self.model = part["model"]


def _first_choice(part: dict[str, Any]) -> dict[str, Any]:
    choices = part.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


def _has_token(event: dict[str, Any]) -> bool:
    """Return True if an event contains generated text, and False if it contains only facts about the response."""
    kind = event.get("type")
    if isinstance(kind, str):
        return kind == "content_block_delta" or kind.endswith(".delta")
    choice = _first_choice(event)
    delta = choice.get("delta")
    members = [value for name, value in delta.items() if name != "role"] if isinstance(delta, dict) else []
    return any([event.get("content"), choice.get("text"), *members])
