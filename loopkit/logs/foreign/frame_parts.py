"""Parts of frames, built from the conversations of another tool's log.

The functions that diagnose losses are the same as for live sessions. Values that the log lacks are missing in the frames.
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

from loopkit import engines
from loopkit.cache.losses.expected import Expectation, estimated_block, expect
from loopkit.cache.losses.judge import judge
from loopkit.cache.prefixes.prompt_parts import Prompt
from loopkit.contract.provenance import Record, Role
from loopkit.contract.records import Usage
from loopkit.encoding import encode
from loopkit.engines.evidence.diagnosis import Diagnosis
from loopkit.engines.evidence.observation import Observation
from loopkit.engines.rules.own_server import GENERATION
from loopkit.errors import LogError
from loopkit.logs.foreign.column_arrays import counts_column, ids_column, names_column, numbers_column, texts_column, times_column
from loopkit.logs.foreign.conversation_tree import ConversationTrees, LoggedEpoch, LoggedSession, LoggedTurn, RequestRow
from loopkit.logs.foreign.entries import Entry, LogTime, MessageEntry, RequestEntry, TextDigest, to_microseconds, to_rfc3339
from loopkit.logs.foreign.text_source import TextSource
from loopkit.logs.frames.columns import Columns, Message, Part, message, message_columns

__all__ = ["Adapter", "build_parts", "merge_messages"]

ROLES = {Role.User: "user", Role.Assistant: "assistant", Role.ToolResult: "tool", Role.System: "system"}
COUNTS = ("prompt_tokens", "cached_tokens", "cache_write_tokens", "completion_tokens", "reasoning_tokens")
Purpose: TypeAlias = Literal["usage", "digests", "texts"]
"What a second reading of a file returns: token counts, digests of messages, or texts of messages."
TIMES = ("ttft_ms", "prompt_ms", "predicted_ms")


class Adapter(Protocol):
    """Reader of one log format: a module of ``loopkit.logs.foreign.formats``."""

    @property
    def NAME(self) -> str:  # noqa: N802  # a constant of the module
        """Name of the format, as in the column ``source``."""

    def recognises(self, head: bytes) -> bool:
        """Return True if a file with these first bytes has this format."""

    def entries(self, source: TextSource, *, texts: bool) -> Iterator[Entry]:
        """Yield the entries of the file. Messages contain their texts, as records, only with ``texts=True``."""


def build_parts(adapter: Adapter, source: TextSource) -> list[Part]:
    """Read one file, and return one part per epoch."""
    trees = ConversationTrees(adapter.entries(source, texts=False), source)
    reread = _Rereading(adapter.entries, source.path)
    prompt_only_sessions: set[str] = set()
    return [
        _part(adapter, source, reread, session, epoch, prompt_only_sessions)
        for session in trees.sessions.values()
        for epoch in session.epochs
        if epoch.rows or epoch.started is not None
    ]


def _part(
    adapter: Adapter,
    source: TextSource,
    reread: _Rereading,
    session: LoggedSession,
    epoch: LoggedEpoch,
    prompt_only_sessions: set[str],
) -> Part:
    rows = _in_order(epoch)
    expectations, diagnoses = _judge(session, epoch, rows, prompt_only_sessions)
    usage = _usage(rows, expectations)
    _count_invalid_times(source, [row.request.time for row in rows], usage["time"])
    times = np.concatenate([times_column([epoch.started, epoch.ended]), usage["time"]])
    return Part(
        source=adapter.NAME,
        path=str(source.path),
        session=session.id,
        epoch=epoch.number,
        parent=session.parent,
        model=rows[-1].request.model if rows else None,
        engine=rows[-1].request.engine if rows else None,
        started=np.fmin.reduce(times),
        ended=np.fmax.reduce(times),
        end_reason="compacted" if epoch.compacted else None,
        usage=usage,
        losses=_losses(rows, expectations, diagnoses),
        turns={
            "turn": np.arange(1, len(epoch.turns) + 1),
            "time": times_column([turn.time for turn in epoch.turns]),
            "ended": times_column([turn.ended or turn.time for turn in epoch.turns]),
            "tool_calls": counts_column([turn.tool_calls for turn in epoch.turns]),
        },
        messages=partial(reread.messages, session.id, epoch.number),
        requests=partial(reread.requests, session.id, epoch.number),
    )


def _count_invalid_times(source: TextSource, logged: list[LogTime], times: NDArray[Any]) -> None:
    invalid = int(np.isnat(times).sum()) - logged.count(None)
    if invalid:
        source.count_left_out("requests with an invalid timestamp, or one without a time zone", invalid)


def _in_order(epoch: LoggedEpoch) -> list[RequestRow]:
    """Return the requests in the order of their turns. In file order, a branch may go back to an earlier turn."""
    last_turn = 0
    turns = [last_turn := row.turn.number if row.turn is not None else last_turn for row in epoch.rows]
    return [row for _, row in sorted(zip(turns, epoch.rows), key=itemgetter(0))]


def _judge(
    session: LoggedSession, epoch: LoggedEpoch, rows: list[RequestRow], prompt_only_sessions: set[str]
) -> tuple[list[Expectation], dict[int, Diagnosis]]:
    """Return the expected cached tokens of each request, and the diagnosis of each loss by the index of its request.

    If a loss shows that the engine caches prompts but not completions, the session is added to `prompt_only_sessions`.
    """
    block = estimated_block(row.request.usage.cached_tokens for row in rows) or 1
    # the estimate means nothing for engines without blocks: prompts that grow evenly have a common divisor, too
    blocks = {
        engine: block if 1 < engines.find(engine).block < block else None for engine in {row.request.engine for row in rows}
    }
    expectations: list[Expectation] = []
    diagnoses: dict[int, Diagnosis] = {}
    for index, row in enumerate(rows):
        expectation = expect(
            None if row.previous is None else row.previous.request.usage,
            row.request.usage,
            row.request.engine,
            epoch=epoch.number,
            block=blocks[row.request.engine],
            completions_kept=session.id not in prompt_only_sessions,
        )
        expectations.append(expectation)
        if row.previous is not None and expectation.lost_tokens:
            diagnoses[index] = _diagnose(session, row, row.previous, index, expectation)
            if diagnoses[index].cause == GENERATION:
                prompt_only_sessions.add(session.id)
    return expectations, diagnoses


def _usage(rows: list[RequestRow], expectations: list[Expectation]) -> dict[str, NDArray[Any]]:
    requests = _columns(RequestEntry, [row.request for row in rows])
    usages = _columns(Usage, requests["usage"])
    expected, exact, lost, shortfall = zip(*expectations) if rows else ((), (), (), ())
    sizes = counts_column(requests["request_bytes"])
    missing = counts_column([None] * len(rows))
    columns: dict[str, NDArray[Any]] = {
        "request": np.arange(1, len(rows) + 1),
        "turn": counts_column([None if row.turn is None else row.turn.number for row in rows]),
        "time": times_column(requests["time"]),
        "model": names_column(requests["model"]),
        **{name: counts_column(usages[name]) for name in COUNTS},
        **{name: numbers_column(usages[name]) for name in TIMES},
        "expected_tokens": counts_column(expected),
        "expected_exact": np.array(exact, np.int8),
        "reusable_tokens": missing,
        "shortfall": texts_column(shortfall),
        "finish_reason": names_column(requests["finish_reason"]),
        "request_bytes": sizes,
        "new_bytes": np.diff(sizes, prepend=0) if rows and sizes.min() >= 0 else missing,
        "request_sha256": texts_column(requests["request_sha256"]),
        "key": ids_column(requests["key"]),
        "response": ids_column(requests["response"]),
        "side": np.array(requests["is_side_chain"], np.int8),
    }
    judged = (columns["expected_tokens"] >= 0) | (columns["shortfall"] != None)  # noqa: E711
    columns["lost_tokens"] = np.where((columns["cached_tokens"] >= 0) & judged, counts_column(lost), -1)
    return columns


def _columns(kind: type[Struct], rows: Sequence[Struct]) -> dict[str, tuple[Any, ...]]:
    """Return the values of each field of many structs, by field name."""
    values = zip(*map(astuple, rows)) if rows else ((),) * len(kind.__struct_fields__)
    return dict(zip(kind.__struct_fields__, values))


def _diagnose(session: LoggedSession, row: RequestRow, previous: RequestRow, index: int, expectation: Expectation) -> Diagnosis:
    now = dataclasses.replace(_observation(session, row, previous), request=index + 1)
    others = [Observation(usage=Usage(), session=name, request=number) for name, number in row.request.other_requests]
    diagnosis = judge(_observation(session, previous), now, others, expectation=expectation)
    if row.request.verdict is not None:
        diagnosis.evidence["provider_verdict"] = row.request.verdict
        if row.request.missed_tokens is not None:
            diagnosis.evidence["provider_missed_tokens"] = row.request.missed_tokens
    return diagnosis


def _losses(rows: list[RequestRow], expectations: list[Expectation], diagnoses: dict[int, Diagnosis]) -> Columns:
    found = [expectations[index] for index in diagnoses]
    return {
        "request": np.array([index + 1 for index in diagnoses], np.int64),
        "row": np.array([*diagnoses], np.intp),
        "time": times_column([rows[index].request.time for index in diagnoses]),
        "expected_tokens": counts_column([each.expected_tokens for each in found]),
        "expected_exact": np.array([each.expected_exact for each in found], np.int8),
        "reusable_tokens": counts_column([None] * len(diagnoses)),
        "cached_tokens": counts_column([rows[index].request.usage.cached_tokens for index in diagnoses]),
        "lost_tokens": counts_column([each.lost_tokens for each in found]),
        **{
            name: texts_column([getattr(each, name) for each in diagnoses.values()])
            for name in ("cause", "certainty", "fixable_by", "location")
        },
        "evidence": texts_column([encode(each.evidence).decode() for each in diagnoses.values()]),
    }


def _observation(session: LoggedSession, row: RequestRow, previous: RequestRow | None = None) -> Observation:
    """Return a request as an `Observation`. Its times are left out if the clock was set back meanwhile."""
    request = row.request
    sent, answered = to_microseconds(row.sent), to_microseconds(request.time)
    before = None if previous is None else to_microseconds(previous.request.time)
    sound = sent is None or answered is None or before is None or before <= sent <= answered
    return Observation(
        usage=request.usage,
        session=session.id,
        epoch=row.epoch,
        time=to_rfc3339(request.time) if sound else None,
        elapsed_ms=None if sent is None or answered is None or not sound else (answered - sent) / 1000,
        body=None if request.read_body is None else request.read_body(),
        engine=request.engine,
        model=request.model,
        verdict=request.verdict,
        kept_seconds=row.kept_seconds,
    )


class _Rereading:
    """Reads a file a second time when its messages or requests are needed. Can be pickled."""

    def __init__(self, entries: Callable[..., Iterator[Entry]], path: Path) -> None:
        self._entries = entries
        self._path = path
        self._ready: dict[tuple[str, int, Purpose], tuple[LoggedSession, LoggedEpoch]] = {}
        "Epochs of the last reading that were not requested yet, so that one reading serves all conversations of a file."

    def __reduce__(self) -> tuple[Any, ...]:
        return _Rereading, (self._entries, self._path)

    def _epoch(self, session: str, epoch: int, purpose: Purpose) -> tuple[LoggedSession, LoggedEpoch]:
        if (session, epoch, purpose) not in self._ready:
            source = TextSource(self._path, errors="report")  # the first reading reported its faults
            entries = self._entries(source, texts=purpose != "usage")
            sessions = ConversationTrees(_with_digests(entries) if purpose == "digests" else entries, source).sessions.values()
            self._ready = {(each.id, part.number, purpose): (each, part) for each in sessions for part in each.epochs}
        if (session, epoch, purpose) not in self._ready:
            raise LogError(str(self._path), "the file has changed since it was loaded", "Load it again")
        return self._ready.pop((session, epoch, purpose))

    def messages(self, session: str, epoch: int, *, content: bool) -> Columns:
        _, found = self._epoch(session, epoch, "texts" if content else "digests")
        return message_columns(_texts_of(found) if content else _digests_of(found))

    def requests(self, session: str, epoch: int) -> Iterator[Observation | Prompt]:
        logged, found = self._epoch(session, epoch, "usage")
        for index, row in enumerate(_in_order(found)):
            if row.request.block_hashes is not None:
                yield Prompt(blocks=row.request.block_hashes)
            else:
                yield dataclasses.replace(_observation(logged, row, row.previous), request=index + 1)


def _with_digests(entries: Iterator[Entry]) -> Iterator[Entry]:
    """Yield the entries with digests in place of texts, so that texts do not fill the memory."""
    digests: dict[str, TextDigest] = {}
    for entry in entries:
        if isinstance(entry, MessageEntry) and isinstance(entry.record, Record):
            digest = TextDigest() if entry.key is None else digests.setdefault(f"{entry.session} {entry.key}", TextDigest())
            digest.add(entry.record.text)
            entry = replace(entry, record=digest)
        yield entry


def _digests_of(epoch: LoggedEpoch) -> Iterator[Message]:
    firsts: dict[str | int, tuple[LoggedTurn | None, MessageEntry]] = {}
    for at, (turn, entry) in enumerate(epoch.messages):
        firsts.setdefault(entry.key or at, (turn, entry))
    for index, (turn, entry) in enumerate(firsts.values()):
        assert isinstance(entry.record, TextDigest)
        yield Message(_number(turn), index, ROLES[entry.role], entry.record.bytes, entry.record.sha256, tool=entry.tool)


def _texts_of(epoch: LoggedEpoch) -> Iterator[Message]:
    for index, (turn, record, tool) in enumerate(merge_messages(epoch)):
        data = record.text.encode("utf-8", "surrogatepass")
        yield message(_number(turn), index, ROLES[record.role], data, tool=tool, content=record.text)


def _number(turn: LoggedTurn | None) -> int | None:
    return None if turn is None or turn.number < 0 else turn.number


def merge_messages(epoch: LoggedEpoch) -> Iterator[tuple[LoggedTurn | None, Record, str | None]]:
    """Yield every message of an epoch, as its turn, its record and the name of its tool. Parts of a message are joined."""
    parts: dict[str | int, list[tuple[LoggedTurn | None, MessageEntry]]] = {}
    for index, (turn, entry) in enumerate(epoch.messages):
        parts.setdefault(entry.key or index, []).append((turn, entry))
    for (turn, first), *more in parts.values():
        assert isinstance(first.record, Record)
        texts = dict.fromkeys(entry.record.text for _, entry in ((turn, first), *more) if isinstance(entry.record, Record))
        yield turn, replace(first.record, text="\n".join(texts)), first.tool
