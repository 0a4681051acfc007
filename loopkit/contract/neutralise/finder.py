"""The compiled search for control tags in a text, including halves at its ends."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from loopkit.contract.neutralise.shapes import LONGEST, Shapes

__all__ = ["Finder"]


class Finder(NamedTuple):
    """The compiled regular expressions that find the tags of one set, and halves of tags at the ends of a text."""

    patterns: tuple[tuple[str, re.Pattern[str]], ...]
    "First character of tags, and the expression that finds them. A match consumes one character, so overlapping tags are found."
    heads: re.Pattern[str]
    "Matches the second half of a tag at the start of a text."
    tails: re.Pattern[str]
    "Matches the first half of a tag at the end of a text."
    triggers: tuple[str, ...]
    "Characters for a quick test. A text that contains none of these characters contains no tag."

    @staticmethod
    def of(shapes: Shapes, more: tuple[str, ...]) -> Finder:
        """Compile the expressions for one version of the shapes and these additional literals."""
        literals = sorted({*shapes.literals, *more})
        after = {first: [rest] for first, rest in shapes.after.items()}
        for first, group in groupby(literals, lambda literal: literal[0]):
            after.setdefault(first, []).append(_any_of(literal[1:] for literal in group))
        begins = {literal[:end] for literal in literals for end in range(1, len(literal) + 1)}
        ends = {literal[start:] for literal in literals for start in range(len(literal))}
        cut = [(literal[:at], literal[at:]) for literal in literals for at in range(1, len(literal))]
        heads = {right for left, right in cut if left in ends and right.strip()}
        tails = {left for left, right in cut if right in begins and left.strip()}
        head = "|".join([*map(re.escape, sorted(heads)), *shapes.heads])
        tail = "|".join([*map(re.escape, sorted(tails)), *shapes.tails])
        untriggered = {part[0] for part in heads | tails if after.keys().isdisjoint(part)}
        return Finder(
            patterns=tuple((first, re.compile(f"{re.escape(first)}(?=({'|'.join(rest)}))")) for first, rest in after.items()),
            heads=re.compile(head),
            tails=re.compile(rf"(?:{tail})\Z"),
            triggers=(*after, *sorted(untriggered)),
        )

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the start and end of each tag in a text.

        Half a tag at the start or end of the text counts as a tag, because the template's own text could complete it.
        """
        if not any(char in text for char in self.triggers):
            return
        for first, pattern in self.patterns:
            if first in text:
                for match in pattern.finditer(text):
                    yield match.start(), match.end(1)
        for start in {0, len(text) - len(text.lstrip())}:  # also after white space, because templates trim it
            if found := self.heads.match(text, start):
                yield found.span()
        for end in {len(text), len(text.rstrip())}:
            if found := self.tails.search(text, max(0, end - LONGEST), end):
                yield found.span()


def _any_of(words: Iterable[str]) -> str:
    """Return a regular expression that matches the longest of these sorted words and reads each character only once."""
    words = list(words)
    groups = groupby((word for word in words if word), lambda word: word[0])
    branches: list[str] = [re.escape(first) + _any_of(word[1:] for word in group) for first, group in groups]
    if len(branches) == len(words) == 1:
        return branches[0]
    return f"(?:{'|'.join(branches)}){'?' if '' in words else ''}" if branches else ""
