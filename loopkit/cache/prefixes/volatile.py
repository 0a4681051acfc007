"""Volatile spans of a text: clocks, dates, ids, counters.

In a system prompt, text that changes is soon out of date, or each update of it causes a cache loss. `find_volatile` sees only one
text and cannot know whether a span changes. It also finds fixed dates and hashes, so a result is a warning. Opening hours,
versions, prices, ranges, years, numbered steps, references ("issue #12") and colours are not found. The time is linear in the
length of the text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Volatile", "find_volatile"]


class Volatile(NamedTuple):
    """A span of a text that probably changes from request to request, such as a clock."""

    kind: str
    "One of ``time``, ``date``, ``timestamp``, ``uuid``, ``process_id``, ``temporary_path``, ``counter`` and ``nonce``."
    start: int
    "Offset of the first character in the text."
    end: int
    "Offset after the last character."
    text: str
    "The characters of the span."


_MONTH = (
    "(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?"
    r"|Nov(?:ember)?|Dec(?:ember)?)\.?"
)
_WEEKDAY = "(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_YEAR, _DAY = r"(?:19|20)\d\d", r"(?:0?[1-9]|[12]\d|3[01])"
_MONTH_2, _DAY_2 = r"(?:0[1-9]|1[0-2])", r"(?:0[1-9]|[12]\d|3[01])"
_ISO = rf"{_YEAR}(?:-{_MONTH_2}-{_DAY_2}|/{_MONTH_2}/{_DAY_2})"
_CLOCK = r"(?:[01]?\d|2[0-3]):[0-5]\d"
_SECONDS = r":[0-5]\d(?:[.,]\d{1,9})?"
_HALF = r"(?:\s?[AaPp]\.?[Mm]\b\.?)"
_ZONE = r"(?:\s?(?:Z\b|UTC\b|GMT\b|[+-]\d\d:?\d\d\b))"
_WRITTEN = (
    rf"(?:{_WEEKDAY},?\s)?(?:{_DAY}(?:st|nd|rd|th)?\.?\s(?:of\s)?{_MONTH},?\s{_YEAR}"
    rf"|{_MONTH}\s{_DAY}(?:st|nd|rd|th)?,?\s{_YEAR})"
    rf"|{_WEEKDAY},?\s(?:the\s)?(?:{_DAY}(?:st|nd|rd|th)?\.?\s(?:of\s)?{_MONTH}|{_MONTH}\s{_DAY}(?:st|nd|rd|th)?)"
)
_NUMERIC = rf"(?:{_DAY}[./]{_DAY}[./]{_YEAR})"
_DATE = rf"(?<![\w./-])(?:{_ISO}|{_NUMERIC}|{_WRITTEN})(?![\w/-]|\.\d)"
_NOW = r"(?i:\b(?:now|current(?:\slocal)?\stime|local\stime|the\stime|it\sis|it's|as\sof)(?:\s(?:is|now)){0,2}[\s:=]{1,3})"
_COUNTED = "(?i:requests?|messages?|tokens?|turns?|calls?|steps?|attempts?|rounds?|iterations?|credits?)"
_NUMBER = r"\d[\d,_]{0,15}"
_ID = "(?:request|session|run|trace|span|correlation|conversation|message|thread|job|task|user)"

# At each position, the first pattern that matches gives the kind. Matches of "stable" are not volatile and are skipped.
_PATTERNS = {
    "stable": (
        r"(?i:\b(?:issue|pr|bug|ticket|pull\srequest|section|chapter|rule|item|figure|table|no\.)\s?)#\d+"
        r"|#(?:[0-9A-Fa-f]{8}|[0-9A-Fa-f]{6}|[0-9A-Fa-f]{3}|1)\b"
    ),
    "time": (
        rf"(?<![\w./-])(?:{_ISO}|{_YEAR}{_MONTH_2}{_DAY_2})(?:T|\s|,\s|\sat\s)(?:{_CLOCK}(?:{_SECONDS})?|\d{{6}}){_HALF}?{_ZONE}?(?![\w:])"
        rf"|(?<![\w./-])(?:{_NUMERIC}|{_WRITTEN})(?:,?\s(?:at\s)?){_CLOCK}(?:{_SECONDS})?{_HALF}?{_ZONE}?(?![\w:])"
        rf"|(?<![\w:.]){_CLOCK}{_SECONDS}{_HALF}?{_ZONE}?(?![\w:])"
        rf"|{_NOW}(?:{_CLOCK}{_HALF}?|(?:1[0-2]|0?[1-9]){_HALF}){_ZONE}?(?![\w:])"
    ),
    "date": rf"{_DATE}|(?i:\btoday(?:'s\sdate)?(?:\sis)?:?\s)(?:{_WRITTEN}|{_DAY}\s{_MONTH}|{_MONTH}\s{_DAY}|{_WEEKDAY})(?!\w)",
    "uuid": r"(?<![\w-])[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}(?![\w-])",
    "process_id": r"(?i:\bp?pid|\bprocess\sid)[\"']?(?:\s?[:=]\s?|\s(?:is\s)?)\d{1,10}\b",
    "temporary_path": (
        r"(?<![\w.~/-])(?:/private)?/(?:(?:var/)?tmp|var/folders|dev/shm)/[^\s\"'`<>|;,()\[\]{}]*[\w/-]"
        r"|\bAppData[\\/]{1,2}Local[\\/]{1,2}Temp[\\/]{1,2}[^\s\"'`<>|;,()\[\]{}]*[\w\\/-]"
    ),
    "counter": (
        r"(?<![\w&#/])(?<!\]\()#\d{1,9}\b(?![.-]\d)"
        r"|(?i:\b(?:request|iteration)\s)\d{1,9}\b(?=\s*(?:[.,;:!?)\]]|$|of\b|/))"
        r"|(?i:\b(?:request|iteration|turn|round|attempt|call|message|run|session|query)\s?"
        r"(?:(?:number|no\.|nr\.?)\s?|[#:=]\s?))\d{1,9}\b(?![.:-]\d)"
        r"|(?i:\b(?:turn|round|attempt|call|message|run|session|query)\s)\d{1,9}(?:\s?/\s?\d|\sof\b)"
        rf"|(?i:\b{_COUNTED}\s(?:left|remaining|used|so\sfar)\b)(?:\s?[:=]\s?|\sis\s|\s){_NUMBER}"
        rf"|(?i:\b(?:remaining|used)\s){_COUNTED}\s?[:=]\s?{_NUMBER}"
        rf"|(?<![\w.,]){_NUMBER}\s{_COUNTED}\s(?i:left|remaining|used|so\sfar)\b"
        r"|(?<![\w.,])\d{1,3}(?:\.\d{1,3})?\s?%\s(?i:used|left|remaining|of\s(?:the\s)?context)\b"
        rf"|(?i:\buptime)\s?[:=]?\s?{_NUMBER}"
    ),
    "timestamp": r"(?<![A-Za-z0-9,.+])1[5-9]\d{8}(?:\d{3}){0,3}(?:\.\d{1,9})?(?![A-Za-z0-9]|[.,]\d)",
    "nonce": (
        r"(?i:\bnonce[\"']?\s?[:=]\s?[\"']?)[\w+/=-]{4,}"
        rf"|(?i:\b{_ID}[ _-]?id[\"']?\s?[:=]\s?[\"']?)(?=[\w-]{{0,64}}\d)[\w-]{{4,}}"
        r"|\b(?:call|chatcmpl|msg|req|resp|run|sess|thread|toolu)[_-](?=[A-Za-z]{0,64}\d)[A-Za-z0-9]{16,}\b"
        r"|\b0x[0-9A-Fa-f]{8,16}\b"  # an address, as in the repr of a Python object
    ),
    "maybe_nonce": r"(?<![A-Za-z0-9])[A-Za-z0-9]{16,}",
}
# No match begins inside a run of letters. Checking this once, before all patterns, is faster than checking it in each.
_ANY = re.compile(
    r"(?=[\w#/])(?:(?<![A-Za-z])|(?![A-Za-z]))(?:" + "|".join(f"(?P<{kind}>{each})" for kind, each in _PATTERNS.items()) + ")",
    re.MULTILINE,
)


def find_volatile(text: str) -> tuple[Volatile, ...]:
    """Find the volatile spans of a text.

    Parameters
    ----------
    text : str
        The text to search, such as a system prompt or a message.

    Returns
    -------
    tuple of Volatile
        The spans in the order of the text. They do not overlap.

    Examples
    --------
    >>> for span in find_volatile("Now: 2026-11-30 07:31:05, turn 3 of 9. Open from 9:00 to 17:00, v1.2.3."):
    ...     print(span)
    Volatile(kind='time', start=5, end=24, text='2026-11-30 07:31:05')
    Volatile(kind='counter', start=26, end=35, text='turn 3 of')
    """
    found = []
    for match in _ANY.finditer(text):
        kind = match.lastgroup or ""
        if kind == "maybe_nonce" and _looks_random(match.group()):
            kind = "nonce"
        if kind not in ("stable", "maybe_nonce"):
            found.append(Volatile(kind, match.start(), match.end(), match.group()))
    return tuple(found)


def _looks_random(word: str) -> bool:
    """Return True if a word looks like a random id.

    Random ids alternate between letters, digits and cases more often than names in code do.
    """
    digits = sum(char.isdigit() for char in word)
    if not 1 < digits < len(word):
        return False
    if re.fullmatch("[0-9a-f]+|[0-9A-F]+", word):
        return True
    if len(word) < 20:
        return False
    kinds = "".join("0" if char.isdigit() else "A" if char.isupper() else "a" for char in word)
    changes = kinds.count("aA") + 2 * sum(kinds.count(pair) for pair in ("a0", "0a", "A0", "0A"))
    return 9 * changes >= 5 * len(word)
