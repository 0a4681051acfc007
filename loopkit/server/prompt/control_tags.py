"""The control tags of a running llama-server, found through its API.

The tags come from three sources:

- The vocabulary: a text is a control token if it becomes one token with ``parse_special``, and other tokens without.
- The chat template: the tags that it writes around the text of each role, and the words that it deletes from the text.
- The properties: the media marker, the first token of a prompt and the last token of a response.

If the server does not answer a request, the tags from that source are missing. The default tags are always included.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from loopkit.contract.neutralise import Tags, literal_fault
from loopkit.encoding import encode
from loopkit.errors import ServerError
from loopkit.server import llama_api
from loopkit.server.prompt.tag_rules import BRACKETS, beyond_default, looks_like_tag, words_cut
from loopkit.server.transport.connection import Wire

__all__ = ["server_tags"]

_CHUNK = 50_000  # token ids in one request
_NEAR = 80  # largest distance in characters from a text to its delimiter; between them may be a role's name and a line break
_SWITCHES = ("/no_think", "/think")  # some templates delete these words without a literal call of `replace`
# These contexts distinguish user-defined tokens from ordinary ones. In place of the space, a user-defined token remains one
# token in every context. An ordinary token with the same text is split in some of them.
_CONTEXTS = ("- -", "a a", "< >", "[ ]", "| |", "/ /", "0 0", ". .", '" "', "( )")
_PLAIN = "<[^<>\\s\"'{}(),;]{1,64}>|\\[[^\\[\\]\\s\"'{}(),;]{1,64}\\]"
_ROLES = ("system", "user", "assistant", "tool")
_CONVERSATIONS = (_ROLES, ("system", "user", "assistant", "user"), ("user", "assistant", "user"), ("user",))


T = TypeVar("T")


def server_tags(wire: Wire) -> Tags:
    """Return the control tags to neutralise in text for a server.

    Parameters
    ----------
    wire : Wire
        The connection to the server.

    Returns
    -------
    Tags
        The default tags, and the server's further tags. They are only the default tags if the server has no others, is not a
        llama-server, or does not respond.
    """
    props = _answer(lambda: llama_api.props(wire))
    if props is None:
        return Tags.default()
    named = [word for word in (props.eos_token, props.bos_token) if word]
    controls = _controls(wire, named)
    tags = beyond_default([*named, *controls, *_delimiters(wire, controls)], _cuts(wire, props.chat_template))
    # The media marker is added last, because it is not a token and differs in every process of the server.
    return tags | beyond_default([props.media_marker])


def _answer(question: Callable[[], T]) -> T | None:
    """Send one request and return the result; None if it raises a `ServerError`."""
    try:
        return question()
    except ServerError:
        return None


def _controls(wire: Wire, canaries: list[str]) -> list[str]:
    """Return the vocabulary's control tokens, and the user-defined tokens that look like tags."""
    if not any(_ids(wire, [word], special=True) != _ids(wire, [word], special=False) for word in canaries):
        return []  # the server ignores `parse_special`, so control tokens cannot be found
    pieces = _vocabulary(wire)
    tagged = {id: text for id, text in pieces.items() if not BRACKETS.isdisjoint(text) and literal_fault(text) is None}
    # To save requests, many texts are tokenised at once. The separator between them is a token whose text is in none of them.
    used = "\0".join([*tagged.values(), *_CONTEXTS])
    separator = next((id for id, text in pieces.items() if _can_separate(text) and text not in used), None)
    if separator is None:
        return []

    def tokens_of_each(texts: Sequence[str], *, special: bool) -> list[list[int]]:
        """Return a list of token ids for each text; an empty list if the server does not answer."""
        rows: list[list[int]] = [[]]
        for id in _ids(wire, [part for text in texts for part in (text, separator)], special=special) or ():
            if id == separator:
                rows.append([])
            else:
                rows[-1].append(id)
        return rows[:-1]

    texts = list(tagged.values())
    rows = zip(tagged.items(), tokens_of_each(texts, special=True), tokens_of_each(texts, special=False))
    single = [(id, text, plain == [id]) for (id, text), parsed, plain in rows if parsed == [id]]
    candidates = [(id, text) for id, text, always in single if always and looks_like_tag(text)]
    placed = [(id, text, context.replace(" ", text)) for id, text in candidates for context in _CONTEXTS]
    in_context = tokens_of_each([each[2] for each in placed], special=False)
    split = {text for (id, text, _), row in zip(placed, in_context) if id not in row}
    return [text for _, text, always in single if not always or (looks_like_tag(text) and text not in split)]


