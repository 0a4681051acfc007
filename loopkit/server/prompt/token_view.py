"""The prompt as a server renders and tokenises it: `TokenView`.

llama-server is asked three things, however long the conversation: the prompt, the prompt with a word in place of each text
(`loopkit.server.prompt.attribution` ties the bytes to the messages by it), and the tokens with the bytes of each.
vLLM gives tokens alone.
Knows nothing of caches and of what a completion was.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from loopkit.contract.request import first_difference
from loopkit.encoding import decode, encode
from loopkit.errors import ServerRefused
from loopkit.reprs import counted
from loopkit.server import llama_api
from loopkit.server.prompt.attribution import TEMPLATE, Run, mask, runs

if TYPE_CHECKING:
    from loopkit.server.transport.connection import Wire

__all__ = ["Run", "TokenView", "common_prefix", "token_view"]

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


@dataclass(frozen=True, repr=False, eq=False)
class TokenView:
    """A request's prompt, as the server renders and tokenises it.

    Attributes
    ----------
    tokens : array of int
        Their ids.
    prompt : str or None
        The rendered text; None where the server does not show it.
    offsets : array of int or None
        One more than there are tokens: token *i* is the prompt's UTF-8 bytes ``offsets[i]:offsets[i + 1]``, none of them where
        the tokenizer added it (a first token that no template writes). None where the tokens do not spell the prompt.
    parts : tuple of Run or None
        Stretches of tokens and the part that each comes from, in order and without gaps: ``messages[3].content``,
        ``messages[2].tool_calls[0].function.arguments``, ``tools[1]``, ``template`` …; see
        `loopkit.server.prompt.attribution.runs`. A token         that holds bytes of two parts is of the one that it
        begins in. None where it is not known.
    exact : bool or None
        Whether the count is the server's own; None until `checked`.
    """

    tokens: array[int]
    prompt: str | None = None
    offsets: array[int] | None = None
    parts: tuple[Run, ...] | None = None
    exact: bool | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        # never the prompt: it holds control tags
        known = {None: "count not checked", True: "count exact", False: "count not the server's"}[self.exact]
        parts = "no parts" if self.parts is None else counted(len(self.parts), "part")
        return f"TokenView({counted(len(self), 'token')}, {parts}, {known})"

    def checked(self, prompt_tokens: int | None) -> TokenView:
        """The same view, knowing whether its count equals the server's own; None is not known."""
        return replace(self, exact=None if prompt_tokens is None else prompt_tokens == len(self))

    def part_at(self, index: int) -> str | None:
        """The label of the part that a token comes from; None where it is not known.

        Raises
        ------
        IndexError
            There is no such token; a negative index is none.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"token {index} of {len(self)}")
        if self.parts is None:
            return None
        return self.parts[bisect_right(self.parts, index, key=lambda run: run.start) - 1].label

    def spelled(self, start: int, end: int) -> bytes | None:
        """The prompt's bytes that the tokens from `start` up to `end` stand for; None where they are not known."""
        if self.prompt is None or self.offsets is None:
            return None
        return self.prompt.encode()[self.offsets[start] : self.offsets[end]]


def common_prefix(a: TokenView, b: TokenView) -> int:
    """How many tokens two prompts share from their beginning.

    Examples
    --------
    >>> common_prefix(TokenView(array("i", [1, 2, 258])), TokenView(array("i", [1, 2, 770, 4])))
    2
    """
    return first_difference(a.tokens.tobytes(), b.tokens.tobytes()) // a.tokens.itemsize


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
        if engine == "llama.cpp":
            return _of_llama(wire, body)
        return _of_vllm(wire, body) if engine == "vllm" else None
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
