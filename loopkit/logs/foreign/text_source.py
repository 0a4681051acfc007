r"""A file of another tool, as sound lines: split on ``\n`` only, in bounded memory, each fault named and passed over.

A byte order mark is left out, ``\r`` before an end is white space, empty lines are nothing. What is no JSON, no UTF-8, has NUL
bytes, is cut off or longer than `LONGEST` is a problem with its line and offset, and the lines around it are read. A document
that spans lines is told by its first one, and read whole. Knows no format.
"""

from __future__ import annotations

import gzip
import re
import zlib
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
from loopkit.logs.problems import Errors, Problem

__all__ = ["LONGEST", "UNPACKED", "Line", "Source", "first_members", "opened"]

T = TypeVar("T")

BLOCK = 1 << 16
TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:]', re.S)
LONGEST = 1 << 25
"Bytes of a line from which on it is passed over unread."
BOM = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
UNPACKED = (EOFError, zlib.error, gzip.BadGzipFile)
"What a packed file that is damaged raises."
NEXT = re.compile(rb"(?<=\n\})[ \t\r]*\n+(?=\{)")
"Between two values that are each written over several lines."
IN_LINE = re.compile(r" \(byte (\d+)\)$")
ESCAPES = re.compile(rb"(?i)\\ud[89ab]..\\ud[c-f]..|(\\ud[89a-f]..)|\\.")
"Whole pairs of surrogates, lone ones, and every other escape."


class Line(NamedTuple):
    """A line without its end, and where it stands."""

    data: bytes
    number: int
    offset: int


