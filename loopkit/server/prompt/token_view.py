"""The prompt as a server renders and tokenises it: `TokenView`.

llama-server is asked three things, however long the conversation: the prompt, the prompt with a word in place of each text
(`loopkit.server.prompt.attribution` ties the bytes to the messages by it), and the tokens with the bytes of each.
vLLM gives tokens alone.
Knows nothing of caches and of what a completion was.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from loopkit import engines
from loopkit.encoding import decode, encode
from loopkit.engines.evidence.tokens import Run, TokenView
from loopkit.errors import ServerRefused
from loopkit.server import llama_api
from loopkit.server.prompt.attribution import TEMPLATE, mask, runs

if TYPE_CHECKING:
    from loopkit.server.transport.connection import Wire

__all__ = ["token_view"]

_TAKEN = 16  # bytes that no token stands for, in one place
_ABSENT = frozenset({404, 405, 501})  # statuses of a server without such an endpoint
# What vLLM's TokenizeChatRequest takes of a chat completion's body (vllm/entrypoints/serve/tokenize/protocol.py).
_VLLM = (
    "model",
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "media_io_kwargs",
    "mm_processor_kwargs",
)


class _Tokens(msgspec.Struct):
    tokens: list[int]


def token_view(wire: Wire, engine: str | None, body: bytes) -> TokenView | None:
    """Ask a server for the tokens of a request's prompt; nothing is computed of them.

    Parameters
    ----------
    wire : Wire
        The server.
    engine : str or None
        What it is: ``llama.cpp`` and ``vllm`` can say.
    body : bytes
        A chat completion's, as it is sent.

    Returns
    -------
    TokenView or None
        None where the server has no such endpoint.

    Raises
    ------
    ServerError
        Unreachable, too slow, or the body refused.
    """
    try:
        shown_by = engines.find(engine).prompt_tokens_from
        if shown_by == "apply-template":
            return _of_llama(wire, body)
        return _of_vllm(wire, body) if shown_by == "tokenize-chat" else None
    except ServerRefused as error:
        if error.status in _ABSENT:
            return None
        raise


def _of_llama(wire: Wire, body: bytes) -> TokenView:
    prompt = llama_api.apply_template(wire, body)
    pieces = llama_api.token_pieces(wire, prompt)
    tokens, data = array("i", [each.id for each in pieces]), prompt.encode()
    offsets = _offsets(data, [each.data for each in pieces])
    if offsets is None:
        return TokenView(tokens, prompt)
    try:
        masked = mask(body)
        skeleton = llama_api.apply_template(wire, masked.body)
    except (ServerRefused, ValueError):  # a template that asks for certain texts: the tokens are known all the same
        return TokenView(tokens, prompt, offsets)
    return TokenView(tokens, prompt, offsets, tuple(_of_tokens(runs(data, skeleton.encode(), masked), offsets)))


def _of_vllm(wire: Wire, body: bytes) -> TokenView:
    try:
        members = decode(body, dict[str, Raw])
    except ValueError as error:
        raise ServerRefused(wire.url, 400, f"the body is no JSON object: {error}") from error
    question = {"add_generation_prompt": True, **{name: members[name] for name in _VLLM if name in members}}
    return TokenView(array("i", llama_api.ask(wire, llama_api.TOKENIZE, _Tokens, encode(question)).tokens))


def _offsets(prompt: bytes, pieces: Sequence[bytes]) -> array[int] | None:
    """Where each token begins, and the end; None where the tokens do not spell the prompt.

    Tokens that are in no text (a first and a last one) take no bytes. Some tokenizers write a blank before what they are given;
    others take white space behind a control tag, or bytes that they do not know: those count to the token before.
    """
    offsets, position = array("i"), 0
    for number, piece in enumerate(pieces):
        if not prompt.startswith(piece, position):
            place = prompt.find(piece, position, position + _TAKEN + len(piece))
            if piece.startswith(b" ") and prompt.startswith(piece[1:], position):
                piece = piece[1:]
            elif number and place >= 0:
                position = place
            elif number in (0, len(pieces) - 1):
                piece = b""
            else:
                return None
        offsets.append(position)
        position += len(piece)
    offsets.append(position)
    return offsets if position == len(prompt) else None


def _of_tokens(found: Sequence[Run], offsets: array[int]) -> Sequence[Run]:
    """Stretches of bytes as stretches of tokens; what has no token of its own is left out."""
    count = len(offsets) - 1
    added = int(count > 0 and offsets[0] == offsets[1])
    labels = [Run(TEMPLATE, 0, added)]
    for run in found:
        start = bisect_left(offsets, run.start, added, count)
        end = bisect_left(offsets, run.end, added, count)
        if run.label == labels[-1].label:
            labels[-1] = Run(run.label, labels[-1].start, end)
        elif start < end:
            labels.append(Run(run.label, start, end))
    labels[-1] = Run(labels[-1].label, labels[-1].start, count)
    return [run for run in labels if run.start < run.end]
