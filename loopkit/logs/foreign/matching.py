"""Which conversation a request goes on with: found by what stands in it, for no header says so.

An agent sends its whole history each time, so a request goes on from the one whose messages it begins with. Where a client has
rewritten its history, none does; then the conversation counts whose messages it holds still, apart from what it begins with. In
doubt a request begins a conversation: of its cache nothing is expected then, and no loss is made up. Linear in what comes in.
Knows nothing of files, answers or tokens.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import accumulate
from typing import Any, NamedTuple

from msgspec import Raw

from loopkit.cache.prefixes.prompt_parts import MESSAGES, UNREAD
from loopkit.contract.request import first_difference
from loopkit.encoding import decode

__all__ = ["Conversations", "Placed"]

SYSTEM = ("system", "developer")
ANSWERS = ("assistant", "tool", "function")
ITEMS = ("reasoning", "function_call", "function_call_output")
"Kinds of OpenAI's responses that only an answer can have brought in."
ALIKE = 0.8
"The share of a message's text that makes it another form of one, where nothing else tells."
FRAME = len(b'{"role":"user","content":""}')
MANY = 64
FEW = 8
"Of so many conversations it is known that they hold a message; more would say nothing."


class Placed(NamedTuple):
    """Where a request belongs."""

    conversation: int
    "0, 1, 2, … in the order in which they began."
    follows: int | None
    "The request that it goes on from, by its place in the sequence; None where it begins a conversation."
    new: list[bytes]
    "Its messages that were not in the conversation before, in order."


class Conversations:
    """Takes the bodies of completed requests in the order in which their answers ended.

    Examples
    --------
    >>> def body(*texts):
    ...     turns = ", ".join(f'{{"role":"{"au"[i % 2]}", "content":"{text}"}}' for i, text in enumerate(texts, 1))
    ...     return f'{{"messages":[{turns}]}}'.replace('"u"', '"user"').replace('"a"', '"assistant"').encode()
    >>> found = Conversations()
    >>> for texts in (["Hi"], ["Ho"], ["Hi", "Yes?", "Go"], ["Ho", "No.", "On"], ["HI", "Yes?", "Go", "Gone.", "Well"]):
    ...     place = found.place(body(*texts))
    ...     print(place.conversation, place.follows, len(place.new))
    0 None 1
    1 None 1
    0 0 2
    1 1 2
    0 2 3
    """

    def __init__(self) -> None:
        self._bodies: dict[int, list[int]] = {}
        "Requests by all their messages."
        self._of: list[int] = []
        "The conversation of each request."
        self._newest: list[int] = []
        "Of each conversation its newest request."
        self._sizes: list[int] = []
        "Messages of each request."
        self._heads: list[int] = []
        self._said: dict[int, tuple[int, ...]] = {}
        "The conversations that a message was in, the last few of them."
        self._answers: dict[int, bool] = {}
        "Whether a message is of an answer."
        self._openings: deque[tuple[int, list[bytes]]] = deque(maxlen=MANY)
        "First requests of conversations, the last ones."

    def __len__(self) -> int:
        return len(self._of)

    def place(self, body: bytes) -> Placed:
        """Place the next request."""
        messages, members = _parts(body)
        digests = list(map(hash, messages))
        keys = list(accumulate(digests, lambda before, digest: hash((before, digest))))
        head = hash(members)
        placed = self._find(messages, digests, keys, head)
        request, begun = len(self._of), len(self._newest)
        self._of.append(placed.conversation)
        if placed.conversation == len(self._newest):
            self._newest.append(request)
        self._newest[placed.conversation] = request
        self._sizes.append(len(messages))
        self._heads.append(head)
        if keys:
            self._bodies.setdefault(keys[-1], []).append(request)
        for digest in map(hash, placed.new) if placed.conversation < begun else digests:  # what is not new was said in it
            known = self._said.get(digest, ())
            if placed.conversation not in known:
                self._said[digest] = (*known[1 - FEW :], placed.conversation)
        return placed

    def _find(self, messages: list[bytes], digests: list[int], keys: list[int], head: int) -> Placed:
        answered = any(map(self._is_answer, digests, messages))
        begun, before = 0, None
        for size in range(len(keys), 0, -1):
            requests = self._bodies.get(keys[size - 1], ())
            newest = [each for each in requests if self._newest[self._of[each]] == each]
            if newest and (size < len(keys) or answered):
                request = next((each for each in newest if self._heads[each] == head), newest[0])
                return Placed(self._of[request], request, messages[size:])
            if requests and size < len(keys) and before is None:
                begun, before = size, requests[-1]
        if answered:  # else nothing says that it goes on from anything
            first = begun or int(_role(messages[0]) in SYSTEM)
            kept = Counter(each for digest in set(digests[first:]) for each in self._said.get(digest, ()))
            likely = [(count, self._heads[self._newest[each]] == head, self._newest[each]) for each, count in kept.items()]
            count, _, request = max(likely, default=(0, False, 0))
            if count and 2 * count >= min(len(messages), self._sizes[request]) - first:
                which = self._of[request]
                new = [text for text, digest in zip(messages, digests, strict=True) if which not in self._said.get(digest, ())]
                return Placed(which, request, new)
            for request, opening in reversed(self._openings if before is None else ()):
                if self._newest[self._of[request]] == request and self._heads[request] == head and _rewritten(opening, messages):
                    return Placed(self._of[request], request, [text for text in messages if text not in opening])
        else:
            self._openings.append((len(self._of), messages))
        return Placed(len(self._newest), before, messages[begun:])

    def _is_answer(self, digest: int, message: bytes) -> bool:
        known = self._answers.get(digest)
        if known is None:
            known = self._answers[digest] = _role(message) in (*ANSWERS, *ITEMS)
        return known


def _rewritten(opening: list[bytes], messages: list[bytes]) -> bool:
    """Whether a second request has one message of the first in another form, most of its text kept, and all others."""
    changed = [(was, now) for was, now in zip(opening, messages) if was != now]
    answers = [_role(message) in (*ANSWERS, *ITEMS) for message in messages[len(opening) :]]
    if len(changed) != 1 or not answers or not answers[0] or answers.count(False) > 1:
        return False
    was, now = changed[0]
    alike = first_difference(was, now)
    alike += first_difference(was[:alike:-1], now[:alike:-1])
    return alike - FRAME >= ALIKE * (max(len(was), len(now)) - FRAME)


def _parts(body: bytes) -> tuple[list[bytes], tuple[tuple[str, bytes], ...]]:
    """The messages of a body, and what else of it a template may read."""
    try:
        members = decode(body, dict[str, Raw])
    except ValueError:
        return [], ()
    listed = next((name for name in MESSAGES if bytes(members.get(name, b""))[:1] == b"["), None)
    messages = [] if listed is None else decode(bytes(members.pop(listed)), list[Raw])
    return list(map(bytes, messages)), tuple((name, bytes(value)) for name, value in members.items() if name not in UNREAD)


def _role(message: bytes) -> str:
    """Who a message is of, or what kind of item it is."""
    try:
        value: Any = decode(message)
    except ValueError:
        return ""
    return str(value.get("role") or value.get("type") or "") if isinstance(value, dict) else ""
