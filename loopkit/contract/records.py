"""The records of a log, as frozen msgspec Structs.

Members are declared in the order in which they are written. A member with the default ``UNSET`` may be absent. Absent, null and
empty are three different things. Decoding an unknown member or kind is an error. Parts of the model's output that may have any
form, such as tool calls, are kept as the bytes that the server sent (``msgspec.Raw``).
``loopkit/session/FORMAT.md`` documents the format.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar, cast

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from loopkit.contract.messages import Extra, Lined, StrictStruct, ToolCall
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
    "Stored",
    "TagsFacts",
    "ToolResult",
    "Usage",
    "UsageRecord",
    "User",
    "decode_record",
    "decode_replay",
    "encode_record",
    "encode_stored",
]

FORMAT = 1
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Number = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
Milliseconds = Annotated[float, Meta(ge=0)]
Hash = Annotated[str, Meta(min_length=64, max_length=64)]
Time = Annotated[str, Meta(min_length=27, max_length=27)]

# The types above check only lengths, which msgspec does fast in C; patterns would be slow. So check_raw checks the hex digits.
_HEX = re.compile(r"[0-9a-f]*")


class Usage(StrictStruct, frozen=True, kw_only=True):
    """Token counts and times of one request. None means that the server did not report the number, which differs from 0."""

    prompt_tokens: Count | None = None
    "Tokens of the whole prompt, including cached tokens."
    cached_tokens: Count | None = None
    "Prompt tokens that came from the prompt cache."
    cache_write_tokens: Count | None = None
    "Prompt tokens that the provider charged for writing to its cache."
    completion_tokens: Count | None = None
    "Tokens of the completion, including reasoning and the end token."
    reasoning_tokens: Count | None = None
    "Completion tokens that are reasoning."
    ttft_ms: Milliseconds | None = None
    "Time from sending the request to the first token, in milliseconds, measured by the client."
    prompt_ms: Milliseconds | None = None
    "Time to process the prompt, in milliseconds, measured by the server."
    predicted_ms: Milliseconds | None = None
    "Time to generate the completion, in milliseconds, measured by the server."

    @property
    def read_tokens(self) -> int | None:
        """Prompt tokens that the server computed, because they were not cached; None if ``cached_tokens`` is unknown."""
        if self.prompt_tokens is None or self.cached_tokens is None:
            return None
        return self.prompt_tokens - self.cached_tokens


class ServerFacts(StrictStruct, frozen=True, kw_only=True):
    """What the server reported about itself when the epoch began. A member that it did not report is None."""

    engine: str | None = None
    build: str | None = None
    model: str | None = None
    context_size: Count | None = None
    "Maximum tokens of one conversation."


class TagsFacts(StrictStruct, frozen=True, kw_only=True):
    """The set of control tags that is neutralised in new text of the epoch; see `loopkit.Tags`."""

    id: str
    literals: tuple[str, ...] | UnsetType = UNSET
    "Tags that were added to the default set, which does not cover them; absent if there are none."
    cuts: tuple[str, ...] | UnsetType = UNSET
    "Strings that the server's chat template deletes from messages, in the template's order."


class Carried(StrictStruct, frozen=True, kw_only=True):
    """How many records an epoch carried over from an earlier epoch, and from where."""

    kind: str
    "``turn``, ``summary`` or ``text``."
    from_epoch: Count
    records: Count
    "Number of carried records. They follow directly after ``session_start``."


class Forked(StrictStruct, frozen=True, kw_only=True):
    """The source of a forked or salvaged session."""

    session: str
    epoch: Count
    line: Number
    "Number of the last line that was copied from the original log."


_NAMES_IN_LOGS = {"fixable_by": "mendable_by", "location": "where"}  # the names in log files never change


class _Record(Lined, frozen=True, kw_only=True, tag_field="kind"):
    time: Time


class SessionStart(_Record, frozen=True, kw_only=True, tag="session_start"):
    """The first record of every epoch's log."""

    format: Literal[1] = 1
    session: str
    epoch: Count
    slot: Count | None
    "llama-server slot that the session is pinned to, or None."
    baseline_sha256: Hash
    options: dict[str, Any]
    "Members, such as ``temperature``, that every request body of the epoch contains, in this order."
    server: ServerFacts
    tags: TagsFacts
    carried: Carried | UnsetType = UNSET
    forked: Forked | UnsetType = UNSET


class User(_Record, frozen=True, kw_only=True, tag="user"):
    """A user message. ``time`` is when the user sent it."""

    content: str
    neutralised: Number | UnsetType = UNSET
    "Number of control tags that were neutralised."
    replaced: Number | UnsetType = UNSET
    "Number of lone surrogates that were replaced by U+FFFD."


class Assistant(_Record, frozen=True, kw_only=True, tag="assistant"):
    """The model's output, exactly as the server returned it."""

    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    tool_calls: Raw | UnsetType = UNSET
    "The tool calls as the server sent them: bytes of a JSON array, or of null."
    extra: Extra | UnsetType = UNSET
    replaced: Number | UnsetType = UNSET

    def calls(self) -> tuple[ToolCall, ...]:
        """Return the decoded tool calls; empty if there are none.

        Raises
        ------
        ValueError
            If ``tool_calls`` does not contain an array of calls.
        """
        if self.tool_calls is UNSET:
            return ()
        try:
            str(self.tool_calls, "utf-8")  # the decoder does not check UTF-8 in members that it skips
            return _calls_decoder.decode(self.tool_calls) or ()
        except RecursionError:
            raise ValueError("nested too deep") from None


