"""Reading of many files in order, one after another or on an executor, with small files in batches."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import TypeVar

from loopkit.errors import InvalidConfig, LoopkitError, kind_of
from loopkit.logs.file_reader import Read, read_file
from loopkit.logs.file_search import File
from loopkit.logs.problems import Errors

__all__ = ["batches", "read_each", "sizes_of"]

T = TypeVar("T")

BATCH_BYTES = 1 << 24
"Maximum size of a batch of small files, which takes about 0.1 s to read."
BATCH_ITEMS = 1000
"Maximum number of items in a batch, because even empty files take time."


def read_each(
    files: Sequence[File], sizes: Sequence[int], errors: Errors, executor: Executor | None
) -> Generator[Read, None, None]:
    """Yield what each file contains, in order. The first error is raised and cancels the reads that have not started."""
    if executor is None:
        yield from (read_file(file, errors) for file in files)
        return
    if not hasattr(executor, "submit"):
        raise InvalidConfig("executor", f"it must be a `concurrent.futures.Executor`; got {kind_of(executor)}")
    waiting: list[Future[list[Read | LoopkitError]]] = []
    try:
        for batch in batches(files, sizes, BATCH_BYTES):
            waiting.append(executor.submit(_read_batch, batch, errors))
        for future in waiting:
            for read in future.result():
                if isinstance(read, LoopkitError):
                    raise read
                yield read
    finally:
        for future in waiting:
            future.cancel()


def _read_batch(files: Sequence[File], errors: Errors = "raise") -> list[Read | LoopkitError]:
    """Read several files. If a file raises an error, the error is the last item of the result, and the rest is not read."""
    results: list[Read | LoopkitError] = []
    for file in files:
        try:
            results.append(read_file(file, errors))
        except LoopkitError as error:
            results.append(error)
            break
    return results


def sizes_of(files: Sequence[File]) -> list[int]:
    """Return the size of each file in bytes; 0 if it is not a regular file."""
    return [file.path.stat().st_size if file.path.is_file() else 0 for file in files]


def batches(items: Sequence[T], sizes: Sequence[int], most: int) -> Iterator[list[T]]:
    """Yield the items in batches of at most ``most`` bytes and 1,000 items. An item of more bytes is a batch of its own.

    ``sizes`` are the sizes of the items in bytes.

    Examples
    --------
    >>> list(batches("abcd", [3, 4, 9, 1], 8))
    [['a', 'b'], ['c'], ['d']]
    """
    batch: list[T] = []
    size = 0
    for item, more in zip(items, sizes, strict=True):
        if batch and (size + more > most or len(batch) == BATCH_ITEMS):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += more
    if batch:
        yield batch
