"""llama-server's log: prompt, cached, processed and generated tokens of each slot task. A task is a request.

The log has no texts and no absolute times. A task follows the request whose tokens it found in the cache completely, in any slot.
It also follows the last request in its slot, if at least half of that was reused. A task in doubt starts a conversation, of which
nothing is expected. Conversations are called ``<file>.1``, ``<file>.2``, …. Reads the log formats of 2025 and 2026.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from loopkit.contract.records import Usage
from loopkit.engines.llama_cpp import LlamaCpp
from loopkit.logs.foreign.entries import Entry, RequestEntry
from loopkit.logs.foreign.text_source import TextSource

__all__ = ["NAME", "entries", "recognises"]

NAME = "llama_server"

SLOT = re.compile(rb"\bslot +[^|]*?: id +(\d+) \| task +-?\d+ \|(.*)")
TIMING = re.compile(rb"\b(prompt eval|eval) time = +([\d.]+) ms / +(\d+) (?:tokens|runs)")
PROMPT = re.compile(rb"new prompt, .*(?:task\.n_tokens|n_prompt_tokens) = (\d+)")
TAKEN = re.compile(rb"(?:memory_seq_rm|kv cache rm) \[(\d+), end\)")
KEPT = re.compile(rb"selected slot by LCP similarity.* f_keep = ([\d.]+)")
LIKE = re.compile(rb"selected slot by lc[sp] similarity.* similarity = ([\d.]+)", re.I)
ENDED = re.compile(rb"stop processing: (?:n_tokens|n_past) = (\d+), truncated = (\d)")
BEGUN = re.compile(rb"selected slot|processing task")
MODEL = re.compile(rb"loading model '([^']*)'")
FORCED = b"forcing full prompt re-processing"
HALF = 0.5


class _ServerRun(Struct, eq=False):
    """A run of the server. Its caches are empty at the start."""

    model: str | None = None
    started: bool = True


class _Task(Struct, eq=False):
    """A task of a slot, filled in line by line."""

    slot: bytes
    kept: float = 0.0
    "Share of the slot's tokens that this prompt starts with."
    prompt: int | None = None
    cached: int | None = None
    read: int | None = None
    read_ms: float | None = None
    written: int | None = None
    written_ms: float | None = None
    forced: bool = False
    held: int | None = None
    "Tokens in the slot at the end of the task."
    cut: bool = False

    @property
    def answered(self) -> bool:
        return self.read is not None and self.written is not None

    def usage(self) -> Usage:
        """Return the usage. Missing counts are computed from the slot's tokens at the end, if none were truncated."""
        prompt, cached = self.prompt, self.cached
        if prompt is None and self.held is not None and self.written is not None and not self.cut:
            prompt = self.held - max(0, self.written - 1)
        if cached is None and prompt is not None and self.read is not None and self.read <= prompt:
            cached = prompt - self.read
        return Usage(
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=self.written,
            prompt_ms=self.read_ms,
            predicted_ms=self.written_ms,
        )


class _LatestRequest(Struct, eq=False):
    """The newest request of a conversation, and its cached tokens."""

    session: str
    number: int
    tokens: int


class _CacheContents:
    """The contents of the slots and the host cache."""

    def __init__(self) -> None:
        self._slots: dict[bytes, _LatestRequest] = {}
        self._known: dict[str, _LatestRequest] = {}
        "ConversationMatcher, the one that went on last at the end."

    def find_previous(self, task: _Task, usage: Usage) -> _LatestRequest | None:
        """Return the request that a task follows, or None."""
        cached, before = usage.cached_tokens or 0, self._slots.get(task.slot)
        before = before if before in self._known.values() else None
        whole = [each for each in self._known.values() if each.tokens == cached and cached]
        if whole:
            return before if before in whole else whole[-1]
        enough = before is not None and max(task.kept, cached / max(1, before.tokens)) >= HALF
        return before if enough else None

    def put(self, slot: bytes, now: _LatestRequest, before: _LatestRequest | None) -> None:
        if before is not None:
            del self._known[before.session]
        self._slots[slot] = self._known[now.session] = now

    def forget(self, task: _Task) -> None:
        """Forget the slot of a cancelled task, unless the task was refused before it changed the slot."""
        before = self._slots.get(task.slot)
        if before is not None and before.tokens != task.held:
            del self._slots[task.slot]


def recognises(head: bytes) -> bool:
    """Return True if a file with these first bytes is a log of llama-server.

    Examples
    --------
    >>> recognises(b"0.00.390.513 I slot get_availabl: id  1 | task -1 | selected slot by LRU, t_last = -1")
    True
    """
    return SLOT.search(head) is not None or ((b"llama_model_load" in head or b"load_model:" in head) and b"srv " in head)


def entries(source: TextSource, *, texts: bool) -> Iterator[Entry]:
    """Yield the entries of a log, which has no texts."""
    cache = _CacheContents()
    model, sessions = None, 0
    for number, (task, run) in enumerate(_tasks(source)):
        if run.started:
            cache, model, run.started = _CacheContents(), run.model, False
        if not task.answered:
            source.count_left_out("tasks without a complete response")
            cache.forget(task)
            continue
        usage = source.check_usage(task.usage())
        before = cache.find_previous(task, usage)
        sessions += before is None
        now = _LatestRequest(
            session=f"{source.path.stem}.{sessions}" if before is None else before.session,
            number=number,
            tokens=(usage.prompt_tokens or 0) + max(0, (task.written or 0) - 1),
        )
        cache.put(task.slot, now, before)
        yield RequestEntry(
            session=now.session,
            id=str(number),
            parent=None if before is None else str(before.number),
            usage=usage,
            model=model,
            engine=LlamaCpp.name,
            verdict="no_checkpoint" if task.forced else None,
        )


def _tasks(source: TextSource) -> Iterator[tuple[_Task, _ServerRun]]:
    """Yield tasks in order of their ends, with their run of the server."""
    run = _ServerRun()
    tasks: dict[bytes, _Task] = {}
    slot = b""
    for line in source.lines():
        if named := MODEL.search(line.data):
            name = named[1].replace(b"\\", b"/").rpartition(b"/")[2].decode("utf-8", "replace")
            yield from ((task, run) for task in tasks.values())
            run, tasks = _ServerRun(name), {}
            continue
        if found := SLOT.search(line.data):
            slot, said = found[1], found[2]
        elif TIMING.search(line.data):  # a separate line in logs of 2025
            said = line.data
        else:
            continue
        task = tasks.get(slot)
        if BEGUN.search(said) and (task is None or task.held is not None):
            if task is not None:
                yield task, run
            task = tasks[slot] = _Task(slot)
        if task is None:
            continue
        _read(task, said)
        if task.held is not None and task.answered:  # timings come last in logs of 2025
            yield tasks.pop(slot), run
    yield from ((task, run) for task in tasks.values())


def _read(task: _Task, said: bytes) -> None:
    """Update a task from a line."""
    if found := TIMING.search(said):
        if found[1] == b"eval":
            task.written_ms, task.written = float(found[2]), int(found[3])
        else:
            task.read_ms, task.read = float(found[2]), int(found[3])
    elif found := KEPT.search(said) or LIKE.search(said):
        task.kept = float(found[1])
    elif found := PROMPT.search(said):
        task.prompt = int(found[1])
    elif (found := TAKEN.search(said)) and task.cached is None:  # later ones are about tokens that it processed itself
        task.cached = int(found[1])
    elif found := ENDED.search(said):
        task.held, task.cut = int(found[1]), found[2] != b"0"
    elif FORCED in said:
        task.forced = True
