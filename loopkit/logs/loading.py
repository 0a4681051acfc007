"""``load``: find log files, read them, and return `Logs`."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from concurrent.futures import Executor

from tqdm.auto import tqdm

from loopkit.errors import LogError
from loopkit.logs.collection import Logs
from loopkit.logs.find import HOW, File, Loadable, find
from loopkit.logs.frames.columns import Part
from loopkit.logs.merge import together
from loopkit.logs.parallel import each_read, sizes_of
from loopkit.logs.problems import Errors, Problem, need_errors, problem_of

__all__ = ["Loadable", "find_files", "load", "read_files"]

LONG = 1 << 28
"Bytes from which on a load shows its progress."


def load(
    what: Loadable,
    *,
    errors: Errors = "raise",
    content: bool = False,
    executor: Executor | None = None,
    progress: bool | None = None,
) -> Logs:
    """Read logs.

    Parameters
    ----------
    what : str, Path, Session, or an iterable of these
        A home, a session's directory, a log, a directory of other tools' logs, or a pattern. A file named twice counts once.
    errors : "raise" or "report"
        At a fault, raise it; or read what is sound before it, and put it into ``problems``. One bad file hides no other.
    content : bool
        Whether the frame of messages has their text.
    executor : concurrent.futures.Executor, optional
        Reads the files, many small ones in one call, and gives the same frames, problems and first error. One of other processes
        must find the files at the same paths. Of Dask, ``client.get_executor(pure=False)``: else equal calls run once.
    progress : bool, optional
        Whether to show a bar; by default for long loads only.

    Returns
    -------
    Logs
        Without rows where a home holds no session. A session that is being written right now is read up to its last whole group.

    Warns
    -----
    UserWarning
        Where errors are raised, for an empty directory, and each in a home's ``sessions`` without a log: a problem, too.

    Raises
    ------
    TornLog
        With file and line.
    LogError
        When something is not there, or not a log; also where errors are reported, when that was asked for by its name.
    SessionIOError
        When the system refuses.
    InvalidConfig
        For another word than those two.

    Examples
    --------
    >>> load("no such runs")
    Traceback (most recent call last):
        ...
    loopkit.errors.LogError: no such runs: nothing is there. Give a home, a session, a log, a directory of logs or a pattern
    """
    files, problems = find_files(what, errors)
    return read_files(files, problems, errors=errors, content=content, executor=executor, progress=progress)


def find_files(what: Loadable, errors: Errors, stacklevel: int = 3) -> tuple[list[File], list[Problem]]:
    """Find the files, and what is left out of them; raises and warns as `load` does."""
    need_errors(errors)
    files: list[File] = []
    problems: list[Problem] = []
    for each in find(what):
        if isinstance(each, File):
            files.append(each)
        elif isinstance(each, Problem):
            problems.append(each)
            if errors == "raise":
                warnings.warn(str(each), UserWarning, stacklevel=stacklevel)
        elif errors == "raise":
            raise each
        else:
            problems.append(problem_of(each, each.path))
    return files, problems


def read_files(
    files: Sequence[File],
    problems: Sequence[Problem] = (),
    *,
    errors: Errors,
    content: bool = False,
    executor: Executor | None = None,
    progress: bool | None = None,
) -> Logs:
    """Read files that were found into ``Logs``."""
    sizes = sizes_of(files)
    shown = sum(sizes) >= LONG if progress is None else progress
    parts: list[Part] = []
    problems = list(problems)
    with (
        tqdm(total=sum(sizes), unit="B", unit_scale=True, desc="load", disable=not shown) as bar,
        contextlib.closing(each_read(files, sizes, errors, executor)) as reading,
    ):
        for read, size in zip(reading, sizes, strict=True):
            parts += read.parts
            problems += read.problems
            bar.update(size)
    asked = {str(file.path) for file in files}  # what Parquet tells of others was told when it was written
    strange = next((problem for problem in problems if problem.kind == "not_a_log" and problem.path in asked), None)
    if strange is not None and not parts and errors == "raise":
        raise LogError(strange.path, strange.why, HOW)
    return Logs(*together(parts, problems, errors), content)
