"""Errors of a server, read from its response: an exceeded context, or a refusal with its message.

Servers send an error object as the body of an HTTP error, in a response with status 200, or as an event of a stream. Servers
differ in the type and the message of an exceeded context, so either of them is enough to recognise it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from loopkit.encoding import decode_lenient, replace_surrogates
from loopkit.errors import ContextExceeded, ServerError, ServerRefused

__all__ = ["KEY_REFUSED", "refusal"]

LONGEST = 300  # characters; a longer message is cut

_TYPES = {"exceed_context_size_error", "context_length_exceeded", "context_window_exceeded"}
_NUMBER = r"(?P<{0}>\d[\d,]*)"
_SIZE, _PROMPT = _NUMBER.format("size"), _NUMBER.format("prompt")
_MESSAGES = [
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        rf"\({_PROMPT} tokens?\) exceeds the available context size(?: \({_SIZE} tokens?\))?",  # llama.cpp
        # OpenAI, vLLM
        rf"maximum context length (?:is|of) {_SIZE} tokens.*?(?:requested|resulted in|contains?)(?: at least)? {_PROMPT}",
        rf"\({_PROMPT} tokens?\) is longer than the model's context length \({_SIZE}",  # SGLang
        rf"prompt is too long: {_PROMPT} tokens? > {_SIZE}",  # Anthropic
        rf"token count \({_PROMPT}\) exceeds the maximum number of tokens allowed \({_SIZE}",  # Gemini
        rf"longer than the maximum model length of {_SIZE}",  # vLLM
        r"exceeds? (?:the )?(?:available |model'?s? |maximum )*context (?:size|length|window)",
        r"context (?:size|length|window) (?:has been |was |is )?exceeded|maximum context length|context overflow",
        r"greater than the context length|longer than the context length",  # LM Studio
    )
]
KEY_REFUSED = frozenset({401, 403})
_LATER = "The server is not ready. Try again later"
_THEN = {
    404: "Check that this is the base URL of an OpenAI-style API, and that the server has the model",
    429: "Too many requests, or the quota is used up. Try again later",
    502: _LATER,
    503: _LATER,
    504: _LATER,
}


def _error_in(value: Any) -> Any:
    """Return the error object or text in a decoded response or event; None if it has no error."""
    if not isinstance(value, Mapping):
        return None
    if value.get("error"):
        return value["error"]
    if value.get("object") == "error" or value.get("type") == "error":
        return value
    return None


def refusal(
    url: str, status: int, body: bytes | str, *, attempts: int = 1, then: str = "", has_key: bool | None = None
) -> ServerError:
    """Return the error to raise for a server's refusal.

    Parameters
    ----------
    url : str
        Base URL of the server, for the message.
    status : int
        HTTP status of the response. If it is 200 and the error object names another status, that one is used.
    body : bytes or str
        Body of the response, or data of the event. It need not be JSON.
    attempts : int
        Number of attempts so far.
    then : str
        What the user should do. If it is empty, the advice depends on the status.
    has_key : bool, optional
        True if a key or a password was sent; None if unknown.

    Returns
    -------
    ContextExceeded or ServerRefused
        The error to raise.

    Examples
    --------
    >>> body = '{"error":{"code":400,"type":"exceed_context_size_error","n_prompt_tokens":14429,"n_ctx":8192}}'
    >>> refusal("http://host", 200, body)
    ContextExceeded('http://host', 14429, 8192)
    >>> print(refusal("http://host", 401, "Invalid API Key", has_key=False))
    http://host: HTTP 401: Invalid API Key. The request had no key. Pass one as `api_key=`
    >>> print(refusal("http://host", 500, "<html>Bad thing</html>"))
    http://host: HTTP 500: <html>Bad thing</html>
    """
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    try:
        value = decode_lenient(text)
    except ValueError:
        value = None
    error = _error_in(value)
    if error is None:
        error = value if isinstance(value, Mapping) else text
    facts = error if isinstance(error, Mapping) else {}
    message = next((item for name in ("message", "detail", "error", "msg") if (item := facts.get(name))), error)
    if not isinstance(message, str):
        message = text
    exceeded = _context_exceeded(url, facts, message)
    if exceeded is not None:
        return exceeded
    code = facts.get("code")
    if status == 200 and type(code) is int and 400 <= code < 600:
        status = code
    if status in KEY_REFUSED:
        then = then or (
            "The request had no key. Pass one as `api_key=`" if has_key is False else "Check that `api_key=` is the right key"
        )
    return ServerRefused(url, status, _one_line(message) or "no message", then or _THEN.get(status, ""), attempts)


def _context_exceeded(url: str, facts: Mapping[str, Any], message: str) -> ContextExceeded | None:
    match = next((found for pattern in _MESSAGES if (found := pattern.search(message))), None)
    kinds = {kind for name in ("type", "code") if isinstance(kind := facts.get(name), str)}
    if match is None and not kinds & _TYPES:
        return None
    numbers = match.groupdict() if match else {}
    sizes = []
    for member, group in (("n_prompt_tokens", "prompt"), ("n_ctx", "size")):
        number, written = facts.get(member), numbers.get(group)
        sizes.append(number if type(number) is int else int(written.replace(",", "")) if written else None)
    return ContextExceeded(url, sizes[0], sizes[1])


def _one_line(text: str) -> str:
    line = " ".join(replace_surrogates(text)[0].split())
    line = "".join(char if char.isprintable() else "·" for char in line)
    return line if len(line) <= LONGEST else line[:LONGEST] + "…"
