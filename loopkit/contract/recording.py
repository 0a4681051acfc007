"""One request of an agent that is not loopkit's own, as it was recorded: a line of ``<home>/recordings/<id>.jsonl``.

It is framed as a session's lines are, but of no session: whose conversation a request goes on with is found out when it is read.
Holds what was sent and what was said of it, never a header. Knows nothing of files or of HTTP.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from loopkit.contract.messages import Part
from loopkit.contract.records import Milliseconds, Number, Time, Usage
from loopkit.encoding import decode, encode
from loopkit.errors import EncodeError
from loopkit.ids import TIME

__all__ = ["RecordedRequest", "decode_recorded", "encode_recorded"]


class RecordedRequest(Part, frozen=True, kw_only=True, tag_field="kind", tag="recorded"):
    """One request that an agent sent, and what came of it."""

    time: Time
    "When its answer had ended."
    request: Number
    "1, 2, 3, … as answers ended; a number left out is a request whose line could not be written."
    sent: Time
    "When it was sent."
    path: str
    "Of the URL, without its query."
    body: str
    "The very text that was sent."
    status: int | None
    "Of HTTP; None where no answer came."
    ended: Literal["whole", "hung_up", "cut", "failed"]
    "How the answer did: the client hung up, the server broke off, an error stood in it."
    usage: Usage
    reported: Raw | UnsetType = UNSET
    "The server's own usage, where it does not add up."
    finish_reason: str | None
    response_id: str | None
    model: str | None
    "As the answer names it, else as the request does."
    engine: str | None
    "Where the answer tells it: ``llama.cpp``, ``openai``, ``anthropic``."
    elapsed_ms: Milliseconds
    "From sending the request to the end of its answer."

    @property
    def answered(self) -> bool:
        """Whether it is a completed request."""
        return self.ended == "whole" and self.status is not None and 200 <= self.status < 300


_decoder = msgspec.json.Decoder(RecordedRequest)


def encode_recorded(record: RecordedRequest) -> bytes:
    """Encode a record, without ``crc``.

    Raises
    ------
    EncodeError
        When it holds what JSON or its type cannot.
    """
    data = encode(record, "recorded")
    try:
        decode_recorded(data)
    except ValueError as error:
        raise EncodeError("recorded", str(error)) from error
    return data


def decode_recorded(data: bytes) -> RecordedRequest:
    """Decode a line of a recording, without ``crc``, strictly.

    Raises
    ------
    ValueError
        With the reason and the member.

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