class Source:
    """One file, and what was found wrong with it.

    Parameters
    ----------
    path : Path
        The file.
    errors : {"raise", "report"}
        What to do at a fault.
    """

    def __init__(self, path: Path, *, errors: Errors) -> None:
        self.path = path
        self._raise = errors == "raise"
        self._faults: list[Problem] = []
        self._left_out: dict[str, int] = {}
        self._counted = 0, 1
        "An offset, and the number of the line that begins there."

    @property
    def problems(self) -> list[Problem]:
        """Every fault, and what was left out, counted."""
        counted = [Problem(str(self.path), None, None, "left_out", why, count) for why, count in self._left_out.items()]
        return self._faults + counted

    def left_out(self, why: str, count: int = 1) -> None:
        """Count something that is no fault, and that no frame holds."""
        self._left_out[why] = self._left_out.get(why, 0) + count

    def fault(self, line: Line, why: str, *, at_end: bool = False) -> None:
        """Say what is wrong with a line.

        Raises
        ------
        TornLog
            With ``errors="raise"``.
        """
        if inner := IN_LINE.search(why):  # what counts from the line's beginning, and one number is enough
            why, line = why[: inner.start()], line._replace(offset=line.offset + int(inner[1]))
        if self._raise:
            raise TornLog(str(self.path), line.number, line.offset, why, at_end=at_end)
        self._faults.append(Problem(str(self.path), line.number, line.offset, "torn", why))

    def possible(self, usage: Usage) -> Usage:
        """Counts as they are; cached tokens that are more than their prompt are counted and left out."""
        if usage.prompt_tokens is None or (usage.cached_tokens or 0) <= usage.prompt_tokens:
            return usage
        self.left_out("cached tokens that are more than the prompt which should hold them")
        return replace(usage, cached_tokens=None)

    def impossible(self, line: Line, why: str) -> None:
        """Say that a line reports more cached tokens than can be; the line is read all the same."""
        self._faults.append(Problem(str(self.path), line.number, line.offset, "impossible_reuse", why))

    def lines(self) -> Iterator[Line]:
        """Every line that is sound UTF-8, one by one."""
        for offset, block in self._blocks():
            yield from self._sound(offset, block)

    def values(self) -> Iterator[Line]:
        """Every JSON value: one a line; where the file is a document over several lines or an array, its values."""
        with self._opened() as file:
            first = file.readline(LONGEST).removeprefix(BOM).strip()
        if first[:1] != b"[" and first != b"{":
            yield from self.lines()
        else:
            yield from self._document()

    def _document(self) -> Iterator[Line]:
        with self._opened() as file:
            data = file.read(LONGEST + 1)
        if len(data) > LONGEST:
            self.fault(Line(b"", 1, 0), f"a document of more than {LONGEST:,} bytes is not read; write it a value a line")
            return
        if not self._is_sound(Line(data, 1, 0)):
            return
        end, number = 0, 1
        for piece in NEXT.split(data.removeprefix(BOM).strip()):
            try:
                items = msgspec.json.decode(piece, type=list[Raw]) if piece[:1] == b"[" else [piece]
                msgspec.json.decode(piece, type=Raw)
            except (ValueError, RecursionError) as error:
                self.fault(Line(piece, data.count(b"\n", 0, data.index(piece, end)) + 1, data.index(piece, end)), str(error))
                continue
            for item in map(bytes, items):
                start = data.index(item, end)
                number += data.count(b"\n", end, start)  # never from the beginning: there may be very many
                yield Line(item, number, start)
                end = start + len(item)
                number += item.count(b"\n")

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        try:
            with opened(self.path) as file:
                yield file
        except (OSError, *UNPACKED) as error:
            raise SessionIOError(str(self.path), "read", describe(error)) from error

    def decoded(self, decoder: msgspec.json.Decoder[T]) -> Iterator[T]:
        """Every line, decoded, where nobody asks for its place: many at once cost less."""
        return chain.from_iterable(self._decoded(decoder))

    def _decoded(self, decoder: msgspec.json.Decoder[T]) -> Iterator[list[T]]:
        for offset, block in self._blocks():
            if b"\0" not in block and _is_utf8(block):
                lines = block.removesuffix(b"\n").split(b"\n")  # one by one: decode_lines takes a value on two lines
                try:
                    yield list(map(decoder.decode, lines))
                    continue
                except (ValueError, RecursionError):
                    pass
            placed = (self._mended(decoder, line) for line in self._sound(offset, block))
            yield [one for one in placed if one is not None]

    def placed(self, decoder: msgspec.json.Decoder[T]) -> Iterator[tuple[Line, T]]:
        """Every line, with what it says."""
        for line in self.lines():
            one = self._mended(decoder, line)
            if one is not None:
                yield line, one

    def decode(self, decoder: msgspec.json.Decoder[T], line: Line) -> T | None:
        """Decode a line just as it stands; None where it cannot be, which is a problem."""
        one: T | None
        one, why = _tried(decoder, line.data)
        if why is not None:
            self.fault(line, f"it cannot be read: {why}")
        return one

    def _mended(self, decoder: msgspec.json.Decoder[T], line: Line) -> T | None:
        """Decode a line of which only the meaning counts: half a character in a text does not cost it."""
        one: T | None
        one, why = _tried(decoder, line.data)
        if why is None:
            return one
        data, halves = _without_halves(line.data)
        if halves and _tried(decoder, data)[1] is None:
            self.left_out("halves of a character (lone surrogates), each read as U+FFFD", halves)
            line = line._replace(data=data)
        return self.decode(decoder, line)

    def _sound(self, offset: int, block: bytes) -> Iterator[Line]:
        """The sound lines of a block of whole lines; only the file's last may lack its end."""
        first = number = self._number_at(offset)
        pieces = block.split(b"\n")
        cut = pieces.pop()
        for number, data in enumerate(pieces, first):
            line = Line(data, number, offset)
            offset += len(data) + 1
            if data.strip() and self._is_sound(line):
                yield line
        self._counted = offset, first + len(pieces)
        last = Line(cut, first + len(pieces), offset)
        if cut.strip() and self._is_sound(last):
            if _is_json(_without_halves(cut)[0]):  # only its end is missing: nothing is lost
                yield last
            else:
                self.fault(last, "the last line is cut off", at_end=True)

    def _number_at(self, offset: int) -> int:
        """The number of the line that begins there; lines are counted only where somebody asks."""
        at, number = self._counted
        with opened(self.path) as file:
            file.seek(at)
            while at < offset:
                data = file.read(min(BLOCK, offset - at))
                if not data:
                    break
                at, number = at + len(data), number + data.count(b"\n")
        self._counted = offset, number
        return number

    def _is_sound(self, line: Line) -> bool:
        if b"\0" in line.data:
            nuls = line.data.count(b"\0")
            self.fault(line._replace(offset=line.offset + line.data.index(b"\0")), f"{nuls:,} NUL bytes")
        elif not _is_utf8(line.data):
            self.fault(line, "it is not UTF-8")
        else:
            return True
        return False

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """The file in blocks of whole lines, each with its offset; only the last may lack its end."""
        held: list[bytes] = []
        offset = size = 0  # of what is held of a line, or was of one that is too long
        try:
            with opened(self.path) as file:
                offset = len(BOM) if file.read(len(BOM)) == BOM else 0
                file.seek(offset)
                while data := file.read(BLOCK):
                    end = data.rfind(b"\n") + 1
                    if size > LONGEST and end:
                        self._too_long(offset)
                        passed = data.index(b"\n") + 1
                        offset += size + passed
                        held, size = [], 0
                        data, end = data[passed:], end - passed
                    if end:
                        block = b"".join([*held, data[:end]])
                        yield offset, block
                        offset += len(block)
                        held, size = [], 0
                    held.append(data[end:])
                    size += len(held[-1])
                    if size > LONGEST:
                        held.clear()
                if size > LONGEST:
                    self._too_long(offset)
                elif size:
                    yield offset, b"".join(held)
        except UNPACKED as error:
            self.fault(Line(b"", self._number_at(offset), offset), f"it cannot be unpacked: {describe(error)}", at_end=True)
        except OSError as error:
            raise SessionIOError(str(self.path), "read", describe(error)) from error

    def _too_long(self, offset: int) -> None:
        line = Line(b"", self._number_at(offset), offset)
        self.fault(line, f"a line longer than {LONGEST:,} bytes is passed over unread")


