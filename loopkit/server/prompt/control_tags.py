"""A running llama-server's own control tags, asked of the server itself.

Three questions, and no file: the vocabulary (`/tokenize`: a control token is what is one token with ``parse_special`` and
several without), the template (`/apply-template`: what it writes around each role's text, and what it deletes from it), and
`/props` (the media marker, the first and the last token). No fault is fatal: what a server does not answer adds nothing to the
default set. Knows nothing of sessions.
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

_CHUNK = 50_000  # token ids in one question
_NEAR = 80  # characters between a text and the tag that encloses it: a role's name, a line break
_SWITCHES = ("/no_think", "/think")  # templates delete them without a replace that one can see
# A user-defined token stays one in all of these; what merges of ordinary ones make is broken by some.
_CONTEXTS = ("- -", "a a", "< >", "[ ]", "| |", "/ /", "0 0", ". .", '" "', "( )")
_PLAIN = "<[^<>\\s\"'{}(),;]{1,64}>|\\[[^\\[\\]\\s\"'{}(),;]{1,64}\\]"
_ROLES = ("system", "user", "assistant", "tool")
_CONVERSATIONS = (_ROLES, ("system", "user", "assistant", "user"), ("user", "assistant", "user"), ("user",))


T = TypeVar("T")


def server_tags(wire: Wire) -> Tags:
    """Ask a llama-server for its control tags.

    Parameters
    ----------
    wire : Wire
        The server.

    Returns
    -------
    Tags
        The default's shapes, and beyond them what this server has. Equal to the default where it has nothing more, is no
        llama-server, or does not answer.
    """
    props = _answer(lambda: llama_api.props(wire))
    if props is None:
        return Tags.default()
    named = [word for word in (props.eos_token, props.bos_token) if word]
    controls = _controls(wire, named)
    ours = beyond_default([*named, *controls, *_delimiters(wire, controls)], _cuts(wire, props.chat_template))
    return ours | beyond_default([props.media_marker])  # by itself: it is no token, and another in every process


def _answer(question: Callable[[], T]) -> T | None:
    """Return the answer to one question; None if the server refuses it or answers with something else."""
    try:
        return question()
    except ServerError:
        return None


def _controls(wire: Wire, canaries: list[str]) -> list[str]:
    """The vocabulary's control tokens, and those user-defined ones that look like tags."""
    if not any(_ids(wire, [word], special=True) != _ids(wire, [word], special=False) for word in canaries):
        return []  # it takes no `parse_special`, so it cannot tell them apart
    pieces = _vocabulary(wire)
    tagged = {id: text for id, text in pieces.items() if not BRACKETS.isdisjoint(text) and literal_fault(text) is None}
    # between the texts, since it is in none of their tokens
    used = "\0".join([*tagged.values(), *_CONTEXTS])
    separator = next((id for id, text in pieces.items() if _is_apart(text) and text not in used), None)
    if separator is None:
        return []

    def alone(texts: Sequence[str], *, special: bool) -> list[list[int]]:
        """The tokens of each text by itself; none at all where the server does not answer."""
        rows: list[list[int]] = [[]]
        for id in _ids(wire, [part for text in texts for part in (text, separator)], special=special) or ():
            if id == separator:
                rows.append([])
            else:
                rows[-1].append(id)
        return rows[:-1]

    texts = list(tagged.values())
    rows = zip(tagged.items(), alone(texts, special=True), alone(texts, special=False))
    whole = [(id, text, plain == [id]) for (id, text), parsed, plain in rows if parsed == [id]]
    suspects = [(id, text) for id, text, always in whole if always and looks_like_tag(text)]
    placed = [(id, text, context.replace(" ", text)) for id, text in suspects for context in _CONTEXTS]
    broken = {text for (id, text, _), row in zip(placed, alone([each[2] for each in placed], special=False)) if id not in row}
    return [text for _, text, always in whole if not always or (looks_like_tag(text) and text not in broken)]


def _is_apart(text: str) -> bool:
    """Whether a token's text can only come from itself: some tokenizers put a blank before what they are given."""
    return bool(text) and text == text.strip() and BRACKETS.isdisjoint(text)


def _vocabulary(wire: Wire) -> dict[int, str]:
    """Every token's text by its id; tokens that are no text of their own are left out."""
    models = _answer(lambda: llama_api.models(wire)) or []
    size = (models[0].number("n_vocab") or 0) if models else 0
    pieces: dict[int, str] = {}
    for start in range(0, size, _CHUNK):
        ids = list(range(start, min(start + _CHUNK, size)))
        found = _answer(partial(llama_api.token_pieces, wire, ids, add_special=False))
        pieces |= {token.id: token.piece for token in found or () if isinstance(token.piece, str)}
    return pieces


def _ids(wire: Wire, content: Sequence[str | int], *, special: bool) -> list[int] | None:
    return _answer(lambda: llama_api.tokenize(wire, content, add_special=False, parse_special=special))


def _rendered(wire: Wire, roles: Sequence[str], text: str) -> str | None:
    """The prompt of a conversation in which each role says its name and the text; None where the template wants another."""
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
    """The nearest tag before and after each role's text, be it a token or plain text to the server."""
    tag = re.compile("|".join([*map(re.escape, sorted(controls, key=len, reverse=True)), _PLAIN]))
    found: set[str] = set()
    for roles in _CONVERSATIONS:
        prompt = _rendered(wire, roles, "")
        parts = re.split(r"ZQ[a-z]+[0-9]QZ", prompt or "")
        for before, after in itertools.pairwise(parts):
            found.update(tag.findall(before[-_NEAR:])[-1:], tag.findall(after[:_NEAR])[:1])
    return {name for name in found if looks_like_tag(name)}


def _cuts(wire: Wire, template: str) -> list[str]:
    """The words that are really deleted from a role's text, in the order in which the template names them."""
    words = dict.fromkeys([*words_cut(template), *_SWITCHES])
    return [word for word in words if any(_is_cut(wire, roles, word) for roles in _CONVERSATIONS)]


def _is_cut(wire: Wire, roles: Sequence[str], word: str) -> bool:
    prompt = _rendered(wire, roles, f"A{word}B") or ""
    return any(f"ZQ{role}{number}ABQZ" in prompt for number, role in enumerate(roles) if role != "assistant")
