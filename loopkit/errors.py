"""Every error a person can meet; this docstring is the tree.

Each message says what happened, where (file and line, URL, member), and what to do next. Nothing here knows how an error
comes about: rooms raise, this room words. All errors can be pickled, so that they cross a process pool.

::

    LoopkitError
    ├── ProgrammingError        the call is wrong: mend the code
    │   ├── InvalidId           also a ValueError
    │   ├── InvalidConfig       also a ValueError
    │   ├── ContractBroken      the next request would not extend the last one
    │   ├── LoopBusy            a second turn while one runs
    │   └── NothingToGoOn       go_on after a turn that is finished
    └── WorldError              the call is right; a file, the disk or a server is not
        ├── SessionError
        │   ├── SessionNotFound
        │   ├── SessionExists
        │   ├── SessionLocked
        │   ├── SessionIOError
        │   ├── SessionClosed   closed, or a failed write has made it unusable
        │   ├── PendingCalls    tool calls without a result, after a kill
        │   ├── EncodeError     a value that JSON or the record cannot hold
        │   │   └── OutOfOrder  a record that cannot stand where it was to be written
        │   ├── TornLog
        │   └── BaselineError
        │       └── BaselineMismatch
        ├── ServerError
        │   ├── ServerUnreachable
        │   ├── ServerRefused
        │   ├── ContextExceeded
        │   ├── StreamCut
        │   ├── ServerTimeout
        │   └── ServerNotStarted
        ├── EpochTooLarge       a baseline and what it would carry do not fit the context
        ├── ModelUnavailable    a model file that is not here and cannot be fetched
        └── LogError            a log that cannot be loaded
"""

from __future__ import annotations

import shlex
from pathlib import PurePath
from typing import Any

__all__ = [
    "BaselineError",
    "BaselineMismatch",
    "ContextExceeded",
    "ContractBroken",
    "EncodeError",
    "EpochTooLarge",
    "InvalidConfig",
    "InvalidId",
    "LogError",
    "LoopBusy",
    "LoopkitError",
    "ModelUnavailable",
    "NothingToGoOn",
    "OutOfOrder",
    "PendingCalls",
    "ProgrammingError",
    "ServerError",
    "ServerNotStarted",
    "ServerRefused",
    "ServerTimeout",
    "ServerUnreachable",
    "SessionClosed",
    "SessionError",
    "SessionExists",
    "SessionIOError",
    "SessionLocked",
    "SessionNotFound",
    "StreamCut",
    "TornLog",
    "WorldError",
]


def __dir__() -> list[str]:
    return list(__all__)


def _short(value: object, limit: int = 80) -> str:
    """Quote ``value`` in at most ``limit`` characters, with the middle left out."""
    text = ascii(value)
    return text if len(text) <= limit else f"{text[: limit // 2]}…{text[-limit // 2 :]}"


class LoopkitError(Exception):
    """Root of every error that loopkit raises on purpose.

    Subclasses keep their facts as attributes and word them in ``__str__``; ``args`` are the facts, so pickling works.
    """


class ProgrammingError(LoopkitError):
    """The call is wrong: mend the code that makes it."""


class InvalidId(ProgrammingError, ValueError):
    """An identifier that breaks its rule."""

    def __init__(self, kind: str, value: object, rule: str) -> None:
        super().__init__(kind, value, rule)
        self.kind, self.value, self.rule = kind, value, rule

    def __str__(self) -> str:
        return f"{_short(self.value)} is not a {self.kind}: it must be {self.rule}"


class InvalidConfig(ProgrammingError, ValueError):
    """An argument or a setting that cannot be used."""

    def __init__(self, member: str, why: str, then: str = "") -> None:
        super().__init__(member, why, then)
        self.member, self.why, self.then = member, why, then

    def __str__(self) -> str:
        return f"{self.member}: {self.why}" + (f". {self.then}" if self.then else "")


