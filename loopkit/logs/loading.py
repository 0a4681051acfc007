"""``load``: find log files, read them and return `Logs`."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from concurrent.futures import Executor

from loopkit.errors import LogError
from loopkit.logs.collection import Logs
from loopkit.logs.file_search import HINT, File, Loadable, find
from loopkit.logs.frames.columns import Part
from loopkit.logs.parallel import read_each, sizes_of
from loopkit.logs.parts import merge
from loopkit.logs.problems import Errors, Problem, check_errors, problem_of
from loopkit.progress import progress_bar

__all__ = ["Loadable", "find_files", "load", "read_files"]


def load(
    what: Loadable,
    *,
    errors: Errors = "raise",
    content: bool = False,
    executor: Executor | None = None,
    progress: bool | None = None,
) -> Logs:
    """Load logs of loopkit and of other tools.

    Parameters
    ----------
    what : str, Path, Session, or an iterable of these
        A home (the directory in which loopkit keeps sessions and recordings), a session or its directory, a log file, a directory
        of other tools' logs, or a glob pattern. A file that is named twice is read once.
    errors : "raise" or "report"
        What to do about a fault in a log: raise an error, or load everything before the fault and add a row to ``problems``. One
        damaged file does not affect the others.
    content : bool
        Whether the frame ``messages`` gets a column ``content`` with the texts of the messages.
    executor : concurrent.futures.Executor, optional
        Executor on which the files are read in parallel. Logs and errors are the same as without it. Its workers must find the
        files at the same paths. With Dask, use ``client.get_executor(pure=False)``; otherwise Dask may return the result of an
        earlier equal call.
    progress : bool, optional
        Whether to show a progress bar. By default it appears after 2 seconds, in a terminal or notebook.

    Returns
    -------
    Logs
        The loaded logs; no rows if a home contains no session. A session that is still being written is read up to its last
        complete group of records.

    Warns
    -----
    UserWarning
        If ``errors`` is ``"raise"`` and a directory is empty, or a directory in a home's ``sessions`` contains no log. The
        same text is a row of ``problems``.

    Raises
    ------
    TornLog
        If a log is damaged. The error names the file and the line.
    LogError
        If a path does not exist, is a directory without logs, or is not a log. With ``errors="report"``, this is an error only
        for a path in ``what`` that does not exist or is a directory without logs.
    SessionIOError
        If the operating system refuses access.
    InvalidConfig
        If an argument is invalid.

    Examples
    --------
    >>> load("no such runs")
    Traceback (most recent call last):
        ...
    loopkit.errors.LogError: no such runs: the path does not exist. Give a home, session, log, directory of logs or pattern
    """
    files, problems = find_files(what, errors)
    return read_files(files, problems, errors=errors, content=content, executor=executor, progress=progress)


def find_files(what: Loadable, errors: Errors, stacklevel: int = 3) -> tuple[list[File], list[Problem]]:
    """Return the files to read, and a problem for each path that is left out. Raises and warns as `load` does."""
    check_errors(errors)
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
    """Read the files that `find_files` returned. ``problems`` come first among the problems of the result."""
    sizes = sizes_of(files)
    parts: list[Part] = []
    problems = list(problems)
    with (
        progress_bar(progress=progress, total=sum(sizes), unit="B", label="load", scale=True) as bar,
        contextlib.closing(read_each(files, sizes, errors, executor)) as reading,
    ):
        for read, size in zip(reading, sizes, strict=True):
            parts += read.parts
            problems += read.problems
            bar.update(size)
    paths = {str(file.path) for file in files}  # Parquet files may report problems of other files
    not_a_log = next((problem for problem in problems if problem.kind == "not_a_log" and problem.path in paths), None)
    if not_a_log is not None and not parts and errors == "raise":
        raise LogError(not_a_log.path, not_a_log.why, HINT)
    return Logs(*merge(parts, problems, errors), content)
