"""What only llama-server offers: properties, slots, counters, and the prompt as it renders and tokenises it.

Thin calls: each asks one endpoint and gives back typed facts. On another server, or one started without the endpoint, the answer
is that server's refusal.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from loopkit.encoding import decode, encode
from loopkit.errors import InvalidConfig, ServerRefused
from loopkit.server.transport.connection import Wire

__all__ = ["SlotState", "apply_template", "erase_slot", "metrics", "props", "restore_slot", "save_slot", "slots", "tokenize"]

_METRIC = re.compile(r"^(?:llamacpp:)?([a-zA-Z_:][\w:]*(?:\{.*\})?)[ \t]+(\S+)", re.MULTILINE)
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class SlotState(NamedTuple):
    """One sequence of a llama-server, with its own KV state; None where the server does not say."""

    id: int
    busy: bool
    context_size: int | None
    tokens: int | None
    "How many it holds of its last conversation; None where there was none."


def _call(wire: Wire, path: str, body: bytes | None = None, timeout: float | None = None) -> Any:
    data = wire.ask(wire.url + path, body, timeout=timeout)
    try:
        return decode(data)
    except ValueError as error:
        raise ServerRefused(wire.url, 200, f"{path} is answered by what is not JSON", "Is this a llama-server?") from error


def props(wire: Wire) -> dict[str, Any]:
    """The server's properties: template, its abilities, slots, context, tokens."""
    found: dict[str, Any] = _call(wire, "/props")
    return found


def slots(wire: Wire, timeout: float | None = None) -> list[SlotState]:
    """What each slot holds."""
    return [
        SlotState(
            id=slot["id"],
            busy=slot["is_processing"],
            context_size=slot.get("n_ctx"),
            tokens=slot.get("n_prompt_tokens"),
        )
        for slot in _call(wire, "/slots", timeout=timeout)
    ]


def metrics(wire: Wire, timeout: float | None = None) -> dict[str, float]:
    """The server's counters and gauges by name, llama.cpp's without their prefix; they begin at 0 when it starts."""
    text = wire.ask(f"{wire.url}/metrics", timeout=timeout).decode("utf-8", "replace")
    return {name: float(value) for name, value in _METRIC.findall(text)}


def save_slot(wire: Wire, slot: int, filename: str) -> int:
    """Write a slot's KV state into the server's slot directory; gives the number of tokens."""
    return _slot_action(wire, slot, "save", "n_saved", filename)


def restore_slot(wire: Wire, slot: int, filename: str) -> int:
    """Read a slot's KV state back; gives the number of tokens."""
    return _slot_action(wire, slot, "restore", "n_restored", filename)


def erase_slot(wire: Wire, slot: int) -> int:
    """Empty a slot; gives the number of tokens that it held."""
    return _slot_action(wire, slot, "erase", "n_erased", None)


def _slot_action(wire: Wire, slot: int, action: str, count: str, filename: str | None) -> int:
    if filename is not None and not _FILE.fullmatch(filename):
        raise InvalidConfig("filename", "it must be a plain file name: letters, digits, dots, dashes, underscores")
    body = encode({} if filename is None else {"filename": filename})
    return int(_call(wire, f"/slots/{slot}?action={action}", body)[count])


def tokenize(wire: Wire, text: str, *, parse_special: bool = True) -> list[int]:
    """The tokens of a prompt, the first one with them where the model has one that no template writes.

    `parse_special` takes control tags for the tokens that they name, as the chat endpoint does.
    """
    body = encode({"content": text, "add_special": True, "parse_special": parse_special})
    return [int(token) for token in _call(wire, "/tokenize", body)["tokens"]]


def apply_template(wire: Wire, body: bytes) -> str:
    """The prompt that a request body is rendered to."""
    return str(_call(wire, "/apply-template", body)["prompt"])
