"""A conversation as page blocks, built from the records of a log and updated by the events of a turn."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from loopkit.cache.losses.cause_texts import because
from loopkit.contract.records import Assistant, CacheLoss, EpochEnd, LogRecord, SessionStart, ToolResult, Usage, UsageRecord, User
from loopkit.loop.display import NEXT_STEPS
from loopkit.loop.events import RequestSent, Stopped, ToolCalled, TurnEvent, add_up
from loopkit.reprs import counted, shown
from loopkit.server.completion.deltas import Progress, ReasoningDelta, TextDelta
from loopkit.widgets.rendering import PageBlock

__all__ = ["ChatTranscript", "lost_line"]

KEPT = 200
"Largest number of finished blocks. Older blocks are dropped; the log still contains their records."
INTERRUPTED = "the unfinished response was not logged. Ask again, or press Continue if tool results wait for a response"


class ChatTranscript:
    """The conversation of a session as page blocks. It can be updated in one thread and read in another.

    Parameters
    ----------
    records : iterable of LogRecord
        Records of a session's epochs, in order.

    Examples
    --------
    >>> transcript = ChatTranscript([User(time="2026-11-30T07:31:05.000000Z", content="Hi.")])
    >>> transcript.take(TextDelta("Do"))
    >>> transcript.take(TextDelta("ne."))
    >>> transcript.blocks()
    ([PageBlock(head='you', text='Hi.', folded=False)], [PageBlock(head='model', text='Done.', folded=False)])
    """

    def __init__(self, records: Iterable[LogRecord] = ()) -> None:
        self._lock = threading.RLock()  # one thread adds events, another reads
        self.requests = self.lost_tokens = 0
        self.usage = Usage()
        self._settled: deque[PageBlock] = deque(maxlen=KEPT)
        self._gone = 0
        self._calls: deque[str] = deque()
        self._clear()
        for record in records:
            self.take(record)

    def _clear(self) -> None:
        self._thought: list[str] = []
        self._answer: list[str] = []
        self._doing = ""

    def blocks(self) -> tuple[list[PageBlock], list[PageBlock]]:
        """Return the finished blocks, and the blocks that are still being written."""
        with self._lock:
            parts = counted(self._gone, "earlier part is", "earlier parts are")
            gone = [PageBlock("…", f"{parts} only in the log")] if self._gone else []
            return [*gone, *self._settled], self._unsettled()

    def _unsettled(self) -> list[PageBlock]:
        thought, answer = "".join(self._thought), "".join(self._answer)
        parts = [PageBlock("thought", thought, folded=True), PageBlock("model", answer), PageBlock("now", self._doing)]
        return [part for part in parts if part.text]

    def counts(self) -> list[tuple[str, str]]:
        """Return the token totals of all requests as pairs of name and text; empty before the first request."""
        return [*_counts(self.usage), ("lost", f"{self.lost_tokens:,}")] if self.requests else []

    def asked(self, text: str) -> None:
        """Add a block with a message of the user."""
        self._add(PageBlock("you", text))

    def note(self, text: str) -> None:
        """Add a block with a note, such as a warning."""
        self._add(PageBlock("note", text))

    def take(self, event: TurnEvent | LogRecord) -> None:
        """Update the blocks with an event of a running turn or with a record of a log."""
        with self._lock:
            self._take(event)

    def _take(self, event: TurnEvent | LogRecord) -> None:
        match event:
            case User():
                self.asked(event.content)
            case Assistant():
                self._thought = [event.reasoning_content or ""]
                self._answer = [event.content or ""]
                self._settle()
                self._calls += [call.function.arguments for call in event.calls()]
            case RequestSent():
                self._clear()  # drop the text of a failed response
                self._doing = f"request {event.request} sent: {event.request_bytes:,} bytes, {event.new_bytes:,} of them new"
            case Progress():
                self._doing = f"{event.processed:,} of {event.total:,} prompt tokens processed, {event.cached:,} of them reused"
            case TextDelta():
                self._answer.append(event.text)
            case ReasoningDelta():
                self._thought.append(event.text)
            case ToolCalled():
                self._settle()
                self._calls.append(event.arguments)
                self._doing = f"running {event.name}"
            case ToolResult():
                self._settle()
                arguments = self._calls.popleft() if self._calls else ""
                text = f"{shown(arguments, 400)}\n→ {event.content}"
                self._add(PageBlock(f"tool {event.name} → {event.status}", text, folded=True))
            case UsageRecord():
                self._settle()
                self.requests += 1
                self.usage = add_up([self.usage, event.usage])
                self._add(PageBlock(f"request {event.request}", ", ".join(map(" ".join, _counts(event.usage)))))
            case CacheLoss():
                self.lost_tokens += event.lost_tokens
                self._add(
                    PageBlock(
                        "lost", lost_line(event.lost_tokens, event.cause, event.certainty, event.fixable_by, event.location)
                    )
                )
            case EpochEnd():
                self._add(PageBlock("epoch ended", event.reason))
            case SessionStart() if event.epoch:
                self._add(PageBlock("epoch", str(event.epoch)))
            case Stopped():
                self._stopped(event.reason)
            case _:
                return

    def _stopped(self, reason: str) -> None:
        self._settle()
        if reason != "done":
            then = INTERRUPTED if reason == "interrupted" else NEXT_STEPS.get(reason, "")
            self._add(PageBlock("stopped", "; ".join(filter(None, (reason, then)))))

    def ended(self) -> None:
        """Finish the blocks of the turn. Call this after every turn, also after an error."""
        with self._lock:
            self._settle()

    def _settle(self) -> None:
        self._doing = ""
        for part in self._unsettled():
            self._add(part)
        self._clear()

    def _add(self, block: PageBlock) -> None:
        with self._lock:
            self._gone += len(self._settled) == KEPT
            self._settled.append(block)


def _counts(usage: Usage) -> list[tuple[str, str]]:
    counts = (("reused", usage.cached_tokens), ("processed", usage.read_tokens), ("written", usage.completion_tokens))
    return [(name, "not reported" if count is None else f"{count:,}") for name, count in counts]


def lost_line(tokens: int, cause: str | None, certainty: str | None, fixable_by: str | None, location: str | None) -> str:
    """Return a sentence with the lost tokens, their cause, and details in brackets.

    Examples
    --------
    >>> lost_line(1200, "slot_taken", "confirmed", "client", None)
    '1,200 tokens lost because another request used the slot in between (slot_taken, confirmed, fixable by client)'
    """
    about = (cause, certainty, f"fixable by {fixable_by}" if fixable_by else "", f"at {location}" if location else "")
    return f"{counted(tokens, 'token')} lost {because(cause)} ({', '.join(filter(None, about))})"