class ContractBroken(ProgrammingError):
    """The request about to be sent is not an extension of the last one; nothing was sent."""

    def __init__(self, why: str, *, offset: int | None = None, member: str | None = None) -> None:
        super().__init__(why)
        self.why, self.offset, self.member = why, offset, member

    def __str__(self) -> str:
        return (
            f"the next request would not extend the last one sent: {self.why}. Nothing was sent. Something changed a record, "
            "the baseline or the encoder after it was sent; the log on disk is the state: open the session again"
        )


class LoopBusy(ProgrammingError):
    """A second turn was asked for while one runs."""

    def __init__(self, session: str) -> None:
        super().__init__(session)
        self.session = session

    def __str__(self) -> str:
        return f"session {self.session} is in the middle of a turn. Wait for it, or stop it, before you ask again"


class NothingToGoOn(ProgrammingError):
    """``go_on`` was called, and nothing waits for a request."""

    def __init__(self, session: str) -> None:
        super().__init__(session)
        self.session = session

    def __str__(self) -> str:
        return (
            f"session {self.session} has no turn to go on with: its last one is finished, or none was begun. A question whose "
            "first answer was interrupted or refused was not logged: ask it again"
        )


class WorldError(LoopkitError):
    """The call is right; a file, the disk or a server is not."""


class SessionError(WorldError):
    """Something about a session on disk."""


class SessionNotFound(SessionError):
    """No session of that name."""

    def __init__(
        self, path: str, why: str = "does not exist", then: str = "Look at the home and the session id, or create the session"
    ) -> None:
        super().__init__(path, why, then)
        self.path, self.why, self.then = path, why, then

    def __str__(self) -> str:
        return f"no session here: {self.path} {self.why}. {self.then}"


