"""Recordings of requests and responses that pass by, one line per request on disk.

Disk errors do not stop the traffic. If a request cannot be recorded, a warning is logged to ``loopkit.record``, and its number is
missing in the recording. Headers are used to find the engine, content type and encoding, and are not written. Keys, cookies and
URL queries therefore stay out of the recording.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
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

__all__ = ["Ending", "ObservedExchange", "Recorder"]

Ending: TypeAlias = Literal["whole", "hung_up", "cut"]
"How a response ended: ``whole`` (complete), ``hung_up`` (cancelled by the client), or ``cut`` (broken off by the server)."

COMPLETIONS = ("/completions", "/responses", "/messages", "/completion")
"Requests are recorded if their path ends with one of these."
PROMPTS = ("messages", "input", "prompt")
"Names of the body members that can have the prompt. Requests without any of them are not recorded."

_log = logging.getLogger("loopkit.record")


class ObservedExchange:
    """A request and its response, collected while they pass by.

    Parameters
    ----------
    recorder : Recorder
        Writes the request and its response when the response has ended.
    path : str
        Path of the URL, without the query.
    """

    def __init__(self, recorder: Recorder, path: str) -> None:
        self._recorder, self.path = recorder, path
        self.sent, self._started = Timestamp.now(), time.monotonic()
        self.body = bytearray()
        self.status: int | None = None
        self.response: ResponseReader | None = None
        self._has_ended = False

    def start_response(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """Note the status and the headers of the response."""
        self.status, self.response = status, ResponseReader({name.lower(): value for name, value in headers})

    def feed(self, data: bytes) -> None:
        """Add bytes of the response body."""
        if self.response is not None:
            self.response.feed(data)

    def end(self, ending: Ending) -> Future[None] | None:
        """End the exchange. Return a future that is done when its line is on disk; later calls return None."""
        if self._has_ended:
            return None
        self._has_ended = True
        return self._recorder.save(self, ending, Timestamp.now(), (time.monotonic() - self._started) * 1000)

    def to_record(self, ending: Ending, ended: str, elapsed_ms: float, request: int) -> RecordedRequest | None:
        """Return the record of the request and its response, or None if the request has no prompt.

        Raises
        ------
        ValueError
            If the request body is not a JSON object in UTF-8.
        """
        body = self.body.decode("utf-8")
        members = decode(body, dict[str, Any])
        if not any(name in members for name in PROMPTS):
            return None
        response = self.response or ResponseReader({})
        response.close()
        normalised = normalise(response.usage, response.timings)
        if ending == "hung_up" and response.is_complete:
            ending = "whole"
        return RecordedRequest(
            time=ended,
            request=request,
            sent=self.sent,
            path=self.path,
            body=body,
            status=self.status,
            ended="failed" if response.has_failed and ending == "whole" else ending,
            usage=structs.replace(
                normalised.usage,
                ttft_ms=None if response.first_token is None else (response.first_token - self._started) * 1000,
            ),
            reported=UNSET if normalised.fault is None else Raw(encode(response.usage or response.timings)),
            finish_reason=response.finish_reason,
            response_id=response.response_id,
            model=response.model or (members["model"] if isinstance(members.get("model"), str) else None),
            engine=response.engine,
            elapsed_ms=elapsed_ms,
        )


class Recorder:
    """Writes requests and the facts of their responses to ``<home>/recordings/<id>.jsonl``, in a separate thread.

    Parameters
    ----------
    home : str or Path
        Directory that contains ``recordings/``. It is created at once, so an unusable directory fails before the first request.

    Attributes
    ----------
    path : Path
        Path of the recording. The file is created when the first line is written.
    recorded, missed : int
        Number of requests written to disk, and number of requests that could not be written.
    in_progress : int
        Number of requests whose response has not ended.
    """

    def __init__(self, home: str | Path) -> None:
        if not isinstance(home, (str, Path)) or "\0" in str(home):
            raise InvalidConfig("home", f"expected a path; got {home!r}", "Give a directory")
        self._home = Path(home)
        self._file = self._new_file()
        make_parents(self.path)
        self.recorded = self.missed = self._started = self._ended = 0
        self._writer = ThreadPoolExecutor(1, "loopkit-record")
        self._last_line: Future[None] | None = None

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def in_progress(self) -> int:
        return self._started - self._ended

    def _new_file(self) -> LineFile:
        return LineFile(self._home / "recordings" / f"{SessionId.new()}.jsonl")

    def start(self, method: str, path: str) -> ObservedExchange | None:
        """Return an object that collects a request and its response, or None if the request is not for a completion."""
        path = path.partition("?")[0]
        if method != "POST" or not path.endswith(COMPLETIONS):
            return None
        self._started += 1
        return ObservedExchange(self, path)

    def save(self, exchange: ObservedExchange, ending: Ending, ended: str, elapsed_ms: float) -> Future[None]:
        """Queue an exchange that has ended for writing. Return a future that is done when its line is on disk."""
        self._ended += 1
        self._last_line = self._writer.submit(self._write, exchange, ending, ended, elapsed_ms)
        return self._last_line

    def flush(self, timeout: float) -> None:
        """Wait until the lines of all ended exchanges are written, for at most `timeout` seconds."""
        if self._last_line is not None:
            wait([self._last_line], timeout)

    def _write(self, exchange: ObservedExchange, ending: Ending, ended: str, elapsed_ms: float) -> None:
        number = self.recorded + self.missed + 1
        try:
            record = exchange.to_record(ending, ended, elapsed_ms, number)
            if record is not None:
                self._file.write(encode_recorded(record))
                self.recorded += 1
        except (SessionIOError, EncodeError, ValueError) as error:
            self.missed += 1
            _log.warning("Request %d (POST %s) was passed on but not recorded. %s", number, exchange.path, error)
            if isinstance(error, SessionIOError) and error.doing != "append":  # how the file ends is unknown
                self._file.close()
                self._file = self._new_file()

    def close(self) -> None:
        """Wait until all lines are written, and close the file. Safe to call twice."""
        self._writer.shutdown()
        self._file.close()