def _can_separate(text: str) -> bool:
    """Return True if the text of a token is usable as a separator of texts.

    It must not contain a bracket, nor begin or end with white space, because tokenizers may add or drop white space.
    """
    return bool(text) and text == text.strip() and BRACKETS.isdisjoint(text)


def _vocabulary(wire: Wire) -> dict[int, str]:
    """Return the vocabulary: the text of each token by id, without tokens whose bytes are not valid UTF-8."""
    models = _answer(lambda: llama_api.models(wire)) or []
    size = (models[0].number("n_vocab") or 0) if models else 0
    pieces: dict[int, str] = {}
    for start in range(0, size, _CHUNK):
        ids = list(range(start, min(start + _CHUNK, size)))
        tokens = _answer(partial(llama_api.token_pieces, wire, ids, add_special=False))
        pieces |= {token.id: token.piece for token in tokens or () if isinstance(token.piece, str)}
    return pieces


def _ids(wire: Wire, content: Sequence[str | int], *, special: bool) -> list[int] | None:
    return _answer(lambda: llama_api.tokenize(wire, content, add_special=False, parse_special=special))


def _rendered(wire: Wire, roles: Sequence[str], text: str) -> str | None:
    """Return the rendered prompt of a conversation with one message per role; None if the server refuses it.

    The content of each message is `text` between markers. The first marker contains the role and the message's number.
    """
    messages: list[dict[str, Any]] = []
    for number, role in enumerate(roles):
        message: dict[str, Any] = {"role": role, "content": f"ZQ{role}{number}{text}QZ"}
        if roles[number + 1 : number + 2] == ("tool",):
            function = {"name": "look", "arguments": "{}"}
            message["tool_calls"] = [{"type": "function", "id": "callcall1", "function": function}]
        if role == "tool":
            message |= {"tool_call_id": "callcall1", "name": "look"}
        messages.append(message)
    return _answer(lambda: llama_api.apply_template(wire, encode({"messages": messages})))


def _delimiters(wire: Wire, controls: Iterable[str]) -> set[str]:
    """Return the tags that the template writes nearest to the text of each role, before and after it.

    They include tags that are ordinary text and not tokens of the vocabulary.
    """
    tag = re.compile("|".join([*map(re.escape, sorted(controls, key=len, reverse=True)), _PLAIN]))
    tags: set[str] = set()
    for roles in _CONVERSATIONS:
        prompt = _rendered(wire, roles, "")
        parts = re.split(r"ZQ[a-z]+[0-9]QZ", prompt or "")
        for before, after in itertools.pairwise(parts):
            tags.update(tag.findall(before[-_NEAR:])[-1:], tag.findall(after[:_NEAR])[:1])
    return {name for name in tags if looks_like_tag(name)}


def _cuts(wire: Wire, template: str) -> list[str]:
    """Return the words that the template deletes from the text of any role, in the template's order."""
    words = dict.fromkeys([*words_cut(template), *_SWITCHES])
    return [word for word in words if any(_is_cut(wire, roles, word) for roles in _CONVERSATIONS)]


def _is_cut(wire: Wire, roles: Sequence[str], word: str) -> bool:
    prompt = _rendered(wire, roles, f"A{word}B") or ""
    return any(f"ZQ{role}{number}ABQZ" in prompt for number, role in enumerate(roles) if role != "assistant")