class SessionExists(SessionError):
    """A session of that name stands there already."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} exists already, and nothing is ever overwritten. Open it, or choose another session id"


class SessionLocked(SessionError):
    """Another writer has the session."""

    def __init__(self, path: str, pid: int | None, then: str = "Close it there, or read it here with Session.read") -> None:
        super().__init__(path, pid, then)
        self.path, self.pid, self.then = path, pid, then

    def __str__(self) -> str:
        holder = f"process {self.pid}" if self.pid is not None else "another process"
        return (
            f"{self.path} is open for writing in {holder}. {self.then}. "
            "The lock ends with its process; there is no lock file to remove"
        )


class SessionIOError(SessionError):
    """The operating system refused."""

    def __init__(self, path: str, doing: str, why: str, then: str = "") -> None:
        super().__init__(path, doing, why, then)
        self.path, self.doing, self.why, self.then = path, doing, why, then

    def __str__(self) -> str:
        return f"{self.path}: cannot {self.doing}: {self.why}" + (f". {self.then}" if self.then else "")


class SessionClosed(SessionError):
    """The session takes no more records."""

    def __init__(self, path: str, why: str = "it was closed") -> None:
        super().__init__(path, why)
        self.path, self.why = path, why

    def __str__(self) -> str:
        return f"{self.path} takes no more records: {self.why}. Open the session again to go on (lk.resume, or Session.open)"


class EncodeError(SessionError):
    """A value that JSON or the record cannot hold; nothing was written."""

    def __init__(self, member: str, why: str) -> None:
        super().__init__(member, why)
        self.member, self.why = member, why

    def __str__(self) -> str:
        return f"{self.member} cannot be encoded: {self.why}. Nothing was written"


class OutOfOrder(EncodeError):
    """A record that cannot stand where it was to be written; nothing was written."""

    def __str__(self) -> str:
        return f"{self.why}. Nothing was written"


class PendingCalls(SessionError):
    """Tool calls of the last assistant message have no result yet, and nobody knows whether they ran."""

    def __init__(self, session: str, calls: tuple[str, ...]) -> None:
        super().__init__(session, calls)
        self.session, self.calls = session, calls

    def __str__(self) -> str:
        return (
            f"session {self.session} has tool calls without a result: {', '.join(self.calls)}. They may have run in part, or not "
            'at all: loop.settle("rerun") runs them, loop.settle("interrupted") tells the model that no result came'
        )


class TornLog(SessionError):
    """A log that is not what a session writes; it was not touched."""

    def __init__(
        self,
        path: str,
        line: int,
        offset: int,
        why: str,
        session_dir: str | None = None,
        then: str = "",
        *,
        at_end: bool = False,
    ) -> None:
        super().__init__(path, line, offset, why, session_dir, then)
        self.then = then
        self.path, self.line, self.offset, self.why, self.session_dir = path, line, offset, why, session_dir
        self.at_end = at_end  # something is missing behind the last whole line: so it looks while a writer is at it, too

    def __str__(self) -> str:
        text = f"{self.path}:{self.line}: {self.why} (byte {self.offset} of the file). The file was not touched"
        if self.then:
            return f"{text}. {self.then}"
        nothing_before = self.line == 1 and PurePath(self.path).name == "0.jsonl"
        if self.session_dir is not None and not nothing_before:
            text += f". To copy what is sound into a new session: loopkit salvage {shlex.quote(self.session_dir)} --to NEW_ID"
        return text + '. To load what is sound of it, and what stands beside it: errors="report", or --errors report'


class BaselineError(SessionError):
    """A baseline that cannot be read, decoded or encoded."""

    def __init__(self, path: str | None, why: str, then: str = "") -> None:
        super().__init__(path, why, then)
        self.path, self.why, self.then = path, why, then

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path is not None else "baseline: "
        return where + self.why + (f". {self.then}" if self.then else "")


class BaselineMismatch(BaselineError):
    """The baseline file is not the one that the log was written under."""

    def __init__(self, path: str, expected: str, found: str) -> None:
        super().__init__(path, f"its SHA-256 is {found}, but the log was written under {expected}")
        self.args = (path, expected, found)
        self.expected, self.found = expected, found
        self.then = "The file was changed after the epoch began: put the old one back, or start a new session"


class ServerError(WorldError):
    """Something about a server; ``url`` never holds a key."""

    url: str


class ServerUnreachable(ServerError):
    """No connection, or it was lost before an answer began; ``attempts`` is 0 where nothing was sent."""

    def __init__(self, url: str, why: str, seconds: float, attempts: int = 1) -> None:
        super().__init__(url, why, seconds, attempts)
        self.url, self.why, self.seconds, self.attempts = url, why, seconds, attempts

    def __str__(self) -> str:
        if not self.attempts:
            return f"{self.url}: {self.why}"
        tries = f"{self.attempts} attempts" if self.attempts != 1 else "1 attempt"
        return f"{self.url}: no answer after {self.seconds:.1f} s and {tries}: {self.why}. Is the server running there?"


class ServerRefused(ServerError):
    """The server answered with an error."""

    def __init__(self, url: str, status: int, message: str, then: str = "", attempts: int = 1) -> None:
        super().__init__(url, status, message, then, attempts)
        self.url, self.status, self.message, self.then, self.attempts = url, status, message, then, attempts

    def __str__(self) -> str:
        text = f"{self.url}: HTTP {self.status}: {self.message}"
        if self.attempts > 1:
            text += f" (after {self.attempts} attempts)"
        return text + (f". {self.then}" if self.then else "")


class ContextExceeded(ServerError):
    """The prompt does not fit the server's context."""

    def __init__(self, url: str, prompt_tokens: int | None, context_size: int | None) -> None:
        super().__init__(url, prompt_tokens, context_size)
        self.url, self.prompt_tokens, self.context_size = url, prompt_tokens, context_size

    def __str__(self) -> str:
        prompt = "the prompt" if self.prompt_tokens is None else f"a prompt of {self.prompt_tokens} tokens"
        size = "its context" if self.context_size is None else f"its context of {self.context_size} tokens"
        return f"{self.url}: {prompt} does not fit {size}. Send less, end the epoch, or serve with a larger context"


