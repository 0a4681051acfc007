"""Many files read one after another or on an executor, in order either way; small ones go together.

Any ``concurrent.futures.Executor`` will do. Knows nothing of what is made of what was read.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import TypeVar

from loopkit.errors import InvalidConfig, LoopkitError, kind_of
from loopkit.logs.find import File
from loopkit.logs.open_file import Read, read_file
from loopkit.logs.problems import Errors

__all__ = ["batches", "each_read", "sizes_of"]

T = TypeVar("T")

TOGETHER = 1 << 24
"Bytes of small files that an executor reads in one call: a tenth of a second's work."
MANY = 1000
"Items of a batch at most: an empty file takes time, too."


def each_read(
    files: Sequence[File], sizes: Sequence[int], errors: Errors, executor: Executor | None
) -> Generator[Read, None, None]:
    """Each file read, in order; what has not begun is called off at the first error."""
    if executor is None:
        yield from (read_file(file, errors) for file in files)
        return
    if not hasattr(executor, "submit"):
        raise InvalidConfig("executor", f"{kind_of(executor)} is none", "Give one of concurrent.futures, or Dask's")
    waiting: list[Future[list[Read | LoopkitError]]] = []
    try:
        for batch in batches(files, sizes, TOGETHER):
            waiting.append(executor.submit(_read_some, batch, errors))
        for future in waiting:
            for read in future.result():
                if isinstance(read, LoopkitError):
                    raise read
                yield read
    finally:
        for future in waiting:
            future.cancel()


def _read_some(files: Sequence[File], errors: Errors = "raise") -> list[Read | LoopkitError]:
    """Read several files in one call: of an error that is raised, it is the last item."""
    made: list[Read | LoopkitError] = []
    for file in files:
        try:
            made.append(read_file(file, errors))
        except LoopkitError as error:
            made.append(error)
            break
    return made


def sizes_of(files: Sequence[File]) -> list[int]:
    """Bytes of each; 0 of what is no file."""
    return [file.path.stat().st_size if file.path.is_file() else 0 for file in files]


def batches(items: Sequence[T], sizes: Sequence[int], most: int) -> Iterator[list[T]]:
    """Items that follow one another, together up to so many bytes, and a thousand; a larger one stands alone.

    Examples
    --------
    >>> list(batches("abcd", [3, 4, 9, 1], 8))
    [['a', 'b'], ['c'], ['d']]
    """
    batch: list[T] = []
    size = 0
    for item, more in zip(items, sizes, strict=True):
        if batch and (size + more > most or len(batch) == MANY):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += more
    if batch:
        yield batch
