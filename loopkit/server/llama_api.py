"""The endpoints of llama-server: properties, models, slots, counters, templates, tokens.

Each function sends one request and returns the decoded response, or raises a `ServerError`. Callers choose which errors to
tolerate.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from loopkit.encoding import encode
from loopkit.errors import InvalidConfig, ServerRefused

__all__ = [
    "Model",
    "Props",
    "SlotState",
    "TokenPiece",
    "apply_template",
    "ask",
    "erase_slot",
    "metrics",
    "models",
    "props",
    "raw_props",
    "restore_slot",
    "save_slot",
    "slots",
    "token_pieces",
    "tokenize",
]

PROPS, MODELS, SLOTS, METRICS = "/props", "/models", "/slots", "/metrics"
TEMPLATE, TOKENIZE = "/apply-template", "/tokenize"

_METRIC = re.compile(r"^(?:llamacpp:)?([a-zA-Z_:][\w:]*(?:\{.*\})?)[ \t]+(\S+)", re.MULTILINE)
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

T = TypeVar("T")


class Client(Protocol):
    """The members of a connection that the functions of this module use. `Wire` has them."""

    url: str
    """Base URL, without a final slash."""
    api: str
    """Base URL of the OpenAI-style endpoints."""

    def ask(self, url: str, body: bytes | None = None, *, timeout: float | None = None) -> bytes: ...


class _Generation(msgspec.Struct):
    n_ctx: int | None = None


class Props(msgspec.Struct):
    """Properties of a llama-server. A property that the server does not report is None or empty."""

    default_generation_settings: _Generation | None = None
    total_slots: int | None = None
    build_info: str | None = None
    model_alias: str | None = None
    chat_template: str = ""
    bos_token: str = ""
    eos_token: str = ""
    media_marker: str = ""

    @property
    def context_size(self) -> int | None:
        """Tokens per slot."""
        settings = self.default_generation_settings
        return None if settings is None else settings.n_ctx


class Model(msgspec.Struct):
    """One entry of the server's model list. A member that the server does not report is None."""

    id: str | None = None
    owned_by: str | None = None
    max_model_len: int | None = None
    meta: dict[str, Any] | None = None
    """Facts about the model file that llama.cpp reports, such as ``n_vocab`` and ``n_ctx_train``."""

    def number(self, name: str) -> int | None:
        """Return the integer called `name` in `meta`; None if it is missing or not an integer."""
        value = (self.meta or {}).get(name)
        return value if type(value) is int else None


class SlotState(msgspec.Struct, frozen=True):
    """State of one slot of a llama-server. A member that the server does not report is None."""

    id: int
    busy: bool = msgspec.field(name="is_processing", default=False)
    """True while the slot processes a request."""
    context_size: int | None = msgspec.field(name="n_ctx", default=None)
    """Largest number of tokens in the slot."""
    tokens: int | None = msgspec.field(name="n_prompt_tokens", default=None)
    """Number of tokens in the slot from its last conversation; None if the slot was never used."""
    task: int | None = msgspec.field(name="id_task", default=None)
    """Number of the slot's last request. The server numbers its requests."""


class TokenPiece(msgspec.Struct):
    """A token and its text."""

    id: int
    piece: str | list[int]
    """The token's text, or a list of byte values if the bytes alone are not valid UTF-8."""

    @property
    def data(self) -> bytes:
        """The token's text as bytes."""
        return self.piece.encode() if isinstance(self.piece, str) else bytes(self.piece)


class _Models(msgspec.Struct):
    data: list[msgspec.Raw]


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Pieces(msgspec.Struct):
    tokens: list[TokenPiece]


class _Prompt(msgspec.Struct):
    prompt: str


