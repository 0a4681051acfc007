"""Sweeps: one function over a grid of parameters, each point once, kept on disk as it is done.

The function runs sessions or replays; the sweep gives each point a session id of its own and writes what comes back as a line of
``<home>/sweeps/<name>.jsonl``. What stands there is not run again, so the same call goes on with an interrupted sweep. Knows
nothing of what the function does, and has no engine: any executor of ``concurrent.futures`` runs the points.
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


OURS = {"session": "string", "run": "Int64", "elapsed_ms": "Float64", "error": "string"}
"Columns of the frame beside parameters and results, and their dtypes."
DTYPES = {
    frozenset({bool}): "boolean",
    frozenset({int}): "Int64",
    **dict.fromkeys((frozenset({float}), frozenset({int, float})), "Float64"),
    frozenset({str}): "string",
}
"Dtypes of columns that hold only these types, and missing values."
HINT = "Wait for it, or give one of the two sweeps another name"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one point: what the function gets in front of the point's parameters."""

    home: Path
    "The sweep's home, absolute."
    session: SessionId
    "An id that no other run has: for a session, or to begin the ids of several with."
    number: int
    "How often the sweep was begun, this time included; so the arguments of a run again are never those of the run before."


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
    "SHA-256 of the parameters, their keys sorted."
    session: str
    parameters: dict[str, Any]
    result: dict[str, Any] | None
    "None where it failed."
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
    """Run a function for every point of a grid that is not finished yet.

    Parameters
    ----------
    function : callable
        Called as ``function(run, **parameters)`` with a `Run`; what it returns, a mapping that JSON can hold, becomes a row.
        An executor of other processes must be able to pickle it.
    grid : mapping of str to iterable, or iterable of mappings
        Values of each parameter, of which every combination is a point; or the points themselves. Parameters are what JSON can
        hold; a point run several times has a number of its own among them, such as ``repeat``.
    home : str or Path
        Where ``sweeps/`` lies, and where the function is to put its sessions.
    name : str
        Of the sweep; one name is one function and what it depends on.
    executor : concurrent.futures.Executor, optional
        Runs the points: threads, processes, or Dask's ``client.get_executor()``; one after another where not given.
    progress : bool, optional
        Whether to show a progress bar. By default it appears after 2 seconds, in a terminal or notebook.

    Returns
    -------
    DataFrame
        A row is a point of the grid, in its order: parameters, results, ``session``, ``run``, ``elapsed_ms``, ``error``.

    Warns
    -----
    UserWarning
        For each point that failed: its row has an ``error`` and no result, and it is run again the next time. Also for an
        unfinished last line, left by a crash, which is cut off.

    Raises
    ------
    InvalidConfig
        When the grid is none, or two of its points are equal.
    SessionLocked
        When the sweep runs already.
    TornLog, SessionIOError
        When its log is damaged, or cannot be written.

    Notes
    -----
    Points that ask one server are not cold: what one left in a slot or in the host cache, the next may find, and in which order
    depends on the executor. Where reuse is what is measured, give each point a server of its own inside the function, ``with
    server.another() as fresh:`` of an embedded one, or `loopkit.replay.compare`, whose runs are cold. Points at a time are to be
    no more than the server has slots (``serve`` has ``slots=``).

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
    loopkit.errors.InvalidConfig: grid: the values of 'x' are an int. Give a list of them
    """
    if not callable(function):
        raise InvalidConfig("function", f"{kind_of(function)} cannot be called")
    if executor is not None and not hasattr(executor, "submit"):
        raise InvalidConfig("executor", f"{kind_of(executor)} is none", "Give one of concurrent.futures, or Dask's")
    if not isinstance(home, (str, Path)) or "\0" in str(home):
        raise InvalidConfig("home", f"{home!r} is no path")
    points = _points(grid)
    home = Path(home).absolute()
    path = home / "sweeps" / f"{SessionId(name)}.jsonl"
    with contextlib.ExitStack() as stack:
        found, log, number = _open(path, stack)
        missing = {key: parameters for key, parameters in points.items() if key not in found or found[key].error is not None}
        runs = {key: Run(home, SessionId(f"{name}-{key[:12]}-{number}"), number) for key in missing}
        if missing:
            log.write(encode(_Begun(Timestamp.now(), number, len(points), len(missing))))
        calls = [(function, runs[key], key, parameters) for key, parameters in missing.items()]
        bar = stack.enter_context(progress_bar(progress=progress, total=len(calls), unit="point", label=name))
        for line in stack.enter_context(contextlib.closing(_outcomes(executor, calls))):
            log.write(line)
            point = decode(line, _Point)
            found[point.point] = point
            bar.update()
    failed = [found[key] for key in missing if found[key].error is not None]
    for point in failed:
        said = f"sweep {name}: {point.parameters} failed, and is run again the next time: {point.error}"
        warnings.warn(said, UserWarning, stacklevel=2)
    return _frame([found[key] for key in points], points)


