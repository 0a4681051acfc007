"""``scan``: the frames of many logs as dask dataframes, out of core, with whole sessions in each partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from loopkit.errors import InvalidConfig, LogError
from loopkit.logs.file_search import File, Loadable
from loopkit.logs.frames.arrays import empty
from loopkit.logs.loading import find_files, read_files
from loopkit.logs.parallel import batches, sizes_of
from loopkit.logs.problems import Errors
from loopkit.session.layout import is_log_name

if TYPE_CHECKING:
    import dask.dataframe as dd

__all__ = ["Scan", "scan"]


class Scan(NamedTuple):
    """The frames of `Logs` as dask dataframes with the same columns and dtypes; returned by ``loopkit.logs.scan``."""

    sessions: dd.DataFrame
    epochs: dd.DataFrame
    turns: dd.DataFrame
    usage: dd.DataFrame
    cache_loss: dd.DataFrame
    messages: dd.DataFrame
    problems: dd.DataFrame


def scan(what: Loadable, *, errors: Errors = "raise", partition_bytes: int = 1 << 26) -> Scan:
    """Return the frames of logs as dask dataframes. Logs are read when a result is computed, on any dask scheduler.

    Parameters
    ----------
    what : str, Path, Session, or an iterable of these
        As for `loopkit.load`. Workers must find the files at the same paths.
    errors : "raise" or "report"
        As for `loopkit.load`. Directories without a log only cause a warning.
    partition_bytes : int
        Maximum size of the log files in one partition; their frames are much smaller. A partition contains whole sessions, so
        one large session may exceed it. Logs of other tools form a single partition, because they may repeat each other's
        requests.

    Returns
    -------
    Scan
        A named tuple of dask dataframes.

    Raises
    ------
    InvalidConfig
        If dask is not installed, or an argument is invalid.
    LogError
        If a path does not exist, or two logs have the same session id.

    Examples
    --------
    >>> from loopkit import logs
    >>> usage = logs.scan([]).usage
    >>> usage.npartitions, len(usage)
    (1, 0)
    """
    if not isinstance(partition_bytes, int):
        raise InvalidConfig("partition_bytes", f"it must be an integer; got {partition_bytes!r}")
    try:
        import dask
        import dask.dataframe as dd
    except ImportError:
        why = "`scan` needs dask, which is not installed"
        raise InvalidConfig("dask", why, "Run `pip install 'loopkit-lab[scale]'`") from None
    files, _ = find_files(what, errors)
    groups = [*_groups(files, partition_bytes)] or [[]]
    size = sum(sizes_of(files))  # dask reuses the result of an equal call, but the logs may have grown
    with dask.config.set({"dataframe.convert-string": False}):  # keep the dtypes of the schema
        frames = {
            name: dd.from_map(_frame, groups, name=name, errors=errors, size=size, meta=empty(name))  # type: ignore[no-untyped-call]
            for name in Scan._fields
        }
    return Scan(**frames)


def _groups(files: list[File], most: int) -> Iterator[list[File]]:
    """Yield the files of each partition: whole sessions of together at most ``most`` bytes, then all logs of other tools."""
    sessions: dict[str, list[File]] = {}
    others: list[File] = []
    for file in files:
        if file.path.parent.name == "replays":
            sessions[str(file.path)] = [file]
        elif not is_log_name(file.path.name):
            others.append(file)
        else:
            epochs = sessions.setdefault(file.path.parent.name, [])
            if epochs and epochs[0].path.parent.absolute() != file.path.parent.absolute():
                why = f"{epochs[0].path.parent} has the same session id, so the frames could not tell them apart"
                raise LogError(str(file.path.parent), why, "Scan them separately")
            epochs.append(file)
    wholes = list(sessions.values())
    for batch in batches(wholes, [sum(sizes_of(epochs)) for epochs in wholes], most):
        yield [epoch for epochs in batch for epoch in epochs]
    if others:
        yield others


def _frame(files: list[File], name: str, errors: Errors, size: int) -> pd.DataFrame:
    """Return one frame of one partition.

    ``size`` is not used. It makes the call differ from that of an earlier scan, so that dask does not reuse an old result.
    """
    return getattr(read_files(files, errors=errors, progress=False), name)  # type: ignore[no-any-return]