def ask(client: Client, path: str, answer: type[T], body: bytes | None = None, *, timeout: float | None = None) -> T:
    """Send a request to one endpoint and return the decoded JSON response.

    Parameters
    ----------
    client : Client
        Connection to the server.
    path : str
        Path below the server's base URL, including the query string.
    answer : type
        Type of the returned value. Members of the response that the type does not declare are ignored.
    body : bytes, optional
        JSON to post. Without it the request is a GET.
    timeout : float, optional
        Seconds to wait. By default the client's own time-out.

    Raises
    ------
    ServerError
        The server is unreachable or too slow, refuses the request, or sends a response that is not of the type `answer`.
    """
    data = client.ask(client.url + path, body, timeout=timeout)
    try:
        return msgspec.json.decode(data, type=answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _unexpected(client, path.partition("?")[0], error) from error


def _unexpected(client: Client, path: str, error: Exception) -> ServerRefused:
    return ServerRefused(client.url, 200, f"unexpected response to {path}: {error}", "Check that this is the right server")


def props(client: Client, *, timeout: float | None = None) -> Props:
    """Return those properties of the server that loopkit uses."""
    return ask(client, PROPS, Props, timeout=timeout)


def raw_props(client: Client) -> dict[str, Any]:
    """Return all properties that the server reports, decoded but otherwise unchanged."""
    return ask(client, PROPS, dict[str, Any])


def models(client: Client, *, timeout: float | None = None) -> list[Model]:
    """Return the models that the server lists, without entries that cannot be decoded."""
    path = client.api.removeprefix(client.url) + MODELS
    found = []
    for entry in ask(client, path, _Models, timeout=timeout).data:
        with contextlib.suppress(msgspec.MsgspecError):
            found.append(msgspec.json.decode(entry, type=Model))
    return found


def slots(client: Client, timeout: float | None = None) -> list[SlotState]:
    """Return the state of each slot."""
    return ask(client, SLOTS, list[SlotState], timeout=timeout)


def metrics(client: Client, timeout: float | None = None) -> dict[str, float]:
    """Return the server's counters and gauges by name, without the prefix ``llamacpp:``. They are 0 when the server starts."""
    text = client.ask(client.url + METRICS, timeout=timeout).decode("utf-8", "replace")
    try:
        return {name: float(value) for name, value in _METRIC.findall(text)}
    except ValueError as error:
        raise _unexpected(client, METRICS, error) from error


def save_slot(client: Client, slot: int, filename: str) -> int:
    """Write a slot's KV cache to a file in the server's slot directory, and return the number of tokens written."""
    return _slot_action(client, slot, "save", "n_saved", filename)


def restore_slot(client: Client, slot: int, filename: str) -> int:
    """Load a slot's KV cache from a file in the server's slot directory, and return the number of tokens loaded."""
    return _slot_action(client, slot, "restore", "n_restored", filename)


def erase_slot(client: Client, slot: int) -> int:
    """Erase a slot's KV cache, and return the number of tokens erased."""
    return _slot_action(client, slot, "erase", "n_erased", None)


def _slot_action(client: Client, slot: int, action: str, count: str, filename: str | None) -> int:
    if filename is not None and not _FILE.fullmatch(filename):
        raise InvalidConfig(
            "filename", f"{filename!a} is not a plain file name", "Use letters, digits, dots, dashes and underscores"
        )
    path = f"{SLOTS}/{slot}?action={action}"
    answer = ask(client, path, dict[str, Any], encode({} if filename is None else {"filename": filename}))
    if type(answer.get(count)) is not int:
        raise _unexpected(client, f"{SLOTS}/{slot}", KeyError(count))
    return int(answer[count])


def apply_template(client: Client, body: bytes, *, timeout: float | None = None) -> str:
    """Return the prompt that the server renders from the body of a chat completion request."""
    return ask(client, TEMPLATE, _Prompt, body, timeout=timeout).prompt


def tokenize(
    client: Client, content: str | Sequence[str | int], *, add_special: bool = True, parse_special: bool = True
) -> list[int]:
    """Return the ids of a text's tokens.

    Parameters
    ----------
    client : Client
        Connection to the server.
    content : str or sequence of str and int
        A text, or a sequence of texts and token ids, which are joined.
    add_special : bool
        Add the special tokens that the model expects before and after each prompt, as the chat endpoint does.
    parse_special : bool
        Convert each control tag in the text to its control token, as the chat endpoint does, instead of ordinary tokens.
    """
    question = {"content": content, "add_special": add_special, "parse_special": parse_special}
    return ask(client, TOKENIZE, _Tokens, encode(question)).tokens


def token_pieces(client: Client, content: str | Sequence[str | int], *, add_special: bool = True) -> list[TokenPiece]:
    """Return each token of a text with its id and its own text. Control tags become control tokens; see `tokenize`."""
    question = {"content": content, "add_special": add_special, "parse_special": True, "with_pieces": True}
    return ask(client, TOKENIZE, _Pieces, encode(question)).tokens
