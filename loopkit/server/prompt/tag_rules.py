"""From a model's own tags to a set that neutralises them: which names are tags, and which the default shapes do not cover.

A set is pinned in every session, so it holds only what the shapes leave alone. Pure: where the names come from, a running server
(`loopkit.server.prompt.control_tags`) or a file (`loopkit.server.embedded.models`), is not known here, and neither is HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from loopkit.contract.neutralise import Tags, literal_fault, neutralise
from loopkit.errors import InvalidConfig

__all__ = ["BRACKETS", "beyond_default", "looks_like_tag", "words_cut"]

BRACKETS = frozenset("<>[]|\uff1c\uff1e\ufe64\ufe65\uff5c")
"Every tag that is known has one of these."
_QUOTE = "<" + '|"|' + ">"
# Vocabularies hold these as added tokens (Gemma), and pages are full of them: no template writes them around a message.
_HTML = re.compile(
    "</?(?:a|b|blockquote|body|br|caption|code|div|em|h[1-6r]|head|html|i|li|ol|p|pre|q|small|span|strong|su[bp]|table|tbody|td|tfoot|"
    "th|thead|title|tr|u|ul)>"
)
_CUTTING = re.compile(r"""replace\(\s*(['"])([^'"\\]{2,64})\1\s*,\s*(?:''|"")\s*\)""")


def looks_like_tag(name: str) -> bool:
    """Whether a name that is not marked as a control token is one all the same, by its look.

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
    r"""The words that a chat template deletes from text, in its order; found by their look, not by rendering.

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
    """Build the set for a model's tags: the default's shapes, and as literals what they do not cover.

    Parameters
    ----------
    tags : iterable of str
        Every tag of the model. What cannot be neutralised, such as a single bracket, is left out.
    cuts : iterable of str
        Words that its template deletes from text, in its order.

    Returns
    -------
    Tags

    Examples
    --------
    >>> beyond_default(["[ROLE]", "<" + "|end|" + ">", "<"]).literals
    ('[ROLE]',)
    """
    known = sorted({tag for tag in tags if literal_fault(tag) is None})
    return Tags({*filter(_is_left, known), *_joining(known)}, cuts)


def _is_left(tag: str) -> bool:
    """Whether the default leaves a tag as it is where letters surround it: some shapes want none before them."""
    return tag in neutralise("a" + tag + "a")


def _joining(known: list[str]) -> set[str]:
    """Tags of which a text may hold a half, where the end of another tag of the template is the other half.

    Two of the shapes' tags can do so without either being left by the default; as literals they are looked for by halves.
    """
    begins = {tag[:end]: tag for tag in known for end in range(1, len(tag) + 1)}
    ends = {tag[start:]: tag for tag in known for start in range(len(tag))}
    found: set[str] = set()
    for tag in known:
        for at in range(1, len(tag)):
            left, right = tag[:at], tag[at:]
            if right in begins and left.strip() and neutralise(left) is left:
                found |= {tag, begins[right]}
            if left in ends and right.strip() and neutralise(right) is right:
                found |= {tag, ends[left]}
    return found
