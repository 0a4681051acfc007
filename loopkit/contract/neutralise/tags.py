"""Sets of control tags: a named default, a server's own literals, and the text that its template deletes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from loopkit.contract.neutralise.finder import Finder
from loopkit.contract.neutralise.shapes import LONGEST, SHAPES
from loopkit.encoding import encode, find_unencodable, sha256
from loopkit.errors import InvalidConfig

__all__ = ["DEFAULT", "Tags", "literal_fault"]


def literal_fault(literal: str) -> str | None:
    """Return why a control tag cannot be neutralised safely; None if it can. The message does not contain the tag.

    Parameters
    ----------
    literal : str
        A control tag, exactly as the model's vocabulary spells it.

    Examples
    --------
    >>> literal_fault("[ROLE]") is None
    True
    >>> literal_fault("a&b")
    'it contains an ampersand'
    """
    if (why := _cut_fault(literal)) is not None:
        return why
    if len(literal) > LONGEST:
        return f"it is longer than {LONGEST} characters"
    if literal[0] in "ltg#;0123456789":
        return "its first character also occurs in character entities"
    if not any(char.isalnum() or char in "\"'" for char in literal):
        return "it contains no letter, digit or quote"
    return None


def _cut_fault(cut: str) -> str | None:
    if len(cut) < 2 or cut.isspace():
        return "it is blank or a single character"
    if "&" in cut:
        return "it contains an ampersand"
    fault = find_unencodable(cut, "")
    return None if fault is None else fault[1]


@dataclass(frozen=True, repr=False)
class Tags:
    """A set of control tags: a default set of patterns, and tags of one model. ``a | b`` joins two sets.

    Sets with the same content are equal and have the same hash.

    Parameters
    ----------
    literals : iterable of str
        Tags that the default set does not cover, exactly as the model's vocabulary spells them.
    cuts : iterable of str
        Strings that the chat template deletes from messages, in the template's order. Deleting one can join two halves of a tag.
    shapes : str
        Name of the default set, such as ``"default-1"``. It covers the tags of all common model families.

    Attributes
    ----------
    id : str
        Name of the default set. If literals or cuts were added, a hash of the whole set (16 hex digits).

    Raises
    ------
    InvalidConfig
        If a literal or a cut cannot be neutralised safely (see :func:`literal_fault`), or if ``shapes`` is unknown.

    Examples
    --------
    >>> Tags.default()
    <Tags default-1: 0 literals, 0 cuts>
    >>> ours = Tags(literals=["[ROLE]"], cuts=["/think"])
    >>> ours == Tags.pinned(ours.id, ours.literals, ours.cuts)
    True
    >>> Tags(literals=["&"])
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidConfig: tags.literals[0]: it is blank or a single character. Remove it from the set
    """

    literals: tuple[str, ...] = ()
    cuts: tuple[str, ...] = ()
    shapes: str = "default-1"

    def __init__(self, literals: Iterable[str] = (), cuts: Iterable[str] = (), shapes: str = "default-1") -> None:
        if shapes not in SHAPES:
            known = ", ".join(SHAPES)
            raise InvalidConfig("tags.shapes", f"{shapes!a} is not the name of a default set", f"Choose one of: {known}")
        set_ = object.__setattr__
        set_(self, "literals", tuple(sorted(set(literals))))
        set_(self, "cuts", tuple(dict.fromkeys(cuts)))
        set_(self, "shapes", shapes)
        for name, words, fault in (("literals", self.literals, literal_fault), ("cuts", self.cuts, _cut_fault)):
            for index, word in enumerate(words):
                if (why := fault(word)) is not None:
                    raise InvalidConfig(f"tags.{name}[{index}]", why, "Remove it from the set")

    @staticmethod
    def default() -> Tags:
        """Return the newest default set, which covers all common model families."""
        return DEFAULT

    @staticmethod
    def named(id: str) -> Tags:
        """Return a default set by its name. Later versions of loopkit keep all released default sets.

        Parameters
        ----------
        id : str
            The name, such as ``"default-1"``.

        Raises
        ------
        InvalidConfig
            If no default set has this name.
        """
        return Tags(shapes=id)

    @staticmethod
    def pinned(id: str, literals: Sequence[str] | None = None, cuts: Sequence[str] | None = None) -> Tags:
        """Rebuild the set of control tags that a session's log records.

        Parameters
        ----------
        id : str
            The recorded :attr:`id` of the set.
        literals, cuts : sequence of str, optional
            The recorded literals and cuts of the set.

        Raises
        ------
        InvalidConfig
            If no default set together with these literals and cuts has this id.
        """
        for shapes in SHAPES:
            tags = Tags(literals or (), cuts or (), shapes)
            if tags.id == id:
                return tags
        raise InvalidConfig(
            "tags.id",
            f"{id!a} is neither the name of a default set ({', '.join(SHAPES)}) nor the hash of the recorded literals and cuts. "
            "A newer loopkit wrote the session, or its first record was changed",
            "Update loopkit, or start a new session",
        )

    @cached_property
    def id(self) -> str:
        """Name of the default set. If literals or cuts were added, a hash of the whole set (16 hex digits)."""
        if not (self.literals or self.cuts):
            return self.shapes
        return sha256(encode([self.shapes, self.literals, self.cuts]))[:16]

    def __or__(self, other: Tags) -> Tags:
        newer = max(self.shapes, other.shapes, key=list(SHAPES).index)
        return Tags(self.literals + other.literals, self.cuts + other.cuts, newer)

    def __repr__(self) -> str:
        return f"<Tags {self.id}: {len(self.literals)} literals, {len(self.cuts)} cuts>"

    def __reduce__(self) -> tuple[type[Tags], tuple[tuple[str, ...], tuple[str, ...], str]]:
        return Tags, (self.literals, self.cuts, self.shapes)

    @cached_property
    def _finder(self) -> Finder:
        return Finder.of(SHAPES[self.shapes], self.literals)


DEFAULT = Tags()
