"""Rules that select control tags from a model's tokens and template, and build the `Tags` that neutralise them.

`neutralise` always replaces tags of certain *shapes*, which are common to many models. Each session stores the `Tags` of its
model, so a `Tags` lists only the further tags that no shape matches. The tokens come from a running server
(`loopkit.server.prompt.control_tags`) or from a file (`loopkit.server.embedded.models`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from loopkit.contract.neutralise import Tags, literal_fault, neutralise
from loopkit.errors import InvalidConfig

__all__ = ["BRACKETS", "beyond_default", "looks_like_tag", "words_cut"]

BRACKETS = frozenset("<>[]|\uff1c\uff1e\ufe64\ufe65\uff5c")
"Every known tag contains at least one of these characters."
_QUOTE = "<" + '|"|' + ">"
# HTML tags are added tokens in some vocabularies (Gemma's), but they are common in web pages and no template uses them as tags.
_HTML = re.compile(
    "</?(?:a|b|blockquote|body|br|caption|code|div|em|h[1-6r]|head|html|i|li|ol|p|pre|q|small|span|strong|su[bp]|table|tbody|td|tfoot|"
    "th|thead|title|tr|u|ul)>"
)
_CUTTING = re.compile(r"""replace\(\s*(['"])([^'"\\]{2,64})\1\s*,\s*(?:''|"")\s*\)""")


def looks_like_tag(name: str) -> bool:
    """Return True if the text of a token has the form of a control tag. Use it for tokens that are not marked as control tokens.

    Parameters
    ----------
    name : str
        Text of the token.

    Returns
    -------
    bool
        True for text that is enclosed in brackets and contains a letter or digit, except HTML tags.

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
    r"""Return the words that a chat template deletes from text with a literal call of ``replace``.

    Parameters
    ----------
    template : str
        Source of the Jinja template.

    Returns
    -------
    list of str
        The words, in the order of the calls.

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
    """Build the `Tags` of a model: the default shapes, and a literal for each tag that no shape matches.

    Parameters
    ----------
    tags : iterable of str
        All control tags of the model. A tag that cannot be neutralised safely, such as a single bracket, is left out.
    cuts : iterable of str
        Words that the chat template deletes from text, in the template's order.

    Returns
    -------
    Tags
        The tags to neutralise in text for this model.

    Examples
    --------
    >>> beyond_default(["[ROLE]", "<" + "|end|" + ">", "<"]).literals
    ('[ROLE]',)
    """
    known = sorted({tag for tag in tags if literal_fault(tag) is None})
    return Tags({*filter(_is_uncovered, known), *_joinable(known)}, cuts)


def _is_uncovered(tag: str) -> bool:
    """Return True if the default shapes do not match the tag. It is tested between letters, where some shapes do not match."""
    return tag in neutralise("a" + tag + "a")


def _joinable(known: list[str]) -> set[str]:
    """Return the tags that can arise where a text meets a tag of the template.

    A text may end or begin with a part of a tag, which the template's tag beside it completes to another tag. The default shapes
    match only complete tags. Literals are neutralised in parts, too, so both tags are returned, to become literals.
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
