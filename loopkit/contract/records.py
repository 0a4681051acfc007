"""Words of the log: records and usage numbers, as frozen msgspec Structs.

A record's members are declared here in the order in which they are written; a member marked ``UNSET`` may be absent, and absent,
null and empty are three different things. Unknown members and kinds are refused. What the model wrote is kept as bytes
(``msgspec.Raw``). Knows nothing of files, of the order of records, or of servers; ``loopkit/session/FORMAT.md`` is the document.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar, cast

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from loopkit.contract.messages import Extra, Lined, Part, ToolCall
from loopkit.encoding import decode, encode, encode_texts, find_unencodable
from loopkit.errors import EncodeError
from loopkit.ids import TIME, Timestamp

__all__ = [
    "FORMAT",
    "Assistant",
    "CacheLoss",
    "Carried",
    "EpochEnd",
    "Forked",
    "LogRecord",
    "ReplayRecord",
    "ServerFacts",
    "SessionStart",
    "Settled",
    "TagsFacts",
    "ToolResult",
    "Usage",
    "UsageRecord",
    "User",
    "decode_record",
    "decode_replay",
    "encode_record",
    "settle",
]

FORMAT = 1
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Number = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
Milliseconds = Annotated[float, Meta(ge=0)]
Hash = Annotated[str, Meta(min_length=64, max_length=64)]
Time = Annotated[str, Meta(min_length=27, max_length=27)]

# What the decoder does not look at: it knows lengths in C, but patterns only one by one in Python. See check_raw.
_HEX = re.compile(r"[0-9a-f]*")


class Usage(Part, frozen=True, kw_only=True):
    """What a server said of one request; None where it said nothing. None is not zero."""

    prompt_tokens: Count | None = None
    "Tokens of the whole prompt, cached ones included."
    cached_tokens: Count | None = None
    "Of these, taken from the prompt cache."
    cache_write_tokens: Count | None = None
    "Of these, written to the cache at a price (hosted engines)."
    completion_tokens: Count | None = None
    "Tokens written, reasoning and the end token included."
    reasoning_tokens: Count | None = None
    "Of these, reasoning."
    ttft_ms: Milliseconds | None = None
    "From sending the request to the first token, measured here, in milliseconds."
    prompt_ms: Milliseconds | None = None
    "Reading the prompt, measured by the server, in milliseconds."
    predicted_ms: Milliseconds | None = None
    "Writing the completion, measured by the server, in milliseconds."

    @property
    def read_tokens(self) -> int | None:
        """Prompt tokens that the server had to read: prompt less cached, None where either is not known."""
        if self.prompt_tokens is None or self.cached_tokens is None:
            return None
        return self.prompt_tokens - self.cached_tokens


class ServerFacts(Part, frozen=True, kw_only=True):
    """What the server said of itself when the epoch began."""

    engine: str | None = None
    build: str | None = None
    model: str | None = None
    context_size: Count | None = None
    "Tokens that one conversation may hold."


class TagsFacts(Part, frozen=True, kw_only=True):
    """The neutralising set that new text of the epoch goes through."""

    id: str
    literals: tuple[str, ...] | UnsetType = UNSET
    "Tags beyond the default shapes; absent where the id names a default."
    cuts: tuple[str, ...] | UnsetType = UNSET
    "Words that the server's template deletes from text, in its order."


class Carried(Part, frozen=True, kw_only=True):
    """What an epoch took over from the one before."""

    kind: str
    "``turn``, ``summary`` or ``text``."
    from_epoch: Count
    records: Count
    "How many records after ``session_start`` are carried."


class Forked(Part, frozen=True, kw_only=True):
    """Where a forked session comes from."""

    session: str
    epoch: Count
    line: Number
    "The last line of the original that was taken over."


_NAMES_IN_LOGS = {"fixable_by": "mendable_by", "location": "where"}  # unchanged in files, so that older logs load


class _Record(Lined, frozen=True, kw_only=True, tag_field="kind"):
    time: Time


class SessionStart(_Record, frozen=True, kw_only=True, tag="session_start"):
    """The first record of every epoch's log."""

    format: Literal[1] = 1
    session: str
    epoch: Count
    slot: Count | None
    "The llama-server slot that the session is pinned to, or None."
    baseline_sha256: Hash
    options: dict[str, Any]
    "The pinned members of every request body, in their order."
    server: ServerFacts
    tags: TagsFacts
    carried: Carried | UnsetType = UNSET
    forked: Forked | UnsetType = UNSET


