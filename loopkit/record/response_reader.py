"""What an answer says of itself, as its bytes pass by: usage, finish reason, model, the moment of its first token.

Reads what loopkit's own client never asks for, too: chat completions, plain completions, OpenAI's responses, Anthropic's messages
and llama.cpp's own form, streamed or whole. What cannot be read says nothing, for the answer is another's: it is passed on as it
is. Keeps no text of it. Knows nothing of sockets and files.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import httpx

from loopkit.encoding import decode_lenient

__all__ = ["ResponseReader"]

LARGEST = 1 << 26
"Bytes of an answer that comes whole, or of one event; of a longer one nothing is read."


class ResponseReader:
    """Takes the bytes of one answer's body, as they come off the wire.

    Parameters
    ----------
    headers : mapping of str to str
        Those of the answer, by names in lower case.

    Attributes
    ----------
    first : float or None
        When the first token came, on the monotonic clock; None of an answer that came whole.
    final, failed : bool
        Whether it said that it was complete; whether an error stood in it.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._encoding = headers.get("content-encoding", "identity")
        self._streamed = headers.get("content-type", "").startswith("text/event-stream")
        self._live = self._streamed and self._encoding == "identity"
        self._bytes = bytearray()
        self.usage: dict[str, Any] = {}
        self.timings: dict[str, Any] | None = None
        self.finish_reason: str | None = None
        self.response_id: str | None = None
        self.model: str | None = None
        self.engine = _engine(headers)
        self.first: float | None = None
        self.final = self.failed = False

    def take(self, data: bytes) -> None:
        """Take more of the body."""
        if len(self._bytes) <= LARGEST:
            self._bytes += data
        if self._live and b"\n" in data:
            *lines, rest = self._bytes.split(b"\n")
            self._bytes = rest
            self._events(lines)

    def end(self) -> None:
        """No more comes."""
        data = bytes(self._bytes)
        if self._encoding != "identity":
            try:
                data = httpx.Response(200, headers={"content-encoding": self._encoding}, content=data).content
            except httpx.DecodingError:
                return
        first = self.first
        self._events(data.split(b"\n") if self._streamed else [b"data:" + data])
        self.first = first  # of what was kept until now the time is not known

    def _events(self, lines: list[bytes] | list[bytearray]) -> None:
        for line in lines:
            if line.startswith(b"data:"):
                self._event(bytes(line[5:]))

    def _event(self, data: bytes) -> None:
        if data.strip() == b"[DONE]":
            self.final = True
            return
        try:
            event = decode_lenient(data)
        except ValueError:
            return
        if isinstance(event, dict):
            if self.first is None and _has_text(event):
                self.first = time.monotonic()
            self.failed = self.failed or bool(event.get("error")) or event.get("type") in ("error", "response.failed")
            for part in (event, event.get("message"), event.get("response"), event.get("delta")):
                if isinstance(part, dict):
                    self._read(part)

    def _read(self, part: dict[str, Any]) -> None:
        choices = part.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        for usage in (choice.get("usage"), part.get("usage")):
            if isinstance(usage, dict):  # Anthropic tells the two sides in two events; of a running count the last holds
                self.usage |= {name: value for name, value in usage.items() if value is not None}
        if isinstance(timings := part.get("timings"), dict):
            self.timings = timings
            self.engine = "llama.cpp"
        details = part.get("incomplete_details")
        over = part.get("object") == "response" and part.get("status") in ("completed", "incomplete")
        reasons = [choice.get("finish_reason"), part.get("stop_reason"), part.get("stop_type")]
        reasons += [details.get("reason") if isinstance(details, dict) else None, part.get("status") if over else None]
        self.finish_reason = next((reason for reason in reasons if reason and isinstance(reason, str)), self.finish_reason)
        self.final = self.final or self.finish_reason is not None
        if isinstance(part.get("id"), str):
            self.response_id = self.response_id or part["id"]
        if isinstance(part.get("model"), str):
            self.model = part["model"]


def _has_text(event: dict[str, Any]) -> bool:
    """Whether an event brings a token, and is not about the answer only."""
    kind = event.get("type")
    if isinstance(kind, str):
        return kind == "content_block_delta" or kind.endswith(".delta")
    choices = event.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    delta = choice.get("delta")
    said = [value for name, value in delta.items() if name != "role"] if isinstance(delta, dict) else []
    return any([event.get("content"), choice.get("text"), *said])


def _engine(headers: Mapping[str, str]) -> str | None:
    """The server's software, where its headers name it."""
    if headers.get("server", "").startswith("llama.cpp"):
        return "llama.cpp"
    return next((name for name in ("openai", "anthropic") if any(header.startswith(f"{name}-") for header in headers)), None)
