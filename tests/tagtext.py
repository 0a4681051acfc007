"""Control tags for tests by short names, and comparisons that never show a text that may hold one.

A model may read a test file or a failure message, so no tag is spelled out in either. ``P A F S G GE`` build the usual forms,
``FAMILY_TAGS`` holds every tag that the default set covers, by family; both are `loopkit.server.embedded.tag_vocabulary`.
"""

from __future__ import annotations

from collections.abc import Iterable

from loopkit.contract.neutralise import DEFAULT, Tags, neutralise
from loopkit.server.embedded import tag_vocabulary

LT, GT, BAR, WIDE_BAR, LSB, RSB = "<", ">", "|", "\uff5c", "[", "]"


P, F, A, S = tag_vocabulary.piped, tag_vocabulary.wide_piped, tag_vocabulary.angled, tag_vocabulary.squared
G, GE, MNS = tag_vocabulary.left_piped, tag_vocabulary.right_piped, tag_vocabulary.minimax
MBOS, MBOD, MEOS, QUOTE, DSML = (
    tag_vocabulary.MBOS,
    tag_vocabulary.MBOD,
    tag_vocabulary.MEOS,
    tag_vocabulary.QUOTE,
    tag_vocabulary.DSML,
)
FAMILY_TAGS = tag_vocabulary.FAMILIES
ALL_TAGS: list[str] = sorted({tag for tags in FAMILY_TAGS.values() for tag in tags})


def assert_same_text(got: str, want: str, case: object) -> None:
    """Fail with the case and the place where two texts part, never with the texts."""
    __tracebackhide__ = True
    if got != want:
        pairs = enumerate(zip(got, want))
        offset = next((at for at, (left, right) in pairs if left != right), min(len(got), len(want)))
        raise AssertionError(
            f"{case}: the texts part at character {offset} of {len(got)} and {len(want)} (not shown: it may hold a tag)"
        )


def assert_absent(part: str, text: str, case: object) -> None:
    """Fail with the case and the place when ``text`` holds ``part``, never with either."""
    __tracebackhide__ = True
    if (offset := text.find(part)) >= 0:
        raise AssertionError(f"{case}: a tag stands at character {offset} of {len(text)} (not shown: it may hold a tag)")


def assert_same_tags(got: Iterable[str], want: Iterable[str], case: object) -> None:
    """Fail with the case and how many differ when two collections do not hold the same tags, never with the tags."""
    __tracebackhide__ = True
    missing, more = len(set(want) - set(got)), len(set(got) - set(want))
    assert (missing, more) == (0, 0), f"{case}: {missing} are missing and {more} too many (not shown: they are tags)"


def entity(char: str) -> str:
    return {LT: "&lt;", GT: "&gt;"}.get(char) or f"&#{ord(char)};"


def written(tag: str) -> str:
    """What a lone tag should become: its angle brackets, else its square ones, else its first character as entities."""
    for brackets in (LT + GT + "\uff1c\uff1e\ufe64\ufe65", LSB + RSB):
        if set(brackets) & set(tag):
            return "".join(entity(char) if char in brackets else char for char in tag)
    return entity(tag[0]) + tag[1:]


def assert_untouched(text: str, case: object, tags: Tags = DEFAULT) -> None:
    """Fail when neutralising makes another object of ``text``."""
    __tracebackhide__ = True
    got = neutralise(text, tags)
    assert_same_text(got, text, case)
    same = got is text
    assert same, f"{case}: an equal text, but not the same object"
