r"""The tag shapes of every named default: regular expressions and exact literals.

No tag is spelled out here. Expressions and literals are built from pieces, because a model may read this file.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["LONGEST", "SHAPES", "Shapes"]

LONGEST = 128
"Maximum characters of a literal. The longest tag of any known vocabulary has less than half as many."


class Shapes(NamedTuple):
    """One version of the tag shapes. A released version never changes."""

    after: dict[str, str]
    "First character of a tag -> regular expression for the rest of all tags that begin with it. Every repeat has an upper bound."
    literals: tuple[str, ...]
    "Tags that are matched exactly. A half of one is also found at the start or end of a text."
    heads: tuple[str, ...]
    "Expressions for second halves of tags. At the start of a text, they complete a tag that the text before it begins."
    tails: tuple[str, ...]
    "Expressions for first halves of tags. At the end of a text, they begin a tag that the text after it completes."


def _default_1() -> Shapes:
    bar, gt, lsb, rsb = "[|\uff5c]", "[>\uff1e\ufe65]", "[", "]"
    inner = "[^<>\uff1c\uff1e\ufe64\ufe65|\uff5c&\n]"
    # A space beside a bar is not allowed, because functional languages have such operators. A letter or digit is required.
    piped = rf"{bar}(?!\s)(?={inner}{{0,63}}[^\W_]){inner}{{1,64}}(?<!\s){bar}{gt}"
    angled = (
        piped,
        r"\|[a-z][a-z_]{2,31}>",
        r"[a-z][a-z_]{2,31}\|>",
        r"(?:start|end|begin|beginning)_of_[A-Za-z0-9_]{1,64}>",
        r"/?(?:seed|minimax|mm|dsml|atem):[\w.-]{1,64}>",
        r"/?dsml:",  # this token has no closing bracket
        r"/?(?:think|tool_calls?|tool_responses?|tool_results?|tool_sep|tool_def_sep|arg_key|arg_value)(?::[\w.-]{1,32})?>",
        r"/?(?:TOOLCALL|TOOL_RESPONSE|AVAILABLE_TOOLS)(?::[\w.-]{1,32})?>",
        r"(?:unused|extra_id_|SPECIAL_|reserved_)[0-9]{1,6}>",
        r"(?:/s|bos|eos|pad|sop|eop|eoh|eoa|2mass|BOS_TOKEN|EOS_TOKEN|EOP_TOKEN|MASK_TOKEN)>",
        # Excluded after a word (generic types) and after a question mark (named groups of regular expressions).
        r"(?<![\w?]<)(?:s|unk)>",
        r"(?:fim[-_](?:prefix|suffix|middle|pad|repo|sep)|file_sep)>",
        "(?<=\u2581<)(?:PRE|SUF|MID|EOT)>",
        r"__(?:media|image)[A-Za-z0-9_]{0,64}__>",
        r"</?SYS>>",
    )
    squared = (
        r"/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS|TOOL_CALLS|TOOL_CONTENT|CALL_ID|THINK|MODEL_SETTINGS)\]",
        r"(?:IMG_BREAK|IMG_END|BEGIN_AUDIO|STREAMING_PAD|STREAMING_WORD|[gs]MASK|BOS|EOS|EOT|@BOS@)\]",
        r"\|(?:system|user|assistant|tool|endofturn)\|\]",
    )
    named = r"<\][A-Za-z0-9_][A-Za-z0-9_ ]{0,31}\[>"  # the inside of the only shape with brackets on both sides
    return Shapes(
        after={
            "<": "|".join(angled),
            "\uff1c": piped,
            "\ufe64": piped,
            "[": "|".join(squared),
            "]": named + r"\[",
            ">": ">(?:TITLE|ABSTRACT|INTRODUCTION|SUMMARY|COMMENT|ANSWER|QUESTION|DOMAIN|PREFIX|SUFFIX|MIDDLE)<<",
            "|": r"\|\|(?:IP_ADDRESS|EMAIL_ADDRESS|PHONE_NUMBER)\|\|\|",
        },
        literals=("<" + '|"|' + ">", rsb + "~b" + rsb, rsb + "~!b" + lsb, lsb + "e~" + lsb, "\uff5c" + "DSML" + "\uff5c"),
        heads=(named + r"\[",),
        tails=(r"\]" + named,),
    )


SHAPES = {"default-1": _default_1()}
"All versions ever released, by name, oldest first. A session's log contains the name of the version that it uses."
