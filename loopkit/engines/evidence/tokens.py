"""A prompt as tokens: `TokenView`, and the part of the request that each range of tokens comes from: `Run`."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import NamedTuple

from loopkit.contract.json_position import first_difference
from loopkit.reprs import counted

__all__ = ["Run", "TokenView"]


class Run(NamedTuple):
    """A range of a prompt, in tokens or bytes, that comes from one part of the request."""

    label: str
    "The part, such as ``messages[3].content`` or ``template``."
    start: int
    "The first position."
    end: int
    "The position after the last one."


@dataclass(frozen=True, repr=False, eq=False)
class TokenView:
    """A request's prompt, as the server renders and tokenises it.

    Attributes
    ----------
    tokens : array of int
        Token ids.
    prompt : str or None
        The rendered text; None if the server does not show it.
    offsets : array of int or None
        Byte offsets in the prompt as UTF-8: token *i* is the bytes ``offsets[i]:offsets[i + 1]``. This range is empty for a
        token that the tokenizer added, such as a first token that is not in the template. None if the texts of the tokens do not
        add up to the prompt.
    parts : tuple of Run or None
        Ranges of tokens, in order and without gaps, each with the part of the request that it comes from. Examples are
        ``messages[3].content``, ``messages[2].tool_calls[0].function.arguments``, ``tools[1]`` and ``template``. A token with
        bytes of two parts belongs to the part where it begins. None if unknown.
    exact : bool or None
        True if the number of tokens equals the prompt tokens that the server reported. None if they were not compared.
    """

    tokens: array[int]
    prompt: str | None = None
    offsets: array[int] | None = None
    parts: tuple[Run, ...] | None = None
    exact: bool | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        # The prompt is never shown, because it contains control tags.
        known = {None: "count not checked", True: "count exact", False: "count not the server's"}[self.exact]
        parts = "no parts" if self.parts is None else counted(len(self.parts), "part")
        return f"TokenView({counted(len(self), 'token')}, {parts}, {known})"

    def common_prefix(self, other: TokenView) -> int:
        """Return how many leading tokens two prompts share.

        Parameters
        ----------
        other : TokenView
            The other prompt.

        Examples
        --------
        >>> TokenView(array("i", [1, 2, 258])).common_prefix(TokenView(array("i", [1, 2, 770, 4])))
        2
        """
        return first_difference(self.tokens.tobytes(), other.tokens.tobytes()) // self.tokens.itemsize

    def checked(self, prompt_tokens: int | None) -> TokenView:
        """Return a copy whose `exact` says if the number of tokens equals the server's count.

        Parameters
        ----------
        prompt_tokens : int or None
            Prompt tokens that the server reported. With None, `exact` becomes None.
        """
        return replace(self, exact=None if prompt_tokens is None else prompt_tokens == len(self))

    def part_at(self, index: int) -> str | None:
        """Return the part of the request that a token comes from; None if unknown.

        Parameters
        ----------
        index : int
            Position of the token, from 0.

        Raises
        ------
        IndexError
            If `index` is negative or the prompt has no token at this position.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"token {index} of {len(self)}")
        if self.parts is None:
            return None
        return self.parts[bisect_right(self.parts, index, key=lambda run: run.start) - 1].label

    def spelled(self, start: int, end: int) -> bytes | None:
        """Return the text of the tokens from `start` up to `end` as UTF-8 bytes; None if unknown.

        Parameters
        ----------
        start, end : int
            Positions of tokens, from 0; `end` is excluded.
        """
        if self.prompt is None or self.offsets is None:
            return None
        return self.prompt.encode()[self.offsets[start] : self.offsets[end]]
