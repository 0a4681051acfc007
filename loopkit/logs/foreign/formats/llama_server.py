"""llama-server's log: prompt, cached, processed and generated tokens of each slot task. A task is a request.

The log has no texts and no absolute times, so conversations are found by token counts. A task follows the request, in any slot,
that has exactly as many tokens as were cached for the task. Otherwise it follows the last request in its slot, if at least half
of that request's tokens were reused. In doubt, a task starts a new conversation without expected cached tokens. Conversations are
called ``<file>.1``, ``<file>.2``, …. Reads the log formats of 2025 and 2026.
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
CACHED = re.compile(rb"(?:memory_seq_rm|kv cache rm) \[(\d+), end\)")
KEPT_SHARE = re.compile(rb"selected slot by LCP similarity.* f_keep = ([\d.]+)")
SIMILARITY = re.compile(rb"selected slot by lc[sp] similarity.* similarity = ([\d.]+)", re.I)
TASK_END = re.compile(rb"stop processing: (?:n_tokens|n_past) = (\d+), truncated = (\d)")
TASK_START = re.compile(rb"selected slot|processing task")
MODEL = re.compile(rb"loading model '([^']*)'")
REPROCESSED = b"forcing full prompt re-processing"
HALF = 0.5


class _ServerRun(Struct, eq=False):
    """A run of the server, from loading a model on. Its caches are empty at the start."""

    model: str | None = None
    is_new: bool = True


class _Task(Struct, eq=False):
    """A task of a slot. Its members are set one by one, as the lines of the log report them."""

    slot: bytes
    kept_share: float = 0.0
    "Share of the tokens in the slot that this prompt repeats at its start."
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    processed_tokens: int | None = None
    processing_ms: float | None = None
    generated_tokens: int | None = None
    generation_ms: float | None = None
    is_reprocessed: bool = False
    slot_tokens: int | None = None
    "Number of tokens in the slot at the end of the task."
    is_truncated: bool = False

    @property
    def is_complete(self) -> bool:
        return self.processed_tokens is not None and self.generated_tokens is not None

    def usage(self) -> Usage:
        """Return the usage. Counts that the log lacks are computed from the others; not if the slot's tokens were truncated."""
        prompt, cached = self.prompt_tokens, self.cached_tokens
        if prompt is None and self.slot_tokens is not None and self.generated_tokens is not None and not self.is_truncated:
            prompt = self.slot_tokens - max(0, self.generated_tokens - 1)
        if cached is None and prompt is not None and self.processed_tokens is not None and self.processed_tokens <= prompt:
            cached = prompt - self.processed_tokens
        return Usage(
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=self.generated_tokens,
            prompt_ms=self.processing_ms,
            predicted_ms=self.generation_ms,
        )


class _LatestRequest(Struct, eq=False):
    """The newest request of a conversation. ``tokens`` is the number of tokens that the server keeps of it."""

    session: str
    number: int
    tokens: int


class _CacheContents:
    """What the slots of the server and its host cache (earlier prompts in main memory) contain."""

    def __init__(self) -> None:
        self._slots: dict[bytes, _LatestRequest] = {}
        self._known: dict[str, _LatestRequest] = {}
        "Latest request of each conversation, the most recent one last."

    def find_previous(self, task: _Task, usage: Usage) -> _LatestRequest | None:
        """Return the request that a task follows, or None."""
        cached, before = usage.cached_tokens or 0, self._slots.get(task.slot)
        before = before if before in self._known.values() else None
        exact = [each for each in self._known.values() if each.tokens == cached and cached]
        if exact:
            return before if before in exact else exact[-1]
        is_continued = before is not None and max(task.kept_share, cached / max(1, before.tokens)) >= HALF
        return before if is_continued else None

    def put(self, slot: bytes, now: _LatestRequest, before: _LatestRequest | None) -> None:
        if before is not None:
            del self._known[before.session]
        self._slots[slot] = self._known[now.session] = now

    def forget(self, task: _Task) -> None:
        """Forget the slot of a cancelled task, unless the task was refused before it changed the slot."""
        before = self._slots.get(task.slot)
        if before is not None and before.tokens != task.slot_tokens:
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
    """Yield the entries of a log. `texts` is ignored, because the log contains no text."""
    cache = _CacheContents()
    model, sessions = None, 0
    for number, (task, run) in enumerate(_tasks(source)):
        if run.is_new:
            cache, model, run.is_new = _CacheContents(), run.model, False
        if not task.is_complete:
            source.count_left_out("tasks without a complete response")
            cache.forget(task)
            continue
        usage = source.check_usage(task.usage())
        before = cache.find_previous(task, usage)
        sessions += before is None
        now = _LatestRequest(
            session=f"{source.path.stem}.{sessions}" if before is None else before.session,
            number=number,
            tokens=(usage.prompt_tokens or 0) + max(0, (task.generated_tokens or 0) - 1),
        )
        cache.put(task.slot, now, before)
        yield RequestEntry(
            session=now.session,
            id=str(number),
            parent=None if before is None else str(before.number),
            usage=usage,
            model=model,
            engine=LlamaCpp.name,
            verdict="no_checkpoint" if task.is_reprocessed else None,
        )


def _tasks(source: TextSource) -> Iterator[tuple[_Task, _ServerRun]]:
    """Yield each task when it ends, with the run of the server that it belongs to."""
    run = _ServerRun()
    tasks: dict[bytes, _Task] = {}
    slot = b""
    for line in source.lines():
        if loaded := MODEL.search(line.data):
            name = loaded[1].replace(b"\\", b"/").rpartition(b"/")[2].decode("utf-8", "replace")
            yield from ((task, run) for task in tasks.values())
            run, tasks = _ServerRun(name), {}
            continue
        if found := SLOT.search(line.data):
            slot, text = found[1], found[2]
        elif TIMING.search(line.data):  # a separate line in logs of 2025
            text = line.data
        else:
            continue
        task = tasks.get(slot)
        if TASK_START.search(text) and (task is None or task.slot_tokens is not None):
            if task is not None:
                yield task, run
            task = tasks[slot] = _Task(slot)
        if task is None:
            continue
        _update(task, text)
        if task.slot_tokens is not None and task.is_complete:  # timings come last in logs of 2025
            yield tasks.pop(slot), run
    yield from ((task, run) for task in tasks.values())


def _update(task: _Task, text: bytes) -> None:
    """Set the members of a task that a line reports."""
    if found := TIMING.search(text):
        if found[1] == b"eval":
            task.generation_ms, task.generated_tokens = float(found[2]), int(found[3])
        else:
            task.processing_ms, task.processed_tokens = float(found[2]), int(found[3])
    elif found := KEPT_SHARE.search(text) or SIMILARITY.search(text):
        task.kept_share = float(found[1])
    elif found := PROMPT.search(text):
        task.prompt_tokens = int(found[1])
    elif (found := CACHED.search(text)) and task.cached_tokens is None:  # later ones count its own tokens
        task.cached_tokens = int(found[1])
    elif found := TASK_END.search(text):
        task.slot_tokens, task.is_truncated = int(found[1]), found[2] != b"0"
    elif REPROCESSED in text:
        task.is_reprocessed = True
