"""Sweeps: a function run once for each point of a parameter grid, with results on disk.

A point is one combination of parameters. Your function runs sessions or replays for it, and its result becomes one line of
``<home>/sweeps/<name>.jsonl``. Finished points are not run again, so repeating the call continues an interrupted sweep. Points
run one after another, or in any executor of ``concurrent.futures``.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from msgspec import Struct

from loopkit.encoding import canonical, decode, encode, replace_surrogates, sha256
from loopkit.errors import InvalidConfig, SessionIOError, SessionLocked, TornLog, kind_of
from loopkit.ids import SessionId, Timestamp
from loopkit.progress import progress_bar
from loopkit.session.disk import AppendFile, DirectoryLock, create_file, sync_directory
from loopkit.session.journal import body_of, checked_blocks
from loopkit.session.line_file import LineFile, make_parents

__all__ = ["Run", "run"]


def __dir__() -> list[str]:
    return list(__all__)


OWN_COLUMNS = {"session": "string", "run": "Int64", "elapsed_ms": "Float64", "error": "string"}
"Columns that every sweep's frame has in addition to parameters and results, with their dtypes."
DTYPES = {
    frozenset({bool}): "boolean",
    frozenset({int}): "Int64",
    **dict.fromkeys((frozenset({float}), frozenset({int, float})), "Float64"),
    frozenset({str}): "string",
}
"The pandas dtype of a column, by the set of Python types in it. Missing values are not counted."
HINT = "Wait until it ends, or use another name for one of the two sweeps"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a point: the first argument of the function."""

    home: Path
    "Absolute path of the directory that contains ``sweeps/``."
    session: SessionId
    "Unique id of this run. Use it as the id of a session, or as the beginning of the ids of several sessions."
    number: int
    "Number of times that this sweep was started with unfinished points, including this time."


_Call: TypeAlias = "tuple[Callable[..., Mapping[str, Any] | None], Run, str, dict[str, Any]]"


class _Begun(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="begun"):
    time: str
    run: int
    points: int
    missing: int


class _Point(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="point"):
    time: str
    run: int
    point: str
    "SHA-256 of the parameters as JSON with sorted keys, in hex."
    session: str
    parameters: dict[str, Any]
    result: dict[str, Any] | None
    "Result of the function; None if the point failed."
    error: str | None
    traceback: str | None
    elapsed_ms: float


