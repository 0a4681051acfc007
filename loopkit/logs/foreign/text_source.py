r"""Files of other tools, split into valid lines in bounded memory.

Lines end with ``\n`` only. A byte order mark, ``\r`` before a line end and empty lines are ignored. A line becomes a problem
with its line number and offset if it is not JSON or UTF-8, has NUL bytes, is incomplete or is longer than `MAX_LINE_BYTES`.
The lines around it are still read. A JSON document over several lines is recognised by its first line and read whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from loopkit.contract.records import Usage
from loopkit.errors import SessionIOError, TornLog, describe
from loopkit.logs.foreign.log_file import BOM, DECOMPRESS_ERRORS, open_log
from loopkit.logs.problems import Errors, Problem

__all__ = ["MAX_LINE_BYTES", "TextLine", "TextSource"]

T = TypeVar("T")

BLOCK = 1 << 16
MAX_LINE_BYTES = 1 << 25
"Maximum length of a line. A longer line is skipped and becomes a problem."
NEXT_VALUE = re.compile(rb"(?<=\n\})[ \t\r]*\n+(?=\{)")
"Separator of two JSON values that each take several lines."
BYTE_IN_MESSAGE = re.compile(r" \(byte (\d+)\)$")
ESCAPES = re.compile(rb"(?i)\\ud[89ab]..\\ud[c-f]..|(\\ud[89a-f]..)|\\.")
"Surrogate pairs, lone surrogates (group 1), and all other escapes."


class TextLine(NamedTuple):
    """A line without its end, with its number and byte offset."""

    data: bytes
    number: int
    offset: int


class TextSource:
    """A file and the problems found in it.

    Parameters
    ----------
    path : Path
        The file.
    errors : {"raise", "report"}
        Raise `TornLog` at the first damaged line, or add every damaged line to `problems`.
    """

    def __init__(self, path: Path, *, errors: Errors) -> None:
        self.path = path
        self._raise = errors == "raise"
        self._faults: list[Problem] = []
        self._left_out: dict[str, int] = {}
        self._counted = 0, 1
        "Offset up to which lines were counted, and the number of the line that starts there."

    @property
    def problems(self) -> list[Problem]:
        """The problems found so far: one for each damaged line, and one for each kind of data that was left out."""
        counted = [Problem(str(self.path), None, None, "left_out", why, count) for why, count in self._left_out.items()]
        return self._faults + counted

    def count_left_out(self, why: str, count: int = 1) -> None:
        """Count valid data that is left out of the frames. `why` becomes the text of the problem."""
        self._left_out[why] = self._left_out.get(why, 0) + count

    def add_fault(self, line: TextLine, why: str, *, at_end: bool = False) -> None:
        """Add a damaged line to the problems, or raise it.

        Raises
        ------
        TornLog
            If ``errors="raise"``.
        """
        if byte := BYTE_IN_MESSAGE.search(why):  # turn msgspec's offset in the line into one in the file
            why, line = why[: byte.start()], line._replace(offset=line.offset + int(byte[1]))
        if self._raise:
            raise TornLog(str(self.path), line.number, line.offset, why, at_end=at_end)
        self._faults.append(Problem(str(self.path), line.number, line.offset, "torn", why))

    def check_usage(self, usage: Usage) -> Usage:
        """Return the usage, without its cached tokens if they exceed the prompt."""
        if usage.prompt_tokens is None or (usage.cached_tokens or 0) <= usage.prompt_tokens:
            return usage
        self.count_left_out("cached token counts that exceed their prompt")
        return replace(usage, cached_tokens=None)

    def add_impossible_reuse(self, line: TextLine, why: str) -> None:
        """Add a problem for a line with impossible cached tokens. The line is still read."""
        self._faults.append(Problem(str(self.path), line.number, line.offset, "impossible_reuse", why))

    def lines(self) -> Iterator[TextLine]:
        """Yield every line that is valid UTF-8."""
        for offset, block in self._blocks():
            yield from self._sound_lines(offset, block)

    def json_values(self) -> Iterator[TextLine]:
        """Yield every JSON value: one per line, or the values of documents or arrays that take several lines.

        The first line of the file decides which.
        """
        with self._opened() as file:
            first = file.readline(MAX_LINE_BYTES).removeprefix(BOM).strip()
        if first[:1] != b"[" and first != b"{":
            yield from self.lines()
        else:
            yield from self._document()

    def _document(self) -> Iterator[TextLine]:
        with self._opened() as file:
            data = file.read(MAX_LINE_BYTES + 1)
        if len(data) > MAX_LINE_BYTES:
            why = f"a JSON document of more than {MAX_LINE_BYTES:,} bytes is not read. Write one value per line"
            self.add_fault(TextLine(b"", 1, 0), why)
            return
        if not self._is_sound(TextLine(data, 1, 0)):
            return
        end, number = 0, 1
        for piece in NEXT_VALUE.split(data.removeprefix(BOM).strip()):
            try:
                items = msgspec.json.decode(piece, type=list[Raw]) if piece[:1] == b"[" else [piece]
                msgspec.json.decode(piece, type=Raw)
            except (ValueError, RecursionError) as error:
                start = data.index(piece, end)
                self.add_fault(TextLine(piece, data.count(b"\n", 0, start) + 1, start), f"cannot decode the value: {error}")
                continue
            for item in map(bytes, items):
                start = data.index(item, end)
                number += data.count(b"\n", end, start)  # counting from the start would take quadratic time
                yield TextLine(item, number, start)
                end = start + len(item)
                number += item.count(b"\n")

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        try:
            with open_log(self.path) as file:
                yield file
        except (OSError, *DECOMPRESS_ERRORS) as error:
            raise SessionIOError(str(self.path), "read", describe(error)) from error

    def decode_lines(self, decoder: msgspec.json.Decoder[T]) -> Iterator[T]:
        """Yield the decoded value of every line. Faster than `decode_with_lines`, which also yields the lines."""
        return chain.from_iterable(self._decode_blocks(decoder))

    def _decode_blocks(self, decoder: msgspec.json.Decoder[T]) -> Iterator[list[T]]:
        for offset, block in self._blocks():
            if b"\0" not in block and _is_utf8(block):
                lines = block.removesuffix(b"\n").split(b"\n")  # msgspec's own decode_lines accepts a value over two lines
                try:
                    yield list(map(decoder.decode, lines))
                    continue
                except (ValueError, RecursionError):
                    pass
            values = (self._decode_or_repair(decoder, line) for line in self._sound_lines(offset, block))
            yield [value for value in values if value is not None]

    def decode_with_lines(self, decoder: msgspec.json.Decoder[T]) -> Iterator[tuple[TextLine, T]]:
        """Yield every line together with its decoded value."""
        for line in self.lines():
            value = self._decode_or_repair(decoder, line)
            if value is not None:
                yield line, value

    def decode(self, decoder: msgspec.json.Decoder[T], line: TextLine) -> T | None:
        """Decode a line without repairs. If that fails, add a problem and return None."""
        value: T | None
        value, why = _try_decode(decoder, line.data)
        if why is not None:
            self.add_fault(line, f"cannot decode the line: {why}")
        return value

    def _decode_or_repair(self, decoder: msgspec.json.Decoder[T], line: TextLine) -> T | None:
        """Decode a line. If lone surrogates in its texts are the only fault, they are replaced and counted."""
        value: T | None
        value, why = _try_decode(decoder, line.data)
        if why is None:
            return value
        data, replaced = _replace_lone_surrogates(line.data)
        if replaced and _try_decode(decoder, data)[1] is None:
            self.count_left_out("lone surrogates, each replaced by U+FFFD", replaced)
            line = line._replace(data=data)
        return self.decode(decoder, line)

    def _sound_lines(self, offset: int, block: bytes) -> Iterator[TextLine]:
        """Yield the valid lines of a block of whole lines. Only the last line of the file may lack a line feed."""
        first = number = self._number_at(offset)
        pieces = block.split(b"\n")
        cut = pieces.pop()
        for number, data in enumerate(pieces, first):
            line = TextLine(data, number, offset)
            offset += len(data) + 1
            if data.strip() and self._is_sound(line):
                yield line
        self._counted = offset, first + len(pieces)
        last = TextLine(cut, first + len(pieces), offset)
        if cut.strip() and self._is_sound(last):
            if _is_json(_replace_lone_surrogates(cut)[0]):  # only the line feed is missing
                yield last
            else:
                self.add_fault(last, "the last line is incomplete", at_end=True)

    def _number_at(self, offset: int) -> int:
        """Return the number of the line that starts at an offset. The lines before it are counted only by this call."""
        at, number = self._counted
        with open_log(self.path) as file:
            file.seek(at)
            while at < offset:
                data = file.read(min(BLOCK, offset - at))
                if not data:
                    break
                at, number = at + len(data), number + data.count(b"\n")
        self._counted = offset, number
        return number

    def _is_sound(self, line: TextLine) -> bool:
        if b"\0" in line.data:
            nuls = line.data.count(b"\0")
            self.add_fault(line._replace(offset=line.offset + line.data.index(b"\0")), f"{nuls:,} NUL bytes")
        elif not _is_utf8(line.data):
            self.add_fault(line, "invalid UTF-8")
        else:
            return True
        return False

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield the file as blocks of whole lines, with the offset of each block. Only the last line may lack a line feed."""
        pieces: list[bytes] = []  # the pieces of an incomplete line
        offset = size = 0  # of that line; if it is too long, `size` also counts pieces that were dropped
        try:
            with open_log(self.path) as file:
                offset = len(BOM) if file.read(len(BOM)) == BOM else 0
                file.seek(offset)
                while data := file.read(BLOCK):
                    end = data.rfind(b"\n") + 1
                    if size > MAX_LINE_BYTES and end:
                        self._too_long(offset)
                        skipped = data.index(b"\n") + 1
                        offset += size + skipped
                        pieces, size = [], 0
                        data, end = data[skipped:], end - skipped
                    if end:
                        block = b"".join([*pieces, data[:end]])
                        yield offset, block
                        offset += len(block)
                        pieces, size = [], 0
                    pieces.append(data[end:])
                    size += len(pieces[-1])
                    if size > MAX_LINE_BYTES:
                        pieces.clear()
                if size > MAX_LINE_BYTES:
                    self._too_long(offset)
                elif size:
                    yield offset, b"".join(pieces)
        except DECOMPRESS_ERRORS as error:
            self.add_fault(TextLine(b"", self._number_at(offset), offset), f"cannot decompress: {describe(error)}", at_end=True)
        except OSError as error:
            raise SessionIOError(str(self.path), "read", describe(error)) from error

    def _too_long(self, offset: int) -> None:
        line = TextLine(b"", self._number_at(offset), offset)
        self.add_fault(line, f"a line longer than {MAX_LINE_BYTES:,} bytes is not read")


def _try_decode(decoder: msgspec.json.Decoder[Any], data: bytes) -> tuple[Any, str | None]:
    """Return the decoded line, or None and why decoding failed."""
    try:
        return decoder.decode(data), None
    except RecursionError:
        return None, "nested too deeply"
    except ValueError as error:
        return None, str(error)


def _replace_lone_surrogates(data: bytes) -> tuple[bytes, int]:
    """Replace lone surrogate escapes in JSON by U+FFFD, and count them. JavaScript writes them where it cuts a text."""
    count = 0

    def replacement(escape: re.Match[bytes]) -> bytes:
        nonlocal count
        count += escape[1] is not None
        return rb"\ufffd" if escape[1] else escape[0]

    return ESCAPES.sub(replacement, data), count


def _is_utf8(data: bytes) -> bool:
    try:
        return data.isascii() or bool(str(data, "utf-8"))
    except UnicodeDecodeError:
        return False


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return False
    return True
