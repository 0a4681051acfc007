"""Assignment of requests to conversations by their messages, because no header names the conversation.

Agents send their whole history with each request. So a request follows the earlier request whose messages its own messages start
with. If a client rewrote its history, the request belongs to the conversation with which it shares the most messages. In doubt, a
request starts a new conversation: no cached tokens are expected of it, so no false loss is reported. The time is linear in the
number of messages.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import accumulate
from typing import Any, NamedTuple

from msgspec import Raw

from loopkit.cache.prefixes.prompt_parts import MESSAGES, UNREAD
from loopkit.contract.json_position import first_difference
from loopkit.encoding import decode

__all__ = ["ConversationMatcher", "Placement"]

SYSTEM = ("system", "developer")
ANSWERS = ("assistant", "tool", "function")
ITEMS = ("reasoning", "function_call", "function_call_output")
"Item types of OpenAI's Responses API that are in a request only if a response came before it."
SIMILAR = 0.8
"Two messages count as versions of the same message if at least this share of their text is equal."
EMPTY_MESSAGE = len(b'{"role":"user","content":""}')
REMEMBERED_OPENINGS = 64
REMEMBERED_CONVERSATIONS = 8
"Number of conversations remembered for each message."


class Placement(NamedTuple):
    """The conversation of a request, and its place in this conversation."""

    conversation: int
    "Number of the conversation, from 0. Conversations are numbered in the order of their first requests."
    follows: int | None
    "Number of the request that it follows, from 0 in the order of the calls. None if it follows no other request."
    new: list[bytes]
    "Messages of the request that the conversation did not contain before, in order."


class ConversationMatcher:
    """Assigns request bodies to conversations. Pass the bodies in the order of their responses.

    Examples
    --------
    >>> def body(*texts):
    ...     turns = ", ".join(f'{{"role":"{"au"[i % 2]}", "content":"{text}"}}' for i, text in enumerate(texts, 1))
    ...     return f'{{"messages":[{turns}]}}'.replace('"u"', '"user"').replace('"a"', '"assistant"').encode()
    >>> found = ConversationMatcher()
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
        self._requests_with: dict[int, list[int]] = {}
        "Numbers of the requests with the same messages, by the hash of all these messages."
        self._conversation_of: list[int] = []
        "Conversation of each request."
        self._newest: list[int] = []
        "Newest request of each conversation."
        self._sizes: list[int] = []
        "Number of messages in each request."
        self._settings: list[int] = []
        "Hash of the members other than messages, for each request."
        self._conversations_with: dict[int, tuple[int, ...]] = {}
        "The last few conversations that contain a message, by the hash of the message."
        self._is_response: dict[int, bool] = {}
        "Whether a message comes from a response or a tool, by the hash of the message."
        self._openings: deque[tuple[int, list[bytes]]] = deque(maxlen=REMEMBERED_OPENINGS)
        "Number and messages of the first request of each recent conversation."

    def __len__(self) -> int:
        return len(self._conversation_of)

    def place(self, body: bytes) -> Placement:
        """Assign the next request to a conversation."""
        messages, members = _parts(body)
        digests = list(map(hash, messages))
        keys = list(accumulate(digests, lambda before, digest: hash((before, digest))))
        settings = hash(members)
        placement = self._find(messages, digests, keys, settings)
        request, known_conversations = len(self._conversation_of), len(self._newest)
        self._conversation_of.append(placement.conversation)
        if placement.conversation == len(self._newest):
            self._newest.append(request)
        self._newest[placement.conversation] = request
        self._sizes.append(len(messages))
        self._settings.append(settings)
        if keys:
            self._requests_with.setdefault(keys[-1], []).append(request)
        for digest in map(hash, placement.new) if placement.conversation < known_conversations else digests:
            known = self._conversations_with.get(digest, ())
            if placement.conversation not in known:
                self._conversations_with[digest] = (*known[1 - REMEMBERED_CONVERSATIONS :], placement.conversation)
        return placement

    def _find(self, messages: list[bytes], digests: list[int], keys: list[int], settings: int) -> Placement:
        answered = any(map(self._is_from_response, digests, messages))
        shared, before = 0, None
        for size in range(len(keys), 0, -1):
            requests = self._requests_with.get(keys[size - 1], ())
            newest = [each for each in requests if self._newest[self._conversation_of[each]] == each]
            if newest and (size < len(keys) or answered):
                request = next((each for each in newest if self._settings[each] == settings), newest[0])
                return Placement(self._conversation_of[request], request, messages[size:])
            if requests and size < len(keys) and before is None:
                shared, before = size, requests[-1]
        if answered:  # a request that contains no response cannot follow another
            first = shared or int(_role(messages[0]) in SYSTEM)
            kept = Counter(each for digest in set(digests[first:]) for each in self._conversations_with.get(digest, ()))
            candidates = ((count, self._newest[each]) for each, count in kept.items())
            ranked = [(count, self._settings[newest] == settings, newest) for count, newest in candidates]
            count, _, request = max(ranked, default=(0, False, 0))
            if count and 2 * count >= min(len(messages), self._sizes[request]) - first:
                which = self._conversation_of[request]
                new = [
                    text
                    for text, digest in zip(messages, digests, strict=True)
                    if which not in self._conversations_with.get(digest, ())
                ]
                return Placement(which, request, new)
            for request, opening in reversed(self._openings if before is None else ()):
                which = self._conversation_of[request]
                is_open = self._newest[which] == request and self._settings[request] == settings
                if is_open and _is_rewritten(opening, messages):
                    return Placement(which, request, [text for text in messages if text not in opening])
        else:
            self._openings.append((len(self._conversation_of), messages))
        return Placement(len(self._newest), before, messages[shared:])

    def _is_from_response(self, digest: int, message: bytes) -> bool:
        known = self._is_response.get(digest)
        if known is None:
            known = self._is_response[digest] = _role(message) in (*ANSWERS, *ITEMS)
        return known


def _is_rewritten(opening: list[bytes], messages: list[bytes]) -> bool:
    """Return True if a request repeats the first request of a conversation with a small change in one message.

    ``opening`` has the messages of that first request.
    """
    changed = [(was, now) for was, now in zip(opening, messages) if was != now]
    answers = [_role(message) in (*ANSWERS, *ITEMS) for message in messages[len(opening) :]]
    if len(changed) != 1 or not answers or not answers[0] or answers.count(False) > 1:
        return False
    was, now = changed[0]
    alike = first_difference(was, now)
    alike += first_difference(was[:alike:-1], now[:alike:-1])
    return alike - EMPTY_MESSAGE >= SIMILAR * (max(len(was), len(now)) - EMPTY_MESSAGE)


def _parts(body: bytes) -> tuple[list[bytes], tuple[tuple[str, bytes], ...]]:
    """Return the messages of a body, and its other members that the chat template may use."""
    try:
        members = decode(body, dict[str, Raw])
    except ValueError:
        return [], ()
    listed = next((name for name in MESSAGES if bytes(members.get(name, b""))[:1] == b"["), None)
    messages = [] if listed is None else decode(bytes(members.pop(listed)), list[Raw])
    return list(map(bytes, messages)), tuple((name, bytes(value)) for name, value in members.items() if name not in UNREAD)


def _role(message: bytes) -> str:
    """Return the role of a message, or the type of an item without a role."""
    try:
        value: Any = decode(message)
    except ValueError:
        return ""
    return str(value.get("role") or value.get("type") or "") if isinstance(value, dict) else ""
