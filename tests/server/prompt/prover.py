"""A server's own tokenizer as a witness: the prompt that it renders, and the control tokens in it.

Which tokens those are is read from the model's file, not asked through the code that is under test.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gguf

from loopkit.encoding import decode, encode
from loopkit.errors import ServerError
from loopkit.server.client import Server
from loopkit.server.embedded import tag_vocabulary
from loopkit.server.embedded.models import resolve


class Prover:
    """A server with an embedded model, and what it makes of texts."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.tags = server.tags()
        fields = gguf.GGUFReader(resolve(server.model or "").path).fields
        names, types = (fields[f"tokenizer.ggml.{member}"].contents() for member in ("tokens", "token_type"))
        ordinary = {gguf.TokenType.NORMAL, gguf.TokenType.BYTE, gguf.TokenType.UNUSED}
        self.marked = {
            id
            for id, (name, type) in enumerate(zip(names, types))
            if type not in ordinary and name not in tag_vocabulary.ORDINARY
        }
        (self.between,) = self.tokens(["\x01"])

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Put a question; a refusal fails the test without what was asked."""
        __tracebackhide__ = True
        try:
            answer: dict[str, Any] = decode(self.server.wire.ask(self.server.url + path, encode(body)))
        except ServerError as error:
            raise AssertionError(f"{path}: {type(error).__name__} (not shown: it may hold a tag)") from None
        return answer

    def tokens(self, content: str | Sequence[str | int], *, special: bool = True) -> list[int]:
        tokens: list[int] = self.ask("/tokenize", {"content": content, "add_special": False, "parse_special": special})["tokens"]
        return tokens

    def apart(self, texts: Sequence[str], *, special: bool = True) -> list[list[int]]:
        """The tokens of each text by itself."""
        rows: list[list[int]] = [[]]
        for id in self.tokens([part for text in texts for part in (text, self.between)], special=special):
            if id == self.between:
                rows.append([])
            else:
                rows[-1].append(id)
        return rows[:-1]

    def prompt(self, messages: list[dict[str, Any]]) -> str:
        return str(self.ask("/apply-template", {"messages": messages})["prompt"])

    def controls(self, prompt: str) -> list[int]:
        """The control tokens of a prompt, in order."""
        return [id for id in self.tokens(prompt) if id in self.marked]
