"""Rules that select control tags from a model's tokens and template, and build the `Tags` that neutralise them.

Each session stores its tags, so they contain only what the default shapes do not cover. The tokens come from a running server
(`loopkit.server.prompt.control_tags`) or from a file (`loopkit.server.embedded.models`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from loopkit.contract.neutralise import Tags, literal_fault, neutralise
from loopkit.errors import InvalidConfig

__all__ = ["BRACKETS", "beyond_default", "looks_like_tag", "words_cut"]

BRACKETS = frozenset("<>[]|\uff1c\uff1e\ufe64\ufe65\uff5c")
"Characters in tags: every known tag has at least one."
_QUOTE = "<" + '|"|' + ">"
# Added tokens of some vocabularies (Gemma) that are common in web pages. No template writes them around a message.
_HTML = re.compile(
    "</?(?:a|b|blockquote|body|br|caption|code|div|em|h[1-6r]|head|html|i|li|ol|p|pre|q|small|span|strong|su[bp]|table|tbody|td|tfoot|"
    "th|thead|title|tr|u|ul)>"
)
_CUTTING = re.compile(r"""replace\(\s*(['"])([^'"\\]{2,64})\1\s*,\s*(?:''|"")\s*\)""")


def looks_like_tag(name: str) -> bool:
    """Return True if a token that is not marked as a control token has the form of one.

    Parameters
    ----------
    name : str
        Text of the token.

    Returns
    -------
    bool
        True for text in brackets with at least one letter or digit, except HTML tags.

    Examples
    --------
    >>> [looks_like_tag(name) for name in ("<my_role>", "[ROLE]", "</td>", "think", "< b>", "[]")]
    [True, True, False, False, False, False]
    """
    if literal_fault(name) is not None or _HTML.fullmatch(name) or any(char.isspace() for char in name):
        return False
    ends = name[0] in BRACKETS and (name[-1] in BRACKETS or name[-1] == ":")
    return ends and (any(char.isalnum() for char in name) or name == _QUOTE)


def words_cut(template: str) -> list[str]:
    r"""Return the words that a chat template deletes from text, found in its source.

    Parameters
    ----------
    template : str
        A Jinja template.

    Returns
    -------
    list of str
        The words in the order in which the template deletes them.

    Examples
    --------
    >>> words_cut("{{ content.replace('/no_think', '')|replace(\"/think\", '')|replace('a', 'b') }}")
    ['/no_think', '/think']
    """
    return list(dict.fromkeys(match[2] for match in _CUTTING.finditer(template) if _can_cut(match[2])))


def _can_cut(word: str) -> bool:
    try:
        Tags(cuts=[word])
    except InvalidConfig:
        return False
    return True


def beyond_default(tags: Iterable[str], cuts: Iterable[str] = ()) -> Tags:
    """Build the `Tags` of a model: the default shapes, and literals for what they do not cover.

    Parameters
    ----------
    tags : iterable of str
        All tags of the model. A tag that cannot be neutralised, such as a single bracket, is left out.
    cuts : iterable of str
        Words that the template deletes from text, in its order.

    Returns
    -------
    Tags
        The tags to neutralise.

    Examples
    --------
    >>> beyond_default(["[ROLE]", "<" + "|end|" + ">", "<"]).literals
    ('[ROLE]',)
    """
    known = sorted({tag for tag in tags if literal_fault(tag) is None})
    return Tags({*filter(_is_uncovered, known), *_joinable(known)}, cuts)


def _is_uncovered(tag: str) -> bool:
    """Return True if the default shapes leave the tag unchanged between letters, where some shapes do not match."""
    return tag in neutralise("a" + tag + "a")


def _joinable(known: list[str]) -> set[str]:
    """Return the tags that a part of a tag in a text can form together with a tag of the template beside it.

    The default shapes may cover the whole tags, but not their parts. Literals are also neutralised in parts.
    """
    begins = {tag[:end]: tag for tag in known for end in range(1, len(tag) + 1)}
    ends = {tag[start:]: tag for tag in known for start in range(len(tag))}
    joinable: set[str] = set()
    for tag in known:
        for at in range(1, len(tag)):
            left, right = tag[:at], tag[at:]
            if right in begins and left.strip() and neutralise(left) is left:
                joinable |= {tag, begins[right]}
            if left in ends and right.strip() and neutralise(right) is right:
                joinable |= {tag, ends[left]}
    return joinable