class ToolResult(_Record, frozen=True, kw_only=True, tag="tool_result"):
    """The result of a tool call, with the text that the model gets."""

    call: Number
    "Number of the call within the session, from 1."
    tool_call_id: str
    name: str
    content: str
    truncated: bool
    status: Literal["ok", "denied", "failed", "interrupted"]
    neutralised: Number | UnsetType = UNSET
    replaced: Number | UnsetType = UNSET


class UsageRecord(_Record, frozen=True, kw_only=True, tag="usage"):
    """One completed request: its hash, usage and timings."""

    request: Number
    "Number of the request within the epoch, from 1."
    request_sha256: Hash
    request_bytes: Number
    usage: Usage
    expected_tokens: Count | UnsetType | None = UNSET
    expected_exact: bool | UnsetType = UNSET
    reusable_tokens: Count | UnsetType | None = UNSET
    shortfall: str | UnsetType = UNSET
    "Why fewer tokens than expected were cached, if nobody can fix the cause."
    reported: Raw | UnsetType = UNSET
    "The server's own usage object, kept if its numbers contradict each other."
    finish_reason: str | None
    response_id: str | None
    attempts: Number
    elapsed_ms: Milliseconds


class CacheLoss(_Record, frozen=True, kw_only=True, tag="cache_loss", rename=_NAMES_IN_LOGS):
    """Cache loss of one request: tokens that should have been cached, but were processed again, and the cause."""

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
    "Where the cause was found: a member of the request, a message or an event. ``evidence`` has the details."
    evidence: dict[str, Any]
    provider_verdict: str | UnsetType = UNSET


class EpochEnd(_Record, frozen=True, kw_only=True, tag="epoch_end"):
    """The last record of an epoch that ended."""

    reason: Literal["context_full", "asked"]
    prompt_tokens: Count | None
    context_size: Count | None


class ReplayRecord(_Record, frozen=True, kw_only=True, tag="replay", rename=_NAMES_IN_LOGS):
    """One request of a replay: a line of ``<home>/replays/<id>.jsonl``. Lines have checksums, as in the log of a session."""

    session: str | None
    "Id of the replayed session; None if the requests are not from a session. All lines of a log have the same value."
    variant: str | None
    "Name of the change that was applied to the bodies; None if they are unchanged. All lines of a log have the same value."
    request: Number
    "Number of the request within the log, from 1."
    request_sha256: Hash
    request_bytes: Number
    usage: Usage
    expected_tokens: Count | None
    expected_exact: bool | None
    reusable_tokens: Count | None
    shortfall: str | UnsetType = UNSET
    reported: Raw | UnsetType = UNSET
    lost_tokens: Count | None
    "Number of lost tokens; None if it is unknown. Only if it is above 0, the next five members are present."
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
    """Return a record as JSON, ``{"kind":…,"time":…,…}``, without the checksum ``crc``.

    The bytes are decoded again, to check that a reader will get the same record.

    Raises
    ------
    EncodeError
        If JSON or the record's type cannot represent a member. The message names the member.

    Examples
    --------
    >>> encode_record(User(time="2026-11-30T07:31:05.000000Z", content="Hi."))
    b'{"kind":"user","time":"2026-11-30T07:31:05.000000Z","content":"Hi."}'
    >>> encode_record(User(time="yesterday", content="Hi."))
    Traceback (most recent call last):
        ...
    loopkit.errors.EncodeError: user.time cannot be encoded: 'yesterday' is not a Timestamp. Nothing was written
    """
    return encode_stored(record).data


_AnyRecord = TypeVar("_AnyRecord", bound=LogRecord | ReplayRecord)


class Stored(NamedTuple, Generic[_AnyRecord]):
    """The encoded bytes of a record, and the record as a reader will decode it from these bytes."""

    record: _AnyRecord
    data: bytes


def encode_stored(record: _AnyRecord) -> Stored[_AnyRecord]:
    """Encode a record. Return the bytes, and the record as a reader will decode it, so that memory and log agree.

    Raises
    ------
    EncodeError
        As in :func:`encode_record`.
    """
    kind = str(record.__struct_config__.tag)
    if not isinstance(record.time, Timestamp) and (not isinstance(record.time, str) or not TIME.fullmatch(record.time)):
        raise EncodeError(f"{kind}.time", f"{record.time!a} is not a Timestamp")
    plain = isinstance(record, (User, ToolResult))
    data = encode_texts(record, kind) if plain else encode(record, kind)
    try:
        decoded = decode_replay(data) if isinstance(record, ReplayRecord) else decode_record(data)
    except ValueError as error:
        raise EncodeError(kind, str(error)) from error
    if decoded != record:
        names = (name for name in record.__struct_fields__ if getattr(record, name) != getattr(decoded, name, UNSET))
        raise EncodeError(f"{kind}.{next(names, '')}", "decoding it gives another value")
    # A float member may contain the int 5. Decoding turns it into 5.0, so the decoded record is encoded once more.
    return Stored(cast(_AnyRecord, decoded), data if plain else encode_texts(decoded, kind))


def decode_record(data: bytes) -> LogRecord:
    """Decode a record from JSON without the checksum ``crc``. An unknown member or a wrong type is an error.

    Raises
    ------
    ValueError
        If the record is invalid. The message names the member and the reason.
    """
    try:
        record = _line_decoder.decode(data)
    except RecursionError:
        raise ValueError("nested too deep") from None
    check_raw(record)
    return record


def decode_replay(data: bytes) -> ReplayRecord:
    """Decode a line of a replay log, without its checksum ``crc``. An invalid line raises ``ValueError``."""
    try:
        return _replay_decoder.decode(data)
    except RecursionError:
        raise ValueError("nested too deep") from None


def check_raw(record: LogRecord) -> None:
    """Check the members of a record that msgspec's decoder does not check: raw bytes, free JSON and hashes.

    Raises
    ------
    ValueError
        If a member is invalid. The message names the member and the reason.
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
