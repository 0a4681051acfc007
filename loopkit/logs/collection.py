"""`Logs`: loaded logs as dataframes, with selection, diagnosis and export."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from loopkit.cache.losses.findings import Findings
from loopkit.cache.prefixes.prompt_parts import Prompt
from loopkit.encoding import decode
from loopkit.errors import InvalidConfig, kind_of
from loopkit.logs.frames.columns import Part
from loopkit.logs.frames.files import write_csv, write_parquet
from loopkit.logs.frames.lazy_frames import LazyFrames
from loopkit.logs.frames.overview import describe_usage, sparkline
from loopkit.logs.parts import merge, problems_of_others, select, without_replays
from loopkit.logs.requests import diagnose_parts, prompts
from loopkit.logs.trace_export import export_trace
from loopkit.reprs import Card, counted

__all__ = ["Logs"]

DISPENSABLE = ("turns", "epochs", "replays", "requests", "problems", "sessions")
"Names of the facts that the text repr leaves out first if it would be too long."


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Logs(LazyFrames):
    """The dataframes of loaded logs, as `load` returns them. Each frame is built on first use.

    Every frame has all its columns with fixed dtypes, even without rows; ``lk.logs.columns(frame)`` describes them. A missing
    value is ``<NA>``, never 0. Each access returns a copy of the frame, so you may change it. Totals, such as those in the repr,
    do not count replays, unless all logs are replays. ``logs.where(source="replay")`` selects the replays.

    Parameters
    ----------
    parts : tuple of Part
        The data of the logs: one part per epoch of a session, or per replay. The epochs of a session are in order.
    unread : tuple of Problem
        What could not be read, or was left out; the rows of the frame ``problems``.
    content : bool
        Whether the frame ``messages`` has a column ``content`` with the texts of the messages.

    Examples
    --------
    >>> Logs(())
    Logs: sessions 0, epochs 0, turns 0, requests 0, processed unknown, lost unknown
    >>> len(Logs(()).usage)
    0
    """

    def evidence(self, row: int | pd.Series[Any] | Mapping[Hashable, Any]) -> dict[str, Any]:
        """Return the evidence for the cause of a cache loss.

        Parameters
        ----------
        row : int, Series or mapping
            A row of the frame ``cache_loss``, or its index label (0 is the first row).

        Returns
        -------
        dict
            Values that can be checked against the log, such as ``byte``, ``was`` and ``now``. Empty if there is no evidence.

        Raises
        ------
        InvalidConfig
            If ``cache_loss`` has no row with this label, or the argument is not a row.

        Examples
        --------
        >>> Logs(()).evidence({"cause": "system_changed", "evidence": '{"byte":93}'})
        {'byte': 93}
        """
        if isinstance(row, (int, np.integer)) and not isinstance(row, bool):
            losses = self._frame("cache_loss")
            if not 0 <= row < len(losses):
                raise InvalidConfig("row", f"there is no row {row}: `cache_loss` has {counted(len(losses), 'row')}")
            row = losses.iloc[int(row)]
        if not isinstance(row, (pd.Series, Mapping)) or "evidence" not in row:
            raise InvalidConfig("row", "it is not a row of `cache_loss`", "Give a row such as `logs.cache_loss.iloc[0]`")
        text = row["evidence"]
        return decode(text.encode(), dict[str, Any]) if isinstance(text, str) else {}

    def requests(self) -> Iterator[Prompt]:
        """Yield the prompt of each request, for the functions of `loopkit.cache`.

        Yields
        ------
        Prompt
            The prompt of one request: its body, if it was recorded or can be rebuilt from the log; otherwise its token ids or
            block hashes. Requests for which the log has only token counts are left out.

        Raises
        ------
        TornLog, BaselineError, LogError, SessionIOError
            If a log has changed since it was loaded.

        Examples
        --------
        >>> list(Logs(()).requests())
        []
        """
        return prompts(self.parts)

    def diagnose(self) -> Findings:
        """Return every cache loss with its cause, and the share of the requests that could be checked.

        The losses are the rows of ``cache_loss``. Two kinds of losses are diagnosed again, now with the requests of all loaded
        sessions: losses without a cause, and losses that another session in the same slot may have caused.

        Examples
        --------
        >>> Logs(()).diagnose()
        0 losses in 0 requests: with usage ?, rendered exactly ?, lost with a cause ?
        """
        return diagnose_parts(self.parts)

    def export_trace(self, path: Path | str, salt: bytes, *, block: int = 512) -> int:
        """Write a trace that shows how prompts share prefixes, without their text, in the format of Mooncake's traces.

        Parameters
        ----------
        path : Path or str
            New JSONL file, with one line per request: ``timestamp`` (milliseconds since the first record), ``input_length``,
            ``output_length`` (tokens) and ``hash_ids``. ``unit`` is the unit of ``input_length``: ``tokens`` if the log has token
            ids, ``blocks`` if it has only block hashes, otherwise ``bytes`` of the prompt in the request body. Further members,
            such as ``engine`` and ``epoch``, are for ``load``.
        salt : bytes
            At least 16 random bytes. In traces with the same salt, equal prefixes have equal hashes, so they can be compared.
            Keep the salt secret: with it, anyone can test whether a guessed text occurs in the trace.
        block : int
            Number of tokens or bytes in a block. The hash of a block also covers all blocks before it.

        Returns
        -------
        int
            Number of lines written. Requests for which the log has only token counts are left out.

        Raises
        ------
        InvalidConfig
            If the salt is not bytes or is too short, or ``block`` is not an integer of at least 1.
        LogError
            If the file exists or cannot be written.

        Examples
        --------
        >>> import secrets, tempfile
        >>> Logs(()).export_trace(Path(tempfile.mkdtemp(), "trace.jsonl"), secrets.token_bytes(32))
        0
        """
        return export_trace(self.parts, _check_path("path", path), salt, block)

    def to_parquet(self, directory: Path | str) -> None:
        """Write every frame as Parquet files of at most about a million rows. ``load(directory)`` then returns equal frames.

        Request bodies are not in the frames, so ``requests()`` yields nothing for logs that are loaded from Parquet. Messages
        have their text only if these logs were loaded with ``content=True``. Needs the extra ``scale``.

        Parameters
        ----------
        directory : Path or str
            An empty directory, or one to create.

        Raises
        ------
        LogError
            If the directory is not empty, or cannot be written.
        InvalidConfig
            If pyarrow is not installed.
        """
        write_parquet(self.parts, self._all_frames(), _check_path("directory", directory))

    def to_csv(self, directory: Path | str) -> None:
        """Write one CSV file per frame, for other programs.

        A text that a spreadsheet would treat as a formula gets an apostrophe in front. A missing value is an empty field.

        Parameters
        ----------
        directory : Path or str
            An empty directory, or one to create.

        Raises
        ------
        LogError
            If the directory is not empty, or cannot be written.
        """
        write_csv(self._all_frames(), _check_path("directory", directory))

    def where(
        self,
        *,
        session: str | Iterable[str] | None = None,
        since: str | datetime.datetime | None = None,
        source: str | Iterable[str] | None = None,
        model: str | Iterable[str] | None = None,
        engine: str | Iterable[str] | None = None,
        variant: str | Iterable[str] | None = None,
        parent: str | Iterable[str] | None = None,
    ) -> Logs:
        """Return the logs of the sessions that meet all given conditions.

        A selected session keeps all its epochs, so that the frames agree with each other. To select single rows, filter a frame
        instead.

        Parameters
        ----------
        session : str or iterable of str, optional
            Session ids.
        since : str or datetime, optional
            Sessions with a record at or after this time. A time without a zone is in UTC.
        source : str or iterable of str, optional
            Programs that wrote the logs, such as ``"replay"`` or ``"claude_code"``.
        model, engine : str or iterable of str, optional
            Models and engines; a session is selected if one of its epochs matches.
        variant : str or iterable of str, optional
            Variants of replays: what they changed on purpose, as in the column ``variant``.
        parent : str or iterable of str, optional
            Ids of parents. Sessions that were forked, resumed, spawned or replayed from one of them are selected.

        Returns
        -------
        Logs
            The selected sessions; no rows if no session matches. If all sessions of a file are dropped, its problems are, too.

        Raises
        ------
        InvalidConfig
            If there is no session with a given id, or an argument is invalid.

        Examples
        --------
        >>> Logs(()).where(session="a")
        Traceback (most recent call last):
            ...
        loopkit.errors.InvalidConfig: session: there is no session 'a'. No sessions are loaded
        """
        facts = {"source": source, "model": model, "engine": engine, "variant": variant, "parent": parent}
        return self._with(select(self.parts, self.unread, {"session": session, **facts}, since))

    def without_replays(self) -> Logs:
        """Return the logs without replays, unless all of them are replays.

        A replay may change the prompt prefix on purpose and so lose cached tokens. Totals therefore do not count replays.

        Returns
        -------
        Logs
            The logs that are not replays; this object itself if there are no replays, or only replays.

        Examples
        --------
        >>> Logs(()).without_replays()
        Logs: sessions 0, epochs 0, turns 0, requests 0, processed unknown, lost unknown
        """
        kept = without_replays(self.parts)
        return self if len(kept) == len(self.parts) else self._with(kept)

    def concat(self, other: Logs) -> Logs:
        """Combine these logs with others. If both contain the same file, it is taken from ``other``, which may be more recent.

        Parameters
        ----------
        other : Logs
            The logs to add.

        Raises
        ------
        LogError
            If two different files have the same session id, because the frames could not distinguish the sessions.

        Examples
        --------
        >>> Logs(()).concat(Logs(()))
        Logs: sessions 0, epochs 0, turns 0, requests 0, processed unknown, lost unknown
        """
        if not isinstance(other, Logs):
            raise InvalidConfig("other", f"it must be `Logs`; got {kind_of(other)}", "Load it first")
        unread = [*problems_of_others(self.unread, other.parts), *other.unread]
        return Logs(*merge([*self.parts, *other.parts], unread, "raise"), self.content or other.content)

    def __repr__(self) -> str:
        return self._card().text()

    def __str__(self) -> str:
        return self._card().whole()

    def _repr_html_(self) -> str:
        card, plot = self._card(), sparkline(self.without_replays()._frame("usage"))
        return card._replace(facts=[*card.facts, *([("reuse by request", plot)] if plot else [])]).html()

    def _card(self) -> Card:
        logs = self.without_replays()
        sessions, usage = logs._frame("sessions"), logs._frame("usage")
        replays = len({part.session for part in self.parts if part.source == "replay"})
        own = len(sessions) if logs is not self or not replays else 0
        numbers = [("sessions", own), ("replays", replays), ("epochs", len(logs.parts))]
        numbers += [("turns", int(sessions["turns"].sum())), ("requests", len(usage))]
        facts = [(name, f"{number:,}") for name, number in numbers if number or name != "replays"]
        problems = [("problems", f"{len(self.unread):,}")] if self.unread else []
        return Card("Logs", [*facts, *problems, *describe_usage(usage)], DISPENSABLE)

    def _with(self, parts: Iterable[Part]) -> Logs:
        kept = tuple(parts)
        sessions, files = {part.session for part in kept}, {part.path for part in kept}
        dropped = [part for part in self.parts if part.session not in sessions and part.path not in files]
        return dataclasses.replace(self, parts=kept, unread=problems_of_others(self.unread, dropped))


def _check_path(name: str, value: Path | str) -> Path:
    if not isinstance(value, (str, Path)) or "\0" in str(value):
        raise InvalidConfig(name, f"{value!r} is not a path")
    return Path(value)
