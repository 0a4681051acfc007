"""Recorded requests of agents other than loopkit: the lines of ``<home>/recordings/<id>.jsonl``.

Each line has a checksum, as in the log of a session. A recording contains single requests; loading it finds out which requests
belong to the same conversation. HTTP headers, which may contain API keys, are left out.
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
    "1, 2, 3, … in the order in which the responses ended. If a number is missing, that request could not be written to disk."
    sent: Time
    "When the request was sent."
    path: str
    "Path of the URL, without the query."
    body: str
    "The text of the request's body, exactly as it was sent."
    status: int | None
    "HTTP status; None if there was no response."
    ended: Literal["whole", "hung_up", "cut", "failed"]
    "How the response ended. ``hung_up``: the client closed the connection. ``cut``: the server closed it. ``failed``: an error."
    usage: Usage
    reported: Raw | UnsetType = UNSET
    "The server's own usage object, kept if its numbers contradict each other."
    finish_reason: str | None
    response_id: str | None
    model: str | None
    "Model that the response names; if it names none, the model of the request."
    engine: str | None
    "Server software or API, if the response shows it: ``llama.cpp``, ``openai``, ``anthropic``."
    elapsed_ms: Milliseconds
    "Time from sending the request to the end of the response, in milliseconds."

    @property
    def answered(self) -> bool:
        """True if the response is complete and successful."""
        return self.ended == "whole" and self.status is not None and 200 <= self.status < 300


_decoder = msgspec.json.Decoder(RecordedRequest)


def encode_recorded(record: RecordedRequest) -> bytes:
    """Return a recorded request as one line of JSON, without the checksum ``crc``.

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
    """Decode a line of a recording, without its checksum ``crc``. An unknown member or a wrong type is an error.

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
