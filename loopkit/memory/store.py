"""A memory on disk: ``nodes.jsonl``, an append-only file with all content, and ``memory.db``, an index derived from it.

A writer locks the directory, so several processes take turns. It adds lines of other processes to the index, appends its own
lines with one write and one sync, and then commits the index. If it is killed, the index may lack the last lines. The next access
adds them.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from loopkit.errors import InvalidConfig, InvalidId, LogError, SessionIOError, TornLog, describe
from loopkit.memory.database import VERSION, apply, connect, create, dump_lines
from loopkit.memory.lines import ChunkLine, Line, decode_line, encode_line
from loopkit.memory.nodes import Chunk
from loopkit.session.disk import AppendFile, DirectoryLock, create_file, remove_file, require_writable, sync_directory
from loopkit.session.journal import Fault, Place, body_of, checked_blocks, close_line, open_regular, torn
from loopkit.session.line_file import make_parents

__all__ = ["REBUILD", "Store", "Writing"]

SALVAGE = "Run `loopkit memory rebuild --salvage` to keep the lines before it; the file is kept under another name"
REBUILD = "Run `loopkit memory rebuild` to rebuild it from nodes.jsonl"


class Writing:
    """A write in progress. Added lines are in the index at once, and on disk when the ``with`` block ends."""

    def __init__(self, db: sqlite3.Connection, place: Place) -> None:
        self.db, self.place = db, place
        self.data: list[bytes] = []

    def add(self, *lines: Line) -> None:
        """Add lines to the index, and to the data that is appended to ``nodes.jsonl``."""
        for line in lines:
            text = encode_line(line)
            try:
                apply(
                    self.db, decode_line(text), self.place.offset
                )  # decoded as a reader would, so that nothing unreadable is stored
            except ValueError as error:
                raise InvalidConfig(
                    f"a line of kind {type(line).__struct_config__.tag}", str(error), "Nothing was written"
                ) from error
            data, crc = close_line(text[:-1], self.place.crc)
            self.data.append(data)
            self.place = Place(self.place.line + 1, self.place.offset + len(data), crc)


class Store:
    """Read and write access to the two files of a memory.

    Parameters
    ----------
    home : Path or str
        The loopkit directory. Its subdirectory ``memory/`` is created with the first write.
    """

    def __init__(self, home: Path | str) -> None:
        if not isinstance(home, str | Path):
            raise InvalidConfig("home", f"expected a path; got {home!r:.80}", "Give a directory")
        self.dir = Path(os.path.abspath(home)) / "memory"
        self.lines, self.database = self.dir / "nodes.jsonl", self.dir / "memory.db"

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open the index for reading, after adding lines that it lacks. It is empty if the memory was never written.

        Raises
        ------
        TornLog
            If ``nodes.jsonl`` is damaged. The message names the line.
        LogError
            If the index cannot be read, or ``nodes.jsonl`` is now shorter than the part that the index was made from.
        """
        if (not (size := self._size()) and not self.database.exists()) or (size and not os.access(self.dir, os.W_OK)):
            with self.fresh() as fresh:  # SQLite needs to write beside the file even for reading
                self.catch_up(fresh)
                yield fresh
            return
        if self.database.exists() and self.database.stat().st_size:  # a new file may have no journal mode yet
            with self._connected() as db:
                if _has_tables(db) and _place(db).offset == self._size():
                    yield db
                    return
        with self.writing():  # opening it adds the missing lines to the index
            pass
        with self._connected() as db:
            yield db

    @contextlib.contextmanager
    def writing(self) -> Iterator[Writing]:
        """Wait for other writers, then open the memory to add lines. After an error in the block, no line is added.

        Raises
        ------
        TornLog, LogError
            As for :meth:`reading`.
        SessionIOError
            If a file cannot be written.
        """
        require_writable(self.dir)
        make_parents(self.lines)
        with _locked(self.dir), self._connected(to_write=True) as db, _transaction(db):
            writing = Writing(db, self.catch_up(db))
            before = writing.place
            yield writing
            if writing.data:
                self._append(b"".join(writing.data), before.offset)
                _set_place(db, writing.place)

    def rebuild(self, *, salvage: bool = False) -> None:
        """Rebuild the index from ``nodes.jsonl``. If the process is killed meanwhile, the old index remains.

        Parameters
        ----------
        salvage : bool
            If True and the file is damaged, keep the lines before the damage, and the damaged file under another name.

        Raises
        ------
        TornLog
            If ``nodes.jsonl`` is damaged and `salvage` is False. The index is unchanged then.
        LogError
            If there is no ``nodes.jsonl``.
        """
        require_writable(self.dir)
        if not self.lines.exists():
            raise LogError(str(self.lines), "there is no memory here", "Create one with Memory.ingest")
        with _locked(self.dir):
            if salvage:
                self._salvage()
            try:
                self._remake()
            except LogError:  # the file is not a database, or is damaged
                for suffix in ("", "-wal", "-shm", "-journal"):
                    remove_file(Path(f"{self.database}{suffix}"))
                self._remake()

    def _remake(self) -> None:
        with self._connected(to_write=True) as db, _transaction(db):
            if _has_tables(db) and db.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok":
                raise LogError(str(self.database), "it is damaged", REBUILD)
            create(db)
            self.catch_up(db)

    def dump(self) -> bytes:
        """Return every row of every table of the index in a fixed order, one JSON array per line."""
        with self.reading() as db:
            return b"".join(dump_lines(db))

    def chunk(self, offset: int) -> Chunk:
        """Read the chunk from the line at a byte offset of ``nodes.jsonl``, and check its hash."""
        try:
            with open_regular(self.lines) as file:
                file.seek(offset)
                line = decode_line(body_of(file.readline()) + b"}")
        except OSError as error:
            raise SessionIOError(str(self.lines), "read", describe(error)) from error
        except ValueError as error:
            raise LogError(str(self.lines), f"the chunk at byte {offset}: {error}", SALVAGE) from error
        if not isinstance(line, ChunkLine):
            raise LogError(str(self.database), f"there is no chunk at byte {offset} of nodes.jsonl", REBUILD)
        return line.chunk

    @contextlib.contextmanager
    def _connected(self, *, to_write: bool = False) -> Iterator[sqlite3.Connection]:
        if to_write and not self.database.exists():
            create_file(self.database, b"")  # readable by its owner only, whatever the umask
        try:
            with contextlib.closing(connect(self.database, to_write=to_write)) as db:
                yield db
        except sqlite3.OperationalError as error:
            # the statements are valid, so an SQL error means that the tables are damaged
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) == sqlite3.SQLITE_ERROR:
                raise LogError(str(self.database), describe(error), REBUILD) from error
            raise SessionIOError(str(self.database), "use the database", describe(error)) from error
        except (sqlite3.DatabaseError, UnicodeDecodeError, InvalidId) as error:
            raise LogError(str(self.database), describe(error), REBUILD) from error

    @contextlib.contextmanager
    def fresh(self) -> Iterator[sqlite3.Connection]:
        """Open a temporary database with empty tables."""
        with contextlib.closing(connect("")) as db:
            create(db)
            yield db

    def _size(self) -> int:
        try:
            return self.lines.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return 0
        except OSError as error:
            raise SessionIOError(str(self.lines), "read", describe(error)) from error

    def catch_up(self, db: sqlite3.Connection) -> Place:
        """Add the lines of ``nodes.jsonl`` that the index lacks. Return the place where the lines end."""
        if not _has_tables(db):
            create(db)
        place = _place(db)
        size = self._size()
        if size < place.offset:
            why = f"it was made from {place.offset} bytes of nodes.jsonl, which now has {size}"
            raise LogError(str(self.database), why, "Restore nodes.jsonl, or delete memory.db to continue with what is left")
        if size > place.offset:
            place = self._apply_lines(db, place)
            _set_place(db, place)
        return place

    def _apply_lines(self, db: sqlite3.Connection, place: Place) -> Place:
        """Check the lines after `place` and add them to the index. Return the place after the last line."""
        try:
            for block in checked_blocks(self.lines, start=place):
                offset = block.offset
                for number, data in enumerate(block.lines, block.line):
                    try:
                        apply(db, decode_line(body_of(data) + b"}"), offset)
                    except ValueError as error:
                        raise torn(Fault(str(self.lines), number, offset, str(error)), None) from error
                    offset += len(data)
                place = Place(block.line + len(block.lines), offset, block.crc)
        except TornLog as error:
            raise TornLog(error.path, error.line, error.offset, error.why, None, SALVAGE) from error
        return place

    def _salvage(self) -> None:
        """If ``nodes.jsonl`` is damaged, keep the lines before the damage, and the damaged file under another name."""
        try:
            with self.fresh() as fresh:
                self.catch_up(fresh)
        except TornLog as error:
            new = self.dir / "nodes.jsonl.new"
            remove_file(new)
            try:
                with open(self.lines, "rb") as file:
                    before = file.read(error.offset)
                create_file(new, before[: before.rfind(b"\n") + 1])
                number = next(number for number in count(1) if not self._torn(number).exists())
                os.link(self.lines, self._torn(number))
                os.replace(new, self.lines)
            except OSError as refused:
                raise SessionIOError(str(self.lines), "salvage", describe(refused)) from refused
            sync_directory(self.dir)

    def _torn(self, number: int) -> Path:
        return self.dir / f"nodes.jsonl.torn-{number}"

    def _append(self, data: bytes, size: int) -> None:
        if not self.lines.exists():
            create_file(self.lines, data)
            sync_directory(self.dir)
            return
        with contextlib.closing(AppendFile(self.lines, size)) as file:
            try:
                file.append(data)
            except BaseException:
                file.cut(size)
                raise


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    lock = DirectoryLock(directory, wait=True)
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _has_tables(db: sqlite3.Connection) -> bool:
    return bool(db.execute("PRAGMA user_version").fetchone()[0] == VERSION)


def _place(db: sqlite3.Connection) -> Place:
    row = db.execute("SELECT line, offset, crc FROM place").fetchone()
    if row is None:
        raise sqlite3.DatabaseError("it has no record of where its lines end")
    return Place(*row)


def _set_place(db: sqlite3.Connection, place: Place) -> None:
    db.execute("UPDATE place SET line = ?, offset = ?, crc = ?", place)
