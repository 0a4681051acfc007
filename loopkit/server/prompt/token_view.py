"""The prompt as a server renders and tokenises it, as a `TokenView`.

A llama-server gets three requests. The first returns the rendered prompt, and the second the prompt's tokens with their bytes.
The third renders the prompt again, with a placeholder instead of each text; `loopkit.server.prompt.attribution` needs it to
assign the bytes to messages. vLLM gets one request, which returns only the tokens.
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

_SKIPPED = 16  # largest number of consecutive bytes of a prompt that belong to no token
_ABSENT = frozenset({404, 405, 501})  # HTTP statuses of a server that does not have the endpoint
# Members of a chat completion's body that vLLM's TokenizeChatRequest accepts (vllm/entrypoints/serve/tokenize/protocol.py).
_VLLM_MEMBERS = (
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
    """Return the tokens of a request's prompt. The server renders and tokenises the prompt, but the model does not process it.

    Parameters
    ----------
    wire : Wire
        The connection to the server.
    engine : str or None
        Name of the server's engine. Only ``llama.cpp`` and ``vllm`` return tokens.
    body : bytes
        Body of a chat completion request.

    Returns
    -------
    TokenView or None
        The prompt's tokens; None if the server has no endpoint for them.

    Raises
    ------
    ServerError
        The server is unreachable, too slow, or rejects the body.
    """
    try:
        source = engines.find(engine).prompt_tokens_from
        if source == "apply-template":
            return _ask_llama(wire, body)
        return _ask_vllm(wire, body) if source == "tokenize-chat" else None
    except ServerRefused as error:
        if error.status in _ABSENT:
            return None
        raise


def _ask_llama(wire: Wire, body: bytes) -> TokenView:
    prompt = llama_api.apply_template(wire, body)
    pieces = llama_api.token_pieces(wire, prompt)
    tokens, data = array("i", [each.id for each in pieces]), prompt.encode()
    offsets = _offsets(data, [each.data for each in pieces])
    if offsets is None:
        return TokenView(tokens, prompt)
    try:
        masked = mask(body)
        skeleton = llama_api.apply_template(wire, masked.body)
    except (ServerRefused, ValueError):  # some templates refuse the placeholders; the tokens are known without them
        return TokenView(tokens, prompt, offsets)
    return TokenView(tokens, prompt, offsets, tuple(_token_runs(runs(data, skeleton.encode(), masked), offsets)))


def _ask_vllm(wire: Wire, body: bytes) -> TokenView:
    try:
        members = decode(body, dict[str, Raw])
    except ValueError as error:
        raise ServerRefused(wire.url, 400, f"the body is not a JSON object: {error}") from error
    question = {"add_generation_prompt": True, **{name: members[name] for name in _VLLM_MEMBERS if name in members}}
    return TokenView(array("i", llama_api.ask(wire, llama_api.TOKENIZE, _Tokens, encode(question)).tokens))


def _offsets(prompt: bytes, pieces: Sequence[bytes]) -> array[int] | None:
    """Return the byte offset of each token, and last the prompt's length. Return None if the tokens do not spell the prompt.

    Three differences are accepted. A first or last token that the tokenizer added gets an empty range. A space that the tokenizer
    added before a text is ignored. Bytes that the tokenizer dropped, such as white space after a control tag, are added to the
    token before them.
    """
    offsets, position = array("i"), 0
    for number, piece in enumerate(pieces):
        if not prompt.startswith(piece, position):
            place = prompt.find(piece, position, position + _SKIPPED + len(piece))
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


def _token_runs(byte_runs: Sequence[Run], offsets: array[int]) -> Sequence[Run]:
    """Convert ranges of bytes to ranges of tokens. A token belongs to the range in which it begins; empty ranges are left out."""
    count = len(offsets) - 1
    added = int(count > 0 and offsets[0] == offsets[1])
    labels = [Run(TEMPLATE, 0, added)]
    for run in byte_runs:
        start = bisect_left(offsets, run.start, added, count)
        end = bisect_left(offsets, run.end, added, count)
        if run.label == labels[-1].label:
            labels[-1] = Run(run.label, labels[-1].start, end)
        elif start < end:
            labels.append(Run(run.label, start, end))
    labels[-1] = Run(labels[-1].label, labels[-1].start, count)
    return [run for run in labels if run.start < run.end]