def run(
    function: Callable[..., Mapping[str, Any] | None],
    grid: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]],
    home: str | Path,
    name: str,
    executor: Executor | None = None,
    *,
    progress: bool | None = None,
) -> pd.DataFrame:
    """Run a function for every unfinished point of a grid, and return the results of all points.

    Parameters
    ----------
    function : callable
        Called as ``function(run, **parameters)``, where ``run`` is a `Run`. It returns None or a mapping of JSON values, which
        become columns of the point's row. If the executor uses other processes, the function must be picklable.
    grid : mapping of str to iterable, or iterable of mappings
        Either a mapping from each parameter to its values (every combination is a point), or the points themselves as mappings.
        Values must be JSON values. To run a point several times, add a parameter that counts, such as ``repeat``.
    home : str or Path
        Directory in which ``sweeps/`` is created. The function should write its sessions to this directory, too.
    name : str
        Name of the sweep and of its log. Use a new name when you change the function or anything that its results depend on.
    executor : concurrent.futures.Executor, optional
        Runs the points: threads, processes, or Dask's ``client.get_executor()``. By default they run one after another.
    progress : bool, optional
        True to show a progress bar. By default, it appears after 2 seconds if the sweep runs in a terminal or notebook.

    Returns
    -------
    DataFrame
        One row per point, in the order of the grid. Columns: the parameters, the results, ``session``, ``run``, ``elapsed_ms``
        and ``error``.

    Warns
    -----
    UserWarning
        For each failed point; its row has an ``error`` and no result, and the next call runs the point again. Also if a crash
        left an unfinished last line in the log; this line is removed.

    Raises
    ------
    InvalidConfig
        An argument cannot be used, or two points are equal.
    SessionLocked
        The sweep is already running.
    TornLog, SessionIOError
        The sweep's log is damaged, or cannot be written.

    Notes
    -----
    Points that share a server do not start with an empty cache: a point may reuse prompts of earlier points, and the executor
    decides the order. To measure reuse, start a server for each point in the function (for an embedded server, ``with
    server.another() as fresh:``), or use `loopkit.replay.compare`, which does this. Run at most as many points at a time as the
    server has slots (set with ``serve(slots=…)``).

    Examples
    --------
    >>> import tempfile
    >>> from loopkit import sweep
    >>> def double(run, x):
    ...     return {"twice": 2 * x}
    >>> home = tempfile.mkdtemp()
    >>> sweep.run(double, {"x": [1, 2]}, home, "doubles")[["x", "twice", "run"]]
       x  twice  run
    0  1      2    1
    1  2      4    1
    >>> sweep.run(double, {"x": [2, 3]}, home, "doubles")[["x", "twice", "run"]]
       x  twice  run
    0  2      4    1
    1  3      6    2
    >>> sweep.run(double, {"x": 3}, home, "doubles")
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidConfig: grid: expected several values for 'x'; got an int. Pass a list
    """
    if not callable(function):
        raise InvalidConfig("function", f"expected a callable; got {kind_of(function)}")
    if executor is not None and not hasattr(executor, "submit"):
        why = f"expected a `concurrent.futures.Executor`; got {kind_of(executor)}"
        raise InvalidConfig("executor", why, "With Dask, pass `client.get_executor()`")
    if not isinstance(home, (str, Path)) or "\0" in str(home):
        raise InvalidConfig("home", f"expected a path; got {home!r}")
    points = _points(grid)
    home = Path(home).absolute()
    path = home / "sweeps" / f"{SessionId(name)}.jsonl"
    with contextlib.ExitStack() as stack:
        results, log, number = _open(path, stack)
        missing = {key: parameters for key, parameters in points.items() if key not in results or results[key].error is not None}
        runs = {key: Run(home, SessionId(f"{name}-{key[:12]}-{number}"), number) for key in missing}
        if missing:
            log.write(encode(_Begun(Timestamp.now(), number, len(points), len(missing))))
        calls = [(function, runs[key], key, parameters) for key, parameters in missing.items()]
        bar = stack.enter_context(progress_bar(progress=progress, total=len(calls), unit="point", label=name))
        for line in stack.enter_context(contextlib.closing(_outcomes(executor, calls))):
            log.write(line)
            point = decode(line, _Point)
            results[point.point] = point
            bar.update()
    failed = [results[key] for key in missing if results[key].error is not None]
    for point in failed:
        message = f"sweep {name}: {point.parameters} failed, and the next call will run it again: {point.error}"
        warnings.warn(message, UserWarning, stacklevel=2)
    return _frame([results[key] for key in points], points)


def _open(path: Path, stack: contextlib.ExitStack) -> tuple[dict[str, _Point], LineFile, int]:
    """Lock and read the log of a sweep.

    Return the last result of each point by its hash, the log open for writing, and the number of this run.
    """
    make_parents(path)
    if not path.exists():
        try:
            create_file(path, b"")
            sync_directory(path.parent)
        except SessionIOError:
            if not path.exists():  # otherwise another sweep of this name has just created it
                raise
    try:
        stack.callback(DirectoryLock(path).release)
    except SessionLocked as error:
        raise SessionLocked(error.path, error.pid, HINT) from None
    results: dict[str, _Point] = {}
    size = crc = 0
    number = 1
    try:
        for block in checked_blocks(path):
            for index, line in enumerate(block.lines):
                try:
                    record: _Begun | _Point = decode(body_of(line) + b"}", _Begun | _Point)  # type: ignore[arg-type]
                except ValueError as error:
                    raise TornLog(
                        str(path), block.line + index, block.offset_of(index), f"not a line of a sweep: {error}"
                    ) from None
                if isinstance(record, _Point):
                    results[record.point] = record
                else:
                    number = record.run + 1
            size, crc = block.offset_of(len(block.lines)), block.crc
    except TornLog as torn:
        if not torn.at_end:
            raise
        message = f"{path}:{torn.line}: removed an unfinished line that a crash left. Its point is run again"
        warnings.warn(message, UserWarning, stacklevel=4)
        with contextlib.closing(AppendFile(path, path.stat().st_size)) as file:
            file.cut(size)
    log = LineFile(path, size, crc)
    stack.callback(log.close)
    return results, log, number


