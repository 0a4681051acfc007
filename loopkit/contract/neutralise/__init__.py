"""Control tags in text from outside, rewritten so that no server takes them for tokens.

A control tag is the text of a special token, such as the one that ends a message. A server parses special tokens in the whole
rendered prompt. A fetched page that spells out a tag could end the current message or start a fake one. `neutralise` replaces the
brackets of each tag by character entities. The text stays readable, and the server reads plain text instead of a token.
Ampersands stay as they are, so nothing is escaped twice.

Why no tag is left: a tag contains no ampersand, and its first character never occurs in an entity. Replacing brackets therefore
never creates a tag. Any tag left in the output was already in the input, and the search is repeated until it finds nothing.

This does not protect against injection in plain language, look-alike characters, roles written as plain text, or a tag that the
model itself writes.

This package's source and error messages never spell out a tag, because a model may read them.
"""

from loopkit.contract.neutralise.escaping import Neutralised, neutralise, neutralise_report
from loopkit.contract.neutralise.tags import DEFAULT, Tags, literal_fault

__all__ = ["DEFAULT", "Neutralised", "Tags", "literal_fault", "neutralise", "neutralise_report"]
