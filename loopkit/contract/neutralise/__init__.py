"""Control tags in text from outside, rewritten so that no server takes them for tokens.

A server parses special tokens in the whole rendered prompt. A fetched page that spells out a tag could end a message or forge
another. `neutralise` replaces the brackets of each tag by character entities: the text stays readable, and the tag is no longer
a token. Ampersands are never touched, so nothing is escaped twice.

Why no tag is left: a tag contains no ampersand, and its first character never occurs in an entity. A tag in the output would
therefore have been in the input, unmarked. The search is repeated until it finds nothing.

This is no defence against plain-language injection, look-alike characters, roles written as plain text, or a tag that the model
itself writes.

No tag is spelled out in this package, not even in an error message, since a model may read it.
"""

from loopkit.contract.neutralise.escaping import Neutralised, neutralise, neutralise_report
from loopkit.contract.neutralise.tags import DEFAULT, Tags, literal_fault

__all__ = ["DEFAULT", "Neutralised", "Tags", "literal_fault", "neutralise", "neutralise_report"]
