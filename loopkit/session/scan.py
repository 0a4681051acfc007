"""Reading of a whole log: checked lines are decoded into records in order.

A line with an unknown member is a fault. Every decoded record is encoded again and compared with its line. This finds repeated
keys, another key order, extra spaces and other forms of a number. Decoding and encoding process a block of lines at a time, in C.
Only a block with a fault is decoded line by line, to find the line and the reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from loopkit.contract.json_position import first_difference
from loopkit.contract.records import LogRecord, UsageRecord, decode_record
from loopkit.encoding import find_unencodable
from loopkit.ids import TIME
from loopkit.session.journal import CheckedBlock, Fault, body_of, checked_blocks, torn
from loopkit.session.order import Order

__all__ = ["End", "decode_block", "read_log"]

_decoder = msgspec.json.Decoder(LogRecord)
_encoder = msgspec.json.Encoder()
_DIGITS_AS_ZERO = bytes.maketrans(b"123456789", b"000000000")


class End(NamedTuple):
    """Where a log ends."""

    crc: int
    "Checksum of the last line."
    size: int
    "Size of the log in bytes."
    line: int
    "Number of the last line."


def read_log(path: Path, order: Order, records: list[LogRecord], *, session_dir: Path | None = None) -> End:
    """Read and check a whole log.

    Parameters
    ----------
    path : Path
        The log.
    order : Order
        Order check for this epoch, before its first record. Afterwards it has the state after the last record.
    records : list of LogRecord
        Empty list, to which the records are appended. After an error it contains the records before the fault.
    session_dir : Path, optional
        Directory of the session. With it, the error message contains the command that salvages the session.

    Returns
    -------
    End
        Checksum, size and number of the last line.

    Raises
    ------
    TornLog
        At the first fault of a line, of a record, or of the order of records.
    SessionIOError
        If the file cannot be read.
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
        why = order.unfinished() if records else "the log is empty: it has no session_start record"
        raise torn(Fault(str(path), end.line or 1, end.size, why), session_dir, at_end=True)
    return end


def decode_block(block: CheckedBlock) -> tuple[list[LogRecord], str]:
    """Decode the lines of a block strictly.

    Parameters
    ----------
    block : CheckedBlock
        Lines whose endings and checksums are correct.

    Returns
    -------
    tuple of (list of LogRecord, str)
        The records before the first fault, and the reason of the fault. Without a fault, all records and ``""``.
    """
    text = b"}\n".join([*map(body_of, block.lines), b""])
    try:
        records = _decoder.decode_lines(text)
        if len(records) == len(block.lines) and _encoder.encode_lines(records) == text and _digits_are_valid(records):
            return records, ""
    except (ValueError, RecursionError, OverflowError):  # msgspec's errors are ValueErrors; the loop below finds the line
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


def _digits_are_valid(records: list[LogRecord]) -> bool:
    """Return True if the digits of times and hashes are valid. The decoder checks only their lengths.

    Members that msgspec keeps as bytes are checked later, by `Order`.
    """
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
        return f"{fault[0]} cannot be in a log: {fault[1]}"
    ours = _encoder.encode(record)
    if ours != line:
        at = first_difference(ours, line)
        wrote, found = ascii(ours[at : at + 20])[1:], ascii(line[at : at + 20])[1:]
        return f"not in the form that loopkit writes: found {found} at byte {at} of the line, expected {wrote}"
    return ""
