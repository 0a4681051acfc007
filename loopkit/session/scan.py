"""A log read whole: from checked lines to records in order.

Every line is decoded into its record, unknown members refused; every record is encoded again and compared with its line, so that
a doubled key, another key order, a stray space or another form of a number is seen. Both happen a block at a time, in C; only a
block in which something is wrong is gone through line by line, to name the line and say why.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from loopkit.contract.records import LogRecord, UsageRecord, decode_record
from loopkit.contract.request import first_difference
from loopkit.encoding import find_unencodable
from loopkit.ids import TIME
from loopkit.session.journal import Block, Fault, body_of, checked_blocks, torn
from loopkit.session.order import Order

__all__ = ["End", "decode_block", "read_log"]

_decoder = msgspec.json.Decoder(LogRecord)
_encoder = msgspec.json.Encoder()
_DIGITS_AS_ZERO = bytes.maketrans(b"123456789", b"000000000")


class End(NamedTuple):
    """Where a log ends."""

    crc: int
    size: int
    "In bytes."
    line: int
    "Number of the last line."


def read_log(path: Path, order: Order, records: list[LogRecord], *, session_dir: Path | None = None) -> End:
    """Read a log and check it whole.

    Parameters
    ----------
    path : Path
        The log.
    order : Order
        At the start of its epoch; afterwards where the log ends.
    records : list of LogRecord
        Filled; at a fault it holds the records before it, so that the caller can say what is sound.
    session_dir : Path, optional
        For the error, see :func:`~loopkit.session.journal.checked_blocks`.

    Raises
    ------
    TornLog
        At the first fault.
    SessionIOError
        When the file cannot be read.
    """
    end = End(0, 0, 0)
    for block in checked_blocks(path, session_dir=session_dir):
        decoded, why = decode_block(block)
        taken, refused = order.take(decoded)
        records += decoded[:taken]
        why = refused or why
        if why:
            index = len(records) - end.line
            raise torn(Fault(str(path), block.line + index, block.offset_of(index), why), session_dir)
        end = End(block.crc, block.offset_of(len(block.lines)), len(records))
    if not order.sound:
        why = order.unfinished() if records else "the log is empty, so there is no session_start"
        raise torn(Fault(str(path), end.line or 1, end.size, why), session_dir, at_end=True)
    return end


def decode_block(block: Block) -> tuple[list[LogRecord], str]:
    """Decode the lines of a block, strictly.

    Returns
    -------
    tuple of (list of LogRecord, str)
        The records of the sound lines in front of the first fault, and what is wrong with the next; ``""`` when nothing is.
    """
    text = b"}\n".join([*map(body_of, block.lines), b""])
    try:
        records = _decoder.decode_lines(text)
        if len(records) == len(block.lines) and _encoder.encode_lines(records) == text and _parts_hold(records):
            return records, ""
    except (ValueError, RecursionError, OverflowError):  # msgspec's own errors are ValueErrors; the line is named below
        pass
    records = []
    for body in map(body_of, block.lines):
        line = body + b"}"
        try:
            record = decode_record(line)
        except ValueError as error:
            return records, f"not a record: {error}"
        why = _why_not_canonical(line, record)
        if why:
            return records, why
        records.append(record)
    return records, ""


def _parts_hold(records: list[LogRecord]) -> bool:
    """Look at what the decoder passes over: the digits of times and hashes. Raw parts are read with the order."""
    times = [record.time for record in records]
    digits = "".join(times).encode()
    if digits.translate(_DIGITS_AS_ZERO) != b"0000-00-00T00:00:00.000000Z" * len(times):
        return False
    if digits[14::27].strip(b"012345") or digits[17::27].strip(b"012345"):
        return False
    hours = {times[0][:13]} if digits.count(digits[:13]) == len(times) else {time[:13] for time in times}
    if not all(TIME.fullmatch(hour + ":00:00.000000Z") for hour in hours):
        return False
    hashes = "".join([record.request_sha256 for record in records if type(record) is UsageRecord])
    return not hashes.encode().translate(None, b"0123456789abcdef")


def _why_not_canonical(line: bytes, record: LogRecord) -> str:
    if not TIME.fullmatch(record.time):
        return f"{record.time!a} is not a Timestamp"
    fault = find_unencodable(record, "record")
    if fault is not None:
        return f"{fault[0]} is not what loopkit writes: {fault[1]}"
    ours = _encoder.encode(record)
    if ours != line:
        at = first_difference(ours, line)
        wrote, found = ascii(ours[at : at + 20])[1:], ascii(line[at : at + 20])[1:]
        return f"not in the one form that loopkit writes: {found} stands at its byte {at}, where {wrote} belongs"
    return ""