def _points(grid: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return a mapping from the hash of each point to its parameters, as they are after a round trip through JSON."""
    if isinstance(grid, Mapping):
        for name, values in grid.items():
            if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
                raise InvalidConfig("grid", f"expected several values for {name!r}; got {kind_of(values)}", "Pass a list")
        grid = [dict(zip(grid, values)) for values in itertools.product(*grid.values())]
    points: dict[str, dict[str, Any]] = {}
    for point in grid if isinstance(grid, Iterable) else [grid]:
        if not isinstance(point, Mapping):
            raise InvalidConfig("grid", f"expected a mapping of names to values for each point; got {kind_of(point)}")
        data = encode({name: _plain(value) for name, value in point.items()}, "grid")
        parameters = decode(data, dict[str, Any])
        key = sha256(canonical(data.decode()))
        if reserved := parameters.keys() & OWN_COLUMNS:
            raise InvalidConfig("grid", f"{min(reserved)!r} is a column of every sweep", "Use another name for the parameter")
        if key in points:
            then = "To run a point several times, add a parameter that counts, such as repeat=range(5)"
            raise InvalidConfig("grid", f"the point {parameters} occurs twice", then)
        points[key] = parameters
    return points


def _plain(value: Any) -> Any:
    """Return a numpy scalar or `pandas.NA` as a plain Python value. Other values are unchanged."""
    if value is pd.NA:
        return None
    return value.item() if isinstance(value, np.generic) else value


def _outcomes(executor: Executor | None, calls: list[_Call]) -> Generator[bytes, None, None]:
    """Run the points. Yield the log line of each point when it has finished.

    Closing the generator cancels the points that have not started.
    """
    if executor is None:
        yield from itertools.starmap(_call, calls)
        return
    waiting: dict[Future[bytes], _Call] = {}
    try:
        for call in calls:
            waiting[executor.submit(_call, *call)] = call
        for future in as_completed(waiting):
            try:
                yield future.result()
            except (BrokenExecutor, CancelledError):  # the executor has ended, so the other points cannot run
                raise
            except Exception as error:  # noqa: BLE001  the executor lost this point, for example by killing its worker
                _, run, key, parameters = waiting[future]
                yield _line(run, key, parameters, time.perf_counter(), error=error)
    finally:
        for future in waiting:
            future.cancel()


def _call(function: Callable[..., Mapping[str, Any] | None], run: Run, key: str, parameters: dict[str, Any]) -> bytes:
    """Run one point, in the executor if there is one. Return its log line as bytes, because some errors cannot be pickled."""
    start = time.perf_counter()
    try:
        result = {name: _plain(value) for name, value in (function(run, **parameters) or {}).items()}
        if reserved := result.keys() & {*OWN_COLUMNS, *parameters}:
            raise InvalidConfig("result", f"{min(reserved)!r} is already a column", "Use another name for the result")
        return _line(run, key, parameters, start, result=decode(encode(result, "result")))
    except (Exception, SystemExit) as error:  # noqa: BLE001  the error is reported, and the other points continue
        return _line(run, key, parameters, start, error=error)


def _line(
    run: Run,
    key: str,
    parameters: dict[str, Any],
    start: float,
    *,
    result: dict[str, Any] | None = None,
    error: BaseException | None = None,
) -> bytes:
    """Return the log line of a finished or failed point."""
    message = trace = None
    if error is not None:
        message = replace_surrogates("".join(traceback.format_exception_only(error)).strip())[0]
        trace = replace_surrogates("".join(traceback.format_exception(error)))[0]
    elapsed = round((time.perf_counter() - start) * 1000, 3)
    return encode(
        _Point(Timestamp.now(), run.number, key, run.session, parameters, result, message, trace, elapsed_ms=elapsed), "point"
    )


def _frame(points: list[_Point], parameters: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    names = dict.fromkeys(name for each in parameters.values() for name in each)
    results = dict.fromkeys(name for point in points for name in point.result or ())
    columns = {name: _column([point.parameters.get(name) for point in points]) for name in names}
    columns |= {name: _column([(point.result or {}).get(name) for point in points]) for name in results}
    columns |= {name: pd.Series([getattr(point, name) for point in points], dtype=dtype) for name, dtype in OWN_COLUMNS.items()}
    return pd.DataFrame(columns)


def _column(values: list[Any]) -> pd.Series[Any]:
    """Return values as a column. Its dtype is nullable if all values fit one of `DTYPES`, otherwise object. None is missing."""
    kinds = frozenset(type(value) for value in values if value is not None)
    return pd.Series(values, dtype=DTYPES.get(kinds, "object"))