def _open(path: Path, stack: contextlib.ExitStack) -> tuple[dict[str, _Point], LineFile, int]:
    """Lock and read a sweep's log: the last line of each point, the log to go on with, and this run's number."""
    make_parents(path)
    if not path.exists():
        try:
            create_file(path, b"")
            sync_directory(path.parent)
        except SessionIOError:
            if not path.exists():  # else another sweep of this name has made it just now
                raise
    try:
        stack.callback(DirectoryLock(path).release)
    except SessionLocked as error:
        raise SessionLocked(error.path, error.pid, HINT) from None
    found: dict[str, _Point] = {}
    size = crc = 0
    number = 1
    try:
        for block in checked_blocks(path):
            for index, line in enumerate(block.lines):
                try:
                    record: _Begun | _Point = decode(body_of(line) + b"}", _Begun | _Point)  # type: ignore[arg-type]
                except ValueError as error:
                    raise TornLog(str(path), block.line + index, block.offset_of(index), f"not a sweep's: {error}") from None
                if isinstance(record, _Point):
                    found[record.point] = record
                else:
                    number = record.run + 1
            size, crc = block.offset_of(len(block.lines)), block.crc
    except TornLog as torn:
        if not torn.at_end:
            raise
        said = f"{path}:{torn.line}: an unfinished line, which a crash has left, was cut off; its point is run again"
        warnings.warn(said, UserWarning, stacklevel=4)
        with contextlib.closing(AppendFile(path, path.stat().st_size)) as file:
            file.cut(size)
    log = LineFile(path, size, crc)
    stack.callback(log.close)
    return found, log, number


def _points(grid: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The parameters of each point, as they read back from JSON, under their SHA-256."""
    if isinstance(grid, Mapping):
        for name, values in grid.items():
            if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
                why = f"the values of {name!r} are {kind_of(values)}"
                raise InvalidConfig("grid", why, "Give a list of them")
        grid = [dict(zip(grid, values)) for values in itertools.product(*grid.values())]
    points: dict[str, dict[str, Any]] = {}
    for point in grid if isinstance(grid, Iterable) else [grid]:
        if not isinstance(point, Mapping):
            raise InvalidConfig("grid", f"{kind_of(point)} is no point", "A point is a mapping of names to values")
        data = encode({name: _plain(value) for name, value in point.items()}, "grid")
        parameters = decode(data, dict[str, Any])
        key = sha256(canonical(data.decode()))
        if taken := parameters.keys() & OURS:
            raise InvalidConfig("grid", f"{min(taken)!r} is a column of the sweep's own", "Give the parameter another name")
        if key in points:
            raise InvalidConfig("grid", f"two points are {parameters}", "To run one several times, count it: repeat=range(5)")
        points[key] = parameters
    return points


def _plain(value: Any) -> Any:
    """What numpy and pandas hand out, as plain Python."""
    if value is pd.NA:
        return None
    return value.item() if isinstance(value, np.generic) else value


def _outcomes(executor: Executor | None, calls: list[_Call]) -> Generator[bytes, None, None]:
    """The line of each point, as it is done; what did not begin yet is called off when this is closed."""
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
            except (BrokenExecutor, CancelledError):  # not this point's fault, and there is nothing to run the others
                raise
            except Exception as error:  # noqa: BLE001  the executor lost this one, as when it killed its worker: it is reported
                _, run, key, parameters = waiting[future]
                yield _line(run, key, parameters, time.perf_counter(), error=error)
    finally:
        for future in waiting:
            future.cancel()


def _call(function: Callable[..., Mapping[str, Any] | None], run: Run, key: str, parameters: dict[str, Any]) -> bytes:
    """Run one point, where the executor has it run; what crosses back is bytes, for not every error can be pickled."""
    start = time.perf_counter()
    try:
        found = function(run, **parameters)
        result = {name: _plain(value) for name, value in (found or {}).items()}
        if taken := result.keys() & {*OURS, *parameters}:
            raise InvalidConfig("result", f"{min(taken)!r} is a column already", "Give it another name")
        return _line(run, key, parameters, start, result=decode(encode(result, "result")))
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever a point raises is reported, and the others go on
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
    said = trace = None
    if error is not None:
        said, trace = ("".join(lines) for lines in (traceback.format_exception_only(error), traceback.format_exception(error)))
        said, trace = replace_surrogates(said.strip())[0], replace_surrogates(trace)[0]
    elapsed = round((time.perf_counter() - start) * 1000, 3)
    return encode(
        _Point(Timestamp.now(), run.number, key, run.session, parameters, result, said, trace, elapsed_ms=elapsed), "point"
    )


def _frame(points: list[_Point], parameters: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    names = dict.fromkeys(name for each in parameters.values() for name in each)
    results = dict.fromkeys(name for point in points for name in point.result or ())
    columns = {name: _column([point.parameters.get(name) for point in points]) for name in names}
    columns |= {name: _column([(point.result or {}).get(name) for point in points]) for name in results}
    columns |= {name: pd.Series([getattr(point, name) for point in points], dtype=dtype) for name, dtype in OURS.items()}
    return pd.DataFrame(columns)


def _column(values: list[Any]) -> pd.Series[Any]:
    """Values, missing ones None, with the nullable dtype that holds all of them; else as objects."""
    kinds = frozenset(type(value) for value in values if value is not None)
    return pd.Series(values, dtype=DTYPES.get(kinds, "object"))
