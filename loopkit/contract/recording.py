"""Recorded requests of agents other than loopkit: the lines of ``<home>/recordings/<id>.jsonl``.

The lines have the same checksums as a session's lines. Conversations are reconstructed when a recording is loaded. Headers are
never recorded.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from loopkit.contract.messages import StrictStruct
from loopkit.contract.records import Milliseconds, Number, Time, Usage
from loopkit.encoding import decode, encode
from loopkit.errors import EncodeError
from loopkit.ids import TIME

__all__ = ["RecordedRequest", "decode_recorded", "encode_recorded"]


class RecordedRequest(StrictStruct, frozen=True, kw_only=True, tag_field="kind", tag="recorded"):
    """One request that an agent sent, and its response."""

    time: Time
    "When the response ended."
    request: Number
    "1, 2, 3, … in the order in which responses ended. A missing number is a request whose line could not be written."
    sent: Time
    "When the request was sent."
    path: str
    "Path of the URL, without the query."
    body: str
    "The exact text of the request's body."
    status: int | None
    "HTTP status; None if there was no response."
    ended: Literal["whole", "hung_up", "cut", "failed"]
    "``hung_up``: the client closed the connection. ``cut``: the server did. ``failed``: the response contained an error."
    usage: Usage
    reported: Raw | UnsetType = UNSET
    "The server's original usage object, if its numbers are inconsistent."
    finish_reason: str | None
    response_id: str | None
    model: str | None
    "Model named by the response, or else by the request."
    engine: str | None
    "Engine, if the response identifies it: ``llama.cpp``, ``openai``, ``anthropic``."
    elapsed_ms: Milliseconds
    "Time from sending the request to the end of the response, in milliseconds."

    @property
    def answered(self) -> bool:
        """True if the response is complete and successful."""
        return self.ended == "whole" and self.status is not None and 200 <= self.status < 300


_decoder = msgspec.json.Decoder(RecordedRequest)


def encode_recorded(record: RecordedRequest) -> bytes:
    """Encode a record without ``crc``.

    Raises
    ------
    EncodeError
        If JSON or the record's type cannot represent a value.
    """
    data = encode(record, "recorded")
    try:
        decode_recorded(data)
    except ValueError as error:
        raise EncodeError("recorded", str(error)) from error
    return data


def decode_recorded(data: bytes) -> RecordedRequest:
    """Decode a line of a recording without ``crc`` strictly.

    Raises
    ------
    ValueError
        If the line is invalid. The message names the member and the reason.

    Examples
    --------
    >>> decode_recorded(b'{"kind":"recorded","time":"now"}')
    Traceback (most recent call last):
        ...
    msgspec.ValidationError: Expected `str` of length >= 27 - at `$.time`
    """
    try:
        record = _decoder.decode(data)
    except RecursionError:
        raise ValueError("nested too deep") from None
    for name in ("time", "sent"):
        if not TIME.fullmatch(getattr(record, name)):
            raise ValueError(f"{getattr(record, name)!a} is not a Timestamp - at `$.{name}`")
    if record.reported is not UNSET:
        decode(bytes(record.reported), dict)
    return record