def _tried(decoder: msgspec.json.Decoder[Any], data: bytes) -> tuple[Any, str | None]:
    """What a line says, or why it cannot be read."""
    try:
        return decoder.decode(data), None
    except RecursionError:
        return None, "nested too deep"
    except ValueError as error:
        return None, str(error)


def _without_halves(data: bytes) -> tuple[bytes, int]:
    """JSON whose lone surrogate escapes are U+FFFD, and how many there were: JavaScript writes them where it cut a text."""
    halves = 0

    def mended(escape: re.Match[bytes]) -> bytes:
        nonlocal halves
        halves += escape[1] is not None
        return rb"\ufffd" if escape[1] else escape[0]

    return ESCAPES.sub(mended, data), halves


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


def opened(path: Path) -> BinaryIO:
    """Open a file, unpacked where it is packed with gzip."""
    file = path.open("rb")
    if file.peek(2)[:2] != GZIP:
        return file
    file.close()
    return gzip.open(path)  # type: ignore[return-value]


def first_members(head: bytes) -> frozenset[str]:
    """The members' names of the first JSON object of a file, as far as its beginning shows them.

    Examples
    --------
    >>> sorted(first_members(b'[{"a": {"b": ":"}, "c": [1, {"d'))
    ['a', 'c']
    """
    names: set[str] = set()
    depth, last, begins = 0, b"", re.match(rb"[\s\[]*(?=\{)", head)
    for match in TOKEN.finditer(head, begins.end()) if begins else ():
        token = match[0]
        if token in b"{[":
            depth += 1
        elif token in b"}]":
            depth -= 1
            if not depth:
                break
        elif token == b":" and depth == 1:
            names.add(last[1:-1].decode("utf-8", "replace"))
        last = token
    return frozenset(names)
