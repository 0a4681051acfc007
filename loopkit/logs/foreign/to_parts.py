"""Conversations of another tool into parts of frames: what was expected, lost and why, by the functions that live sessions use.

Knows no format: an adapter has made entries of the file, and `Threads` conversations of these. What the file does not hold is
missing, never made up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple, replace
from numpy.typing import NDArray

from loopkit.cache.losses.diagnosis import Diagnosis
from loopkit.cache.losses.expected import GENERATION, Expectation, estimated_block, expect, rule_of
from loopkit.cache.losses.judge import judge
from loopkit.cache.losses.observation import Seen
from loopkit.cache.prefixes.prompt_parts import Prompt
from loopkit.contract.provenance import Record, Role
from loopkit.contract.records import Usage
from loopkit.encoding import encode
from loopkit.errors import LogError
from loopkit.logs.foreign.entries import Call, Digest, Entry, Said, When, moment, rfc3339
from loopkit.logs.foreign.text_source import Source
from loopkit.logs.foreign.tree import Epoch, Row, Session, Threads, Turn
from loopkit.logs.frames.columns import Columns, Message, Part, message, message_columns
from loopkit.logs.frames.timestamps import parse_timestamps

__all__ = ["Adapter", "merged", "parts_of"]

ROLES = {Role.User: "user", Role.Assistant: "assistant", Role.ToolResult: "tool", Role.System: "system"}
COUNTS = ("prompt_tokens", "cached_tokens", "cache_write_tokens", "completion_tokens", "reasoning_tokens")
NAT = np.datetime64("NaT", "us")
NO_COUNT, NO_NUMBER, NO_TEXT = (np.broadcast_to(np.array(value), 1 << 40) for value in (-1, np.nan, None))
"What is not known, as often as one likes, in the memory of one."
FORM = b"0000-00-00T00:00:00.000Z\0"
How: TypeAlias = Literal["usage", "digests", "texts"]
"How much of a file is read again."
TIMES = ("ttft_ms", "prompt_ms", "predicted_ms")


class Adapter(Protocol):
    """One format: a module of ``loopkit.logs.foreign.formats``."""

    @property
    def NAME(self) -> str:  # noqa: N802  # a constant of the module
        """What the frames call the source."""

    def recognises(self, head: bytes) -> bool:
        """Whether a file that begins so is of this format."""

    def entries(self, source: Source, *, texts: bool) -> Iterator[Entry]:
        """What the file says; messages with their records only where ``texts`` are wanted."""


def parts_of(adapter: Adapter, source: Source) -> list[Part]:
    """Read one file into parts, one an epoch."""
    threads = Threads(adapter.entries(source, texts=False), source)
    again = _Again(adapter.entries, source.path)
    prompts_alone: set[str] = set()
    return [
        _part(adapter, source, again, session, epoch, prompts_alone)
        for session in threads.sessions.values()
        for epoch in session.epochs
        if epoch.rows or epoch.started is not None
    ]


def _part(adapter: Adapter, source: Source, again: _Again, session: Session, epoch: Epoch, prompts_alone: set[str]) -> Part:
    rows = _in_order(epoch)
    expectations, judged = _judged(session, epoch, rows, prompts_alone)
    usage = _usage(rows, expectations)
    _count_no_moments(source, [row.call.time for row in rows], usage["time"])
    times = np.concatenate([_times([epoch.started, epoch.ended]), usage["time"]])
    return Part(
        source=adapter.NAME,
        path=str(source.path),
        session=session.id,
        epoch=epoch.number,
        parent=session.parent,
        model=rows[-1].call.model if rows else None,
        engine=rows[-1].call.engine if rows else None,
        started=np.fmin.reduce(times),
        ended=np.fmax.reduce(times),
        end_reason="compacted" if epoch.compacted else None,
        usage=usage,
        losses=_losses(rows, expectations, judged),
        turns={
            "turn": np.arange(1, len(epoch.turns) + 1),
            "time": _times([turn.time for turn in epoch.turns]),
            "ended": _times([turn.ended or turn.time for turn in epoch.turns]),
            "tool_calls": _counts([turn.tool_calls for turn in epoch.turns]),
        },
        messages=partial(again.messages, session.id, epoch.number),
        requests=partial(again.requests, session.id, epoch.number),
    )


def _count_no_moments(source: Source, said: list[When], times: NDArray[Any]) -> None:
    unread = int(np.isnat(times).sum()) - said.count(None)
    if unread:
        source.left_out("requests whose time is no moment, or names no zone", unread)


def _in_order(epoch: Epoch) -> list[Row]:
    """The requests of each turn together: a branch may go back to an earlier one."""
    of_no_turn = 0
    turns = [of_no_turn := row.turn.number if row.turn is not None else of_no_turn for row in epoch.rows]  # it stays in its place
    return [row for _, row in sorted(zip(turns, epoch.rows), key=itemgetter(0))]


def _judged(
    session: Session, epoch: Epoch, rows: list[Row], prompts_alone: set[str]
) -> tuple[list[Expectation], dict[int, Diagnosis]]:
    """What was expected of each request, and why some lost; sessions whose engine keeps prompts alone are entered."""
    block = estimated_block(row.call.usage.cached_tokens for row in rows) or 1
    # of an engine that keeps single tokens a common divisor means nothing: a conversation that grows evenly has one, too
    blocks = {engine: block if 1 < rule_of(engine).block < block else None for engine in {row.call.engine for row in rows}}
    expectations: list[Expectation] = []
    judged: dict[int, Diagnosis] = {}
    for index, row in enumerate(rows):
        expectation = expect(
            None if row.previous is None else row.previous.call.usage,
            row.call.usage,
            row.call.engine,
            epoch=epoch.number,
            block=blocks[row.call.engine],
            completions_kept=session.id not in prompts_alone,
        )
        expectations.append(expectation)
        if row.previous is not None and expectation.lost_tokens:
            judged[index] = _cause(session, row, row.previous, index, expectation)
            if judged[index].cause == GENERATION:
                prompts_alone.add(session.id)
    return expectations, judged


def _usage(rows: list[Row], expectations: list[Expectation]) -> dict[str, NDArray[Any]]:
    calls = _columns(Call, [row.call for row in rows])
    usages = _columns(Usage, calls["usage"])
    expected, exact, lost, shortfall = zip(*expectations) if rows else ((), (), (), ())
    sizes = _counts(calls["request_bytes"])
    missing = _counts([None] * len(rows))
    columns: dict[str, NDArray[Any]] = {
        "request": np.arange(1, len(rows) + 1),
        "turn": _counts([None if row.turn is None else row.turn.number for row in rows]),
        "time": _times(calls["time"]),
        "model": _names(calls["model"]),
        **{name: _counts(usages[name]) for name in COUNTS},
        **{name: _reals(usages[name]) for name in TIMES},
        "expected_tokens": _counts(expected),
        "expected_exact": np.array(exact, np.int8),
        "reusable_tokens": missing,
        "shortfall": _texts(shortfall),
        "finish_reason": _names(calls["finish"]),
        "request_bytes": sizes,
        "new_bytes": np.diff(sizes, prepend=0) if rows and sizes.min() >= 0 else missing,
        "request_sha256": _texts(calls["request_sha256"]),
        "key": _ids(calls["key"]),
        "response": _ids(calls["response"]),
        "side": np.array(calls["side"], np.int8),
    }
    judged = (columns["expected_tokens"] >= 0) | (columns["shortfall"] != None)  # noqa: E711
    columns["lost_tokens"] = np.where((columns["cached_tokens"] >= 0) & judged, _counts(lost), -1)
    return columns


def _columns(kind: type[Struct], rows: Sequence[Struct]) -> dict[str, tuple[Any, ...]]:
    """Rows into columns."""
    values = zip(*map(astuple, rows)) if rows else ((),) * len(kind.__struct_fields__)
    return dict(zip(kind.__struct_fields__, values))


def _cause(session: Session, row: Row, previous: Row, index: int, expectation: Expectation) -> Diagnosis:
    now = dataclasses.replace(_seen(session, row, previous), request=index + 1)
    others = [Seen(usage=Usage(), session=name, request=number) for name, number in row.call.others]
    found = judge(_seen(session, previous), now, others, expectation=expectation)
    if row.call.verdict is not None:
        found.evidence["provider_verdict"] = row.call.verdict
        if row.call.missed is not None:
            found.evidence["provider_missed_tokens"] = row.call.missed
    return found


def _losses(rows: list[Row], expectations: list[Expectation], judged: dict[int, Diagnosis]) -> Columns:
    found = [expectations[index] for index in judged]
    return {
        "request": np.array([index + 1 for index in judged], np.int64),
        "row": np.array([*judged], np.intp),
        "time": _times([rows[index].call.time for index in judged]),
        "expected_tokens": _counts([each.expected_tokens for each in found]),
        "expected_exact": np.array([each.expected_exact for each in found], np.int8),
        "reusable_tokens": _counts([None] * len(judged)),
        "cached_tokens": _counts([rows[index].call.usage.cached_tokens for index in judged]),
        "lost_tokens": _counts([each.lost_tokens for each in found]),
        **{
            name: _texts([getattr(each, name) for each in judged.values()])
            for name in ("cause", "certainty", "fixable_by", "location")
        },
        "evidence": _texts([encode(each.evidence).decode() for each in judged.values()]),
    }


def _seen(session: Session, row: Row, previous: Row | None = None) -> Seen:
    """What is known of a request. A clock that went back says nothing of how long a cache was idle."""
    call = row.call
    sent, answered = moment(row.sent), moment(call.time)
    before = None if previous is None else moment(previous.call.time)
    sound = sent is None or answered is None or before is None or before <= sent <= answered
    return Seen(
        usage=call.usage,
        session=session.id,
        epoch=row.epoch,
        time=rfc3339(call.time) if sound else None,
        elapsed_ms=None if sent is None or answered is None or not sound else (answered - sent) / 1000,
        body=None if call.body is None else call.body(),
        engine=call.engine,
        model=call.model,
        verdict=call.verdict,
        kept_seconds=row.kept_seconds,
    )


class _Again:
    """A file that is read once more for what its frames do not hold until they are asked for it; it can be pickled."""

    def __init__(self, entries: Callable[..., Iterator[Entry]], path: Path) -> None:
        self._entries = entries
        self._path = path
        self._ready: dict[tuple[str, int, How], tuple[Session, Epoch]] = {}
        "What the last reading found and nobody has taken yet: a file may hold thousands of conversations."

    def __reduce__(self) -> tuple[Any, ...]:
        return _Again, (self._entries, self._path)

    def _epoch(self, session: str, epoch: int, how: How) -> tuple[Session, Epoch]:
        if (session, epoch, how) not in self._ready:
            source = Source(self._path, errors="report")  # its faults were told when it was read first
            entries = self._entries(source, texts=how != "usage")
            found = Threads(_digested(entries) if how == "digests" else entries, source).sessions.values()
            self._ready = {(one.id, each.number, how): (one, each) for one in found for each in one.epochs}
        if (session, epoch, how) not in self._ready:
            raise LogError(str(self._path), "it has changed since it was loaded", "Load it again")
        return self._ready.pop((session, epoch, how))

    def messages(self, session: str, epoch: int, *, content: bool) -> Columns:
        _, found = self._epoch(session, epoch, "texts" if content else "digests")
        return message_columns(_texts_of(found) if content else _digests_of(found))

    def requests(self, session: str, epoch: int) -> Iterator[Seen | Prompt]:
        of, found = self._epoch(session, epoch, "usage")
        for index, row in enumerate(_in_order(found)):
            if row.call.blocks is not None:
                yield Prompt(blocks=row.call.blocks)
            else:
                yield dataclasses.replace(_seen(of, row, row.previous), request=index + 1)


def _digested(entries: Iterator[Entry]) -> Iterator[Entry]:
    """The same entries without texts, of which a digest is made as they come: a file may be nothing but text."""
    of_parts: dict[str, Digest] = {}
    for entry in entries:
        if isinstance(entry, Said) and isinstance(entry.record, Record):
            digest = Digest() if entry.key is None else of_parts.setdefault(f"{entry.session} {entry.key}", Digest())
            digest.add(entry.record.text)
            entry = replace(entry, record=digest)
        yield entry


def _digests_of(epoch: Epoch) -> Iterator[Message]:
    firsts: dict[str | int, tuple[Turn | None, Said]] = {}
    for at, (turn, said) in enumerate(epoch.said):
        firsts.setdefault(said.key or at, (turn, said))
    for index, (turn, said) in enumerate(firsts.values()):
        assert isinstance(said.record, Digest)
        yield Message(_number(turn), index, ROLES[said.role], said.record.bytes, said.record.sha256, tool=said.tool)


def _texts_of(epoch: Epoch) -> Iterator[Message]:
    for index, (turn, record, tool) in enumerate(merged(epoch)):
        data = record.text.encode("utf-8", "surrogatepass")
        yield message(_number(turn), index, ROLES[record.role], data, tool=tool, content=record.text)


def _number(turn: Turn | None) -> int | None:
    return None if turn is None or turn.number < 0 else turn.number


def merged(epoch: Epoch) -> Iterator[tuple[Turn | None, Record, str | None]]:
    """Every message of an epoch with its turn and tool; one that was told in several parts once."""
    parts: dict[str | int, list[tuple[Turn | None, Said]]] = {}
    for index, (turn, said) in enumerate(epoch.said):
        parts.setdefault(said.key or index, []).append((turn, said))
    for (turn, first), *more in parts.values():
        assert isinstance(first.record, Record)
        texts = dict.fromkeys(said.record.text for _, said in ((turn, first), *more) if isinstance(said.record, Record))
        yield turn, replace(first.record, text="\n".join(texts)), first.tool


def _counts(values: Sequence[int | None]) -> NDArray[np.int64]:
    if None in values:
        if _is_unknown(values):
            return NO_COUNT[: len(values)]
        values = [-1 if value is None else value for value in values]
    return np.array(values, np.int64)


def _reals(values: Sequence[float | None]) -> NDArray[np.float64]:
    return NO_NUMBER[: len(values)] if _is_unknown(values) else np.array(values, np.float64)  # None is NaN


def _is_unknown(values: Sequence[object]) -> bool:
    """Whether nothing is known, as of many columns of most logs: these take no memory."""
    return values.count(None) == len(values)


def _ids(values: Sequence[str | None]) -> NDArray[np.bytes_]:
    """Texts that are all different, where each by itself would take more memory than all numbers of its row; b"" is missing."""
    return np.array([b"" if value is None else value.encode("utf-8", "surrogatepass") for value in values], np.bytes_)


def _texts(values: Sequence[str | None]) -> NDArray[np.object_]:
    if _is_unknown(values):
        return NO_TEXT[: len(values)]
    found = np.empty(len(values), np.object_)
    found[:] = values
    return found


def _names(values: Sequence[str | None]) -> NDArray[np.object_]:
    """Texts of which there are few different ones, each kept once."""
    known: dict[str | None, str | None] = {}
    return _texts([known.setdefault(value, value) for value in values])


def _times(values: Sequence[When]) -> NDArray[np.datetime64]:
    try:
        return parse_timestamps(np.array(values, f"S{len(FORM)}"), FORM)  # as most tools write it; many at once cost less
    except ValueError:  # another form, a day that is in no calendar, a letter that is in no date
        pass
    missing = NAT.astype(int)
    return np.array([missing if (at := moment(value)) is None else at for value in values], np.int64).view("datetime64[us]")
