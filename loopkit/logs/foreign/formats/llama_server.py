"""llama-server's log: what its slots were given, took from their cache, read and wrote, a task a request.

Texts and absolute times are not in it. A task goes on from the one whose tokens it found in the cache, all of them, in whatever
slot they were; or where the server chose its slot by what that held, and half of it was still the same. In doubt it begins a
conversation, of which nothing is expected; they are called ``<file>.1``, ``<file>.2``, …. Speaks the dialects of 2025 and 2026.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from loopkit.contract.records import Usage
from loopkit.logs.foreign.entries import Call, Entry
from loopkit.logs.foreign.text_source import Source

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


class _Run(Struct, eq=False):
    """A run of the server: when it begins its caches are empty."""

    model: str | None = None
    started: bool = True


class _Task(Struct, eq=False):
    """A slot's task, as far as its lines have told it."""

    slot: bytes
    kept: float = 0.0
    "The share of what the slot held that begins this prompt, too."
    prompt: int | None = None
    cached: int | None = None
    read: int | None = None
    read_ms: float | None = None
    written: int | None = None
    written_ms: float | None = None
    forced: bool = False
    held: int | None = None
    "Tokens in the slot when it had ended."
    cut: bool = False

    @property
    def answered(self) -> bool:
        return self.read is not None and self.written is not None

    def usage(self) -> Usage:
        """The counts; what is not told follows from what the slot holds at the end, where nothing was cut off."""
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


class _Newest(Struct, eq=False):
    """A conversation's newest request, and the tokens that a cache has of it."""

    session: str
    number: int
    tokens: int


class _Held:
    """What slots and the host cache hold."""

    def __init__(self) -> None:
        self._slots: dict[bytes, _Newest] = {}
        self._known: dict[str, _Newest] = {}
        "Conversations, the one that went on last at the end."

    def goes_on(self, task: _Task, usage: Usage) -> _Newest | None:
        """The request that a task goes on from."""
        cached, before = usage.cached_tokens or 0, self._slots.get(task.slot)
        before = before if before in self._known.values() else None
        whole = [each for each in self._known.values() if each.tokens == cached and cached]
        if whole:
            return before if before in whole else whole[-1]
        enough = before is not None and max(task.kept, cached / max(1, before.tokens)) >= HALF
        return before if enough else None

    def take(self, slot: bytes, now: _Newest, before: _Newest | None) -> None:
        if before is not None:
            del self._known[before.session]
        self._slots[slot] = self._known[now.session] = now

    def lose(self, task: _Task) -> None:
        """A task that was broken off has left something else in its slot, but where it was refused at once."""
        before = self._slots.get(task.slot)
        if before is not None and before.tokens != task.held:
            del self._slots[task.slot]


def recognises(head: bytes) -> bool:
    """Whether a file that begins so is a log of llama-server.

    Examples
    --------
    >>> recognises(b"0.00.390.513 I slot get_availabl: id  1 | task -1 | selected slot by LRU, t_last = -1")
    True
    """
    return SLOT.search(head) is not None or ((b"llama_model_load" in head or b"load_model:" in head) and b"srv " in head)


def entries(source: Source, *, texts: bool) -> Iterator[Entry]:
    """What a log says; it has no texts."""
    held = _Held()
    model, sessions = None, 0
    for number, (task, run) in enumerate(_tasks(source)):
        if run.started:
            held, model, run.started = _Held(), run.model, False
        if not task.answered:
            source.left_out("tasks without a whole answer")
            held.lose(task)
            continue
        usage = source.possible(task.usage())
        before = held.goes_on(task, usage)
        sessions += before is None
        now = _Newest(
            session=f"{source.path.stem}.{sessions}" if before is None else before.session,
            number=number,
            tokens=(usage.prompt_tokens or 0) + max(0, (task.written or 0) - 1),
        )
        held.take(task.slot, now, before)
        yield Call(
            session=now.session,
            id=str(number),
            parent=None if before is None else str(before.number),
            usage=usage,
            model=model,
            engine="llama.cpp",
            verdict="no_checkpoint" if task.forced else None,
        )


def _tasks(source: Source) -> Iterator[tuple[_Task, _Run]]:
    """Tasks as they end, and of which run of the server."""
    run = _Run()
    tasks: dict[bytes, _Task] = {}
    slot = b""
    for line in source.lines():
        if named := MODEL.search(line.data):
            name = named[1].replace(b"\\", b"/").rpartition(b"/")[2].decode("utf-8", "replace")
            yield from ((task, run) for task in tasks.values())
            run, tasks = _Run(name), {}
            continue
        if found := SLOT.search(line.data):
            slot, said = found[1], found[2]
        elif TIMING.search(line.data):  # of 2025: in a line of its own
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
        if task.held is not None and task.answered:  # in 2025 timings came last
            yield tasks.pop(slot), run
    yield from ((task, run) for task in tasks.values())


def _read(task: _Task, said: bytes) -> None:
    """Take in what a line says of a task."""
    if found := TIMING.search(said):
        if found[1] == b"eval":
            task.written_ms, task.written = float(found[2]), int(found[3])
        else:
            task.read_ms, task.read = float(found[2]), int(found[3])
    elif found := KEPT.search(said) or LIKE.search(said):
        task.kept = float(found[1])
    elif found := PROMPT.search(said):
        task.prompt = int(found[1])
    elif (found := TAKEN.search(said)) and task.cached is None:  # the first: the others are of what it reads itself
        task.cached = int(found[1])
    elif found := ENDED.search(said):
        task.held, task.cut = int(found[1]), found[2] != b"0"
    elif FORCED in said:
        task.forced = True