class User(_Record, frozen=True, kw_only=True, tag="user"):
    """What the person asked; ``time`` is when."""

    content: str
    neutralised: Number | UnsetType = UNSET
    "How many control tags were written as text."
    replaced: Number | UnsetType = UNSET
    "How many lone surrogates became U+FFFD."


class Assistant(_Record, frozen=True, kw_only=True, tag="assistant"):
    """The model's own output, as the server returned it."""

    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    tool_calls: Raw | UnsetType = UNSET
    "JSON bytes: an array of calls, or null."
    extra: Extra | UnsetType = UNSET
    replaced: Number | UnsetType = UNSET

    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls, decoded; empty when there are none.

        Raises
        ------
        ValueError
            When ``tool_calls`` does not hold an array of calls.
        """
        if self.tool_calls is UNSET:
            return ()
        try:
            str(self.tool_calls, "utf-8")  # the decoder does not look at the members that it passes over
            return _calls_decoder.decode(self.tool_calls) or ()
        except RecursionError:
            raise ValueError("nested too deep") from None


class ToolResult(_Record, frozen=True, kw_only=True, tag="tool_result"):
    """What a tool answered, as the model gets it."""

    call: Number
    "The number of the call within the session."
    tool_call_id: str
    name: str
    content: str
    truncated: bool
    status: Literal["ok", "denied", "failed", "interrupted"]
    neutralised: Number | UnsetType = UNSET
    replaced: Number | UnsetType = UNSET


class UsageRecord(_Record, frozen=True, kw_only=True, tag="usage"):
    """One completed request: what was sent, what it cost."""

    request: Number
    "1, 2, 3, … within the epoch."
    request_sha256: Hash
    request_bytes: Number
    usage: Usage
    expected_tokens: Count | UnsetType | None = UNSET
    expected_exact: bool | UnsetType = UNSET
    reusable_tokens: Count | UnsetType | None = UNSET
    shortfall: str | UnsetType = UNSET
    "Why fewer tokens than expected were cached, where that is nobody's fault."
    reported: Raw | UnsetType = UNSET
    "The server's own usage, where it does not add up."
    finish_reason: str | None
    response_id: str | None
    attempts: Number
    elapsed_ms: Milliseconds


class CacheLoss(_Record, frozen=True, kw_only=True, tag="cache_loss", rename=_NAMES_IN_LOGS):
    """Tokens that the cache should have had and the server read again."""

    request: Number
    expected_tokens: Count
    expected_exact: bool
    reusable_tokens: Count | None
    cached_tokens: Count
    lost_tokens: Number
    cause: str
    certainty: Literal["confirmed", "suspected", "unexplained"]
    fixable_by: Literal["client", "template", "server", "provider", "nobody"] | None
    location: str | None
    "The member, message or event that the evidence points at."
    evidence: dict[str, Any]
    provider_verdict: str | UnsetType = UNSET


class EpochEnd(_Record, frozen=True, kw_only=True, tag="epoch_end"):
    """The last record of an epoch that ended."""

    reason: Literal["context_full", "asked"]
    prompt_tokens: Count | None
    context_size: Count | None


class ReplayRecord(_Record, frozen=True, kw_only=True, tag="replay", rename=_NAMES_IN_LOGS):
    """One request of a replay: a line of ``<home>/replays/<id>.jsonl``, framed as a session's lines are, but of no session."""

    session: str | None
    "The session replayed, or None where the requests come from elsewhere; the same in every line of a log."
    variant: str | None
    "What was changed on purpose; None where every body is the recorded one; the same in every line of a log."
    request: Number
    "1, 2, 3, … within the log."
    request_sha256: Hash
    request_bytes: Number
    usage: Usage
    expected_tokens: Count | None
    expected_exact: bool | None
    reusable_tokens: Count | None
    shortfall: str | UnsetType = UNSET
    reported: Raw | UnsetType = UNSET
    lost_tokens: Count | None
    "None where it cannot be known; the five members that follow are there where it is above 0."
    cause: str | UnsetType = UNSET
    certainty: Literal["confirmed", "suspected", "unexplained"] | UnsetType = UNSET
    fixable_by: Literal["client", "template", "server", "provider", "nobody"] | UnsetType | None = UNSET
    location: str | UnsetType | None = UNSET
    evidence: dict[str, Any] | UnsetType = UNSET
    finish_reason: str | None
    elapsed_ms: Milliseconds
    model: str | None
    engine: str | None