class StreamCut(ServerError):
    """The answer ended before it was whole; nothing of it was logged."""

    def __init__(self, url: str, why: str, received: int) -> None:
        super().__init__(url, why, received)
        self.url, self.why, self.received = url, why, received

    def __str__(self) -> str:
        events = f"{self.received} events" if self.received != 1 else "1 event"
        return (
            f"{self.url}: the answer was cut after {events}: {self.why}. "
            "Nothing of it was logged; asking again sends the same bytes"
        )


class ServerTimeout(ServerError):
    """Nothing came for longer than the time-out."""

    def __init__(self, url: str, what: str, seconds: float, setting: str) -> None:
        super().__init__(url, what, seconds, setting)
        self.url, self.what, self.seconds, self.setting = url, what, seconds, setting

    def __str__(self) -> str:
        return f"{self.url}: {self.what} for {self.seconds:.0f} s. A slow machine may want a larger {self.setting}="


class ServerNotStarted(ServerError):
    """The embedded server's process ended or hung before it listened."""

    def __init__(self, why: str, log: str, then: str = "") -> None:
        super().__init__(why, log, then)
        self.url = ""
        self.why, self.log, self.then = why, log, then

    def __str__(self) -> str:
        text = f"the embedded server did not start: {self.why}"
        if self.log:
            text += f"; its last words: {_short(self.log, 400)}"
        return text + (f". {self.then}" if self.then else "")


class EpochTooLarge(WorldError):
    """What a new epoch would begin with does not fit the server's context; nothing was sent, and no epoch was opened."""

    def __init__(self, baseline_tokens: int, carried_tokens: int, room: int) -> None:
        super().__init__(baseline_tokens, carried_tokens, room)
        self.baseline_tokens, self.carried_tokens, self.room = baseline_tokens, carried_tokens, room

    def __str__(self) -> str:
        return (
            f"the request does not fit: about {self.baseline_tokens} tokens of baseline (system prompt, memory, tools) and "
            f"{self.carried_tokens} of messages, into {self.room} (the context less its reserve). Shorten the message or the "
            'tools, carry less over (loop.carry = None, or "summary"), or serve with a larger context'
        )


class ModelUnavailable(WorldError):
    """A model file that is not here and could not be fetched."""

    def __init__(self, model: str, why: str, then: str) -> None:
        super().__init__(model, why, then)
        self.model, self.why, self.then = model, why, then

    def __str__(self) -> str:
        return f"model {self.model}: {self.why}. {self.then}"


class LogError(WorldError):
    """Something that was to be loaded is not a log, or not there."""

    def __init__(self, path: str, why: str, then: str = "") -> None:
        super().__init__(path, why, then)
        self.path, self.why, self.then = path, why, then

    def __str__(self) -> str:
        return f"{self.path}: {self.why}" + (f". {self.then}" if self.then else "")


def kind_of(value: object) -> str:
    """Name the type of a value, for a message that says what it is.

    Examples
    --------
    >>> [kind_of(value) for value in (5, "five", None, object())]
    ['an int', 'a str', 'None', 'an object']
    """
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"


def describe(error: BaseException, **facts: Any) -> str:
    """Word an operating-system or library error in one line, never empty.

    Parameters
    ----------
    error : BaseException
        What was raised; its text may be empty, its type never is.
    **facts
        Named values to append.

    Returns
    -------
    str
        For example ``'No space left on device'``.

    Examples
    --------
    >>> describe(OSError(28, "No space left on device"))
    'No space left on device'
    >>> describe(TimeoutError())
    'TimeoutError'
    """
    text = (error.strerror if isinstance(error, OSError) and error.strerror else str(error)) or type(error).__name__
    return text + "".join(f", {name} {value}" for name, value in facts.items())
