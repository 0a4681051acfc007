"""From an exchange that passes by to a line on disk.

A fault of the disk must not break another's agent: its traffic goes on, and the person is told, once for each request that is not
recorded, in the log ``loopkit.record``; numbers of requests then leave a gap. Of headers only what names the engine, the type and
the encoding is looked at, and none is kept: no key, cookie or query can be. Knows nothing of sockets.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Raw, structs

from loopkit.contract.recording import RecordedRequest, encode_recorded
from loopkit.encoding import decode, encode
from loopkit.errors import EncodeError, InvalidConfig, SessionIOError
from loopkit.ids import SessionId, Timestamp
from loopkit.record.response_reader import ResponseReader
from loopkit.server.completion.usage import normalise
from loopkit.session.line_file import LineFile, make_parents

__all__ = ["How", "ObservedExchange", "Recorder"]

How: TypeAlias = Literal["whole", "hung_up", "cut"]
"How an exchange ended: as it should, by the client, or by the server."

COMPLETIONS = ("/completions", "/responses", "/messages", "/completion")
"How the path of a request ends that is answered by a model."
PROMPTS = ("messages", "input", "prompt")
"Members of a body of which one is there."

_log = logging.getLogger("loopkit.record")


class ObservedExchange:
    """One request and its answer, as they pass by.

    Parameters
    ----------
    recorder : Recorder
        Takes it when it has ended.
    path : str
        Of the URL, without its query.
    """

    def __init__(self, recorder: Recorder, path: str) -> None:
        self._recorder, self.path = recorder, path
        self.sent, self._started = Timestamp.now(), time.monotonic()
        self.body = bytearray()
        self.status: int | None = None
        self.said: ResponseReader | None = None
        self._over = False

    def head(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """The answer begins."""
        self.status, self.said = status, ResponseReader({name.lower(): value for name, value in headers})

    def data(self, data: bytes) -> None:
        """More of the answer's body."""
        if self.said is not None:
            self.said.take(data)

    def end(self, how: How) -> Future[None] | None:
        """The exchange is over; only the first time counts. Gives what is done when its line is on disk."""
        if self._over:
            return None
        self._over = True
        return self._recorder.take(self, how, Timestamp.now(), (time.monotonic() - self._started) * 1000)

    def record(self, how: How, ended: str, elapsed_ms: float, request: int) -> RecordedRequest | None:
        """What is kept of it; None where it asks for no completion.

        Raises
        ------
        ValueError
            Its body is no JSON object in UTF-8.
        """
        body = self.body.decode("utf-8")
        asked = decode(body, dict[str, Any])
        if not any(name in asked for name in PROMPTS):
            return None
        said = self.said or ResponseReader({})
        said.end()
        read = normalise(said.usage, said.timings)
        waited = None if said.first is None else (said.first - self._started) * 1000
        over: How = "whole" if how == "hung_up" and said.final else how
        return RecordedRequest(
            time=ended,
            request=request,
            sent=self.sent,
            path=self.path,
            body=body,
            status=self.status,
            ended="failed" if said.failed and over == "whole" else over,
            usage=structs.replace(read.usage, ttft_ms=waited),
            reported=UNSET if read.fault is None else Raw(encode(said.usage or said.timings)),
            finish_reason=said.finish_reason,
            response_id=said.response_id,
            model=said.model or (asked["model"] if isinstance(asked.get("model"), str) else None),
            engine=said.engine,
            elapsed_ms=elapsed_ms,
        )


class Recorder:
    """Writes what has passed to ``<home>/recordings/<id>.jsonl``, in a thread of its own.

    Parameters
    ----------
    home : str or Path
        Its directory is made at once, for a home that takes nothing is better known before anything passes.

    Attributes
    ----------
    path : Path
        The log; it is made with its first line.
    recorded, missed : int
        Requests whose line is on disk, and those whose is not.
    under_way : int
        Requests that are not over, or whose line is being written.
    """

    def __init__(self, home: str | Path) -> None:
        if not isinstance(home, (str, Path)) or "\0" in str(home):
            raise InvalidConfig("home", f"{home!r} is no path")
        self._home = Path(home)
        self._log = self._new()
        make_parents(self.path)
        self.recorded = self.missed = self._begun = self._over = 0
        self._writer = ThreadPoolExecutor(1, "loopkit-record")

    @property
    def path(self) -> Path:
        return self._log.path

    def _new(self) -> LineFile:
        return LineFile(self._home / "recordings" / f"{SessionId.new()}.jsonl")

    def begin(self, method: str, path: str) -> ObservedExchange | None:
        """A request is sent; None where it is none of a completion, and only passed on."""
        path = path.partition("?")[0]
        if method != "POST" or not path.endswith(COMPLETIONS):
            return None
        self._begun += 1
        return ObservedExchange(self, path)

    @property
    def under_way(self) -> int:
        return self._begun - self._over

    def take(self, exchange: ObservedExchange, how: How, ended: str, elapsed_ms: float) -> Future[None]:
        """Write an exchange that is over, in its turn."""
        return self._writer.submit(self._write, exchange, how, ended, elapsed_ms)

    def _write(self, exchange: ObservedExchange, how: How, ended: str, elapsed_ms: float) -> None:
        number = self.recorded + self.missed + 1
        try:
            record = exchange.record(how, ended, elapsed_ms, number)
            if record is not None:
                self._log.write(encode_recorded(record))
                self.recorded += 1
        except (SessionIOError, EncodeError, ValueError) as error:
            self.missed += 1
            _log.warning("request %d (POST %s) is not recorded; it was passed on. %s", number, exchange.path, error)
            if isinstance(error, SessionIOError) and error.doing != "append":  # what the file holds is not known
                self._log.close()
                self._log = self._new()
        finally:
            self._over += 1

    def close(self) -> None:
        """Wait until all is written; a second time does nothing."""
        self._writer.shutdown()
        self._log.close()