LogRecord: TypeAlias = SessionStart | User | Assistant | ToolResult | UsageRecord | CacheLoss | EpochEnd


_line_decoder = msgspec.json.Decoder(LogRecord)
_calls_decoder = msgspec.json.Decoder(tuple[ToolCall, ...] | None)
_replay_decoder = msgspec.json.Decoder(ReplayRecord)


def encode_record(record: LogRecord | ReplayRecord) -> bytes:
    """Encode a record, without ``crc``, and check that it reads back as the same record.

    Parameters
    ----------
    record : LogRecord or ReplayRecord
        The record.

    Returns
    -------
    bytes
        ``{"kind":…,"time":…,…}``

    Raises
    ------
    EncodeError
        When a member holds what JSON or the record's type cannot; names it.

    Examples
    --------
    >>> encode_record(User(time="2026-11-30T07:31:05.000000Z", content="Hi."))
    b'{"kind":"user","time":"2026-11-30T07:31:05.000000Z","content":"Hi."}'
    >>> encode_record(User(time="yesterday", content="Hi."))
    Traceback (most recent call last):
        ...
    loopkit.errors.EncodeError: user.time cannot be encoded: 'yesterday' is not a Timestamp. Nothing was written
    """
    return settle(record).data


_AnyRecord = TypeVar("_AnyRecord", bound=LogRecord | ReplayRecord)


class Settled(NamedTuple, Generic[_AnyRecord]):
    """A record as it will read back, and its one form as bytes."""

    record: _AnyRecord
    data: bytes


def settle(record: _AnyRecord) -> Settled[_AnyRecord]:
    """Encode a record as :func:`encode_record` does, and give what a reader will get, so that memory holds what was written."""
    kind = str(record.__struct_config__.tag)
    if not isinstance(record.time, Timestamp) and (not isinstance(record.time, str) or not TIME.fullmatch(record.time)):
        raise EncodeError(f"{kind}.time", f"{record.time!a} is not a Timestamp")
    plain = isinstance(record, (User, ToolResult))
    data = encode_texts(record, kind) if plain else encode(record, kind)
    try:
        again = decode_replay(data) if isinstance(record, ReplayRecord) else decode_record(data)
    except ValueError as error:
        raise EncodeError(kind, str(error)) from error
    if again != record:
        names = (name for name in record.__struct_fields__ if getattr(record, name) != getattr(again, name, UNSET))
        raise EncodeError(f"{kind}.{next(names, '')}", "it does not read back as the value that it was")
    # In any other record 5 may stand for a float: it is equal to 5.0, and is written as that.
    return Settled(cast(_AnyRecord, again), data if plain else encode_texts(again, kind))


def decode_record(data: bytes) -> LogRecord:
    """Decode a record without ``crc``, strictly; raises `ValueError` with the reason and the member."""
    try:
        record = _line_decoder.decode(data)
    except RecursionError:
        raise ValueError("nested too deep") from None
    check_raw(record)
    return record


def decode_replay(data: bytes) -> ReplayRecord:
    """Decode a line of a replay log, without ``crc``, strictly.

    Raises
    ------
    ValueError
        With the reason and the member.
    """
    try:
        return _replay_decoder.decode(data)
    except RecursionError:
        raise ValueError("nested too deep") from None


def check_raw(record: LogRecord) -> None:
    """Read the parts of a record that msgspec passes over as bytes or takes as any JSON.

    Raises
    ------
    ValueError
        When they are not JSON of the right form.
    """
    if isinstance(record, (User, ToolResult)):
        return
    if isinstance(record, Assistant):
        record.calls()
        if record.extra is not UNSET:
            _check_free(record.extra, "extra")
    elif isinstance(record, SessionStart):
        _check_hex(record.baseline_sha256, "baseline_sha256")
        _check_free(record.options, "options")
    elif isinstance(record, CacheLoss):
        _check_free(record.evidence, "evidence")
    elif isinstance(record, UsageRecord):
        _check_hex(record.request_sha256, "request_sha256")
        if record.reported is not UNSET:
            decode(bytes(record.reported), dict[str, Any])


def _check_hex(value: str, name: str) -> None:
    if not _HEX.fullmatch(value):
        raise ValueError(f"not 64 lowercase hex digits - at `$.{name}`")


def _check_free(value: Any, name: str) -> None:
    fault = find_unencodable(value, name)
    if fault is not None:
        raise ValueError(f"{fault[1]} - at `$.{fault[0]}`")
