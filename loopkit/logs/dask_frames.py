"""``scan``: the frames of many logs as dask dataframes, out of core, whole sessions in each partition.

A partition is read by ``load``'s own reading when it is computed, where it is computed; nothing is read before. Knows nothing of
clusters, and has no reader of its own. dask is loaded when it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from loopkit.errors import InvalidConfig, LogError
from loopkit.logs.find import File, Loadable
from loopkit.logs.frames.arrays import empty
from loopkit.logs.loading import find_files, read_files
from loopkit.logs.parallel import batches, sizes_of
from loopkit.logs.problems import Errors
from loopkit.session.store import is_log_name

if TYPE_CHECKING:
    import dask.dataframe as dd

__all__ = ["Scan", "scan"]


class Scan(NamedTuple):
    """The frames of `loopkit.load`, as dask dataframes with the same columns and dtypes; made by ``loopkit.logs.scan``."""

    sessions: dd.DataFrame
    epochs: dd.DataFrame
    turns: dd.DataFrame
    usage: dd.DataFrame
    cache_loss: dd.DataFrame
    messages: dd.DataFrame
    problems: dd.DataFrame


def scan(what: Loadable, *, errors: Errors = "raise", partition_bytes: int = 1 << 26) -> Scan:
    """Frames of logs that are read when something is computed of them, on any dask scheduler.

    Parameters
    ----------
    what : str, Path, Session, or an iterable of these
        As `loopkit.load` takes it. Workers must find the files at the same paths.
    errors : "raise" or "report"
        As `loopkit.load` takes it; what is left out before anything is read is only warned of.
    partition_bytes : int
        Bytes of logs that make a partition, of whole sessions; the frames are a small part of that. Other tools' logs are one
        partition, for one may hold a copy of another, which is to be counted once.

    Returns
    -------
    Scan
        Its members are dask dataframes.

    Raises
    ------
    InvalidConfig
        When dask is not installed.
    LogError
        When something is not there, or two logs have the same session id.

    Examples
    --------
    >>> from loopkit import logs
    >>> usage = logs.scan([]).usage
    >>> usage.npartitions, len(usage)
    (1, 0)
    """
    if not isinstance(partition_bytes, int):
        raise InvalidConfig("partition_bytes", f"{partition_bytes!r} is no number of bytes")
    try:
        import dask
        import dask.dataframe as dd
    except ImportError:
        raise InvalidConfig("dask", "it is not installed, and scan needs it", "pip install 'loopkit-lab[scale]'") from None
    files, _ = find_files(what, errors)
    groups = [*_groups(files, partition_bytes)] or [[]]
    size = sum(sizes_of(files))  # logs grow: dask must not take a scan for an earlier one, whose results it may hold
    with dask.config.set({"dataframe.convert-string": False}):  # the schema says what a string is
        frames = {
            name: dd.from_map(_frame, groups, name=name, errors=errors, size=size, meta=empty(name))  # type: ignore[no-untyped-call]
            for name in Scan._fields
        }
    return Scan(**frames)


def _groups(files: list[File], most: int) -> Iterator[list[File]]:
    """Files for each partition."""
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
                why = (
                    f"{epochs[0].path.parent} has the session id {file.path.parent.name} too, and keys would not tell them apart"
                )
                raise LogError(str(file.path.parent), why, "Scan them one at a time")
            epochs.append(file)
    wholes = list(sessions.values())
    for batch in batches(wholes, [sum(sizes_of(epochs)) for epochs in wholes], most):
        yield [epoch for epochs in batch for epoch in epochs]
    if others:
        yield others


def _frame(files: list[File], name: str, errors: Errors, size: int) -> pd.DataFrame:
    """One frame of one partition; ``size`` only tells this scan from an earlier one."""
    return getattr(read_files(files, errors=errors, progress=False), name)  # type: ignore[no-any-return]
