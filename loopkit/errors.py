"""Every error that loopkit raises, as a tree.

Each message says what happened, where (file and line, URL or member), and what to do next. All errors can be pickled, so they
cross process boundaries.

::

    LoopkitError
    ├── ProgrammingError        the call is wrong: change the code
    │   ├── InvalidId           also a ValueError
    │   ├── InvalidConfig       also a ValueError
    │   ├── ContractBroken      the next request would not extend the last one
    │   ├── LoopBusy            a second turn was started while one is running
    │   └── NothingToGoOn       go_on was called after a finished turn
    └── WorldError              the call is right; a file, the disk or a server has a fault
        ├── SessionError
        │   ├── SessionNotFound
        │   ├── SessionExists
        │   ├── SessionLocked
        │   ├── SessionIOError
        │   ├── SessionClosed   closed, or unusable after a failed write
        │   ├── PendingCalls    tool calls without a result, after a kill
        │   ├── EncodeError     a value that JSON or the record cannot represent
        │   │   └── OutOfOrder  a record that must not follow the last one
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
        ├── EpochTooLarge       the start of a new epoch does not fit the context
        ├── ModelUnavailable    a model file that is missing and cannot be downloaded
        └── LogError            a log that cannot be loaded
"""

from __future__ import annotations

import shlex
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, dataclass_transform

if TYPE_CHECKING:
    from dataclasses import KW_ONLY  # at run time, dataclasses would double the import time


def _short(value: object, limit: int = 80) -> str:
    """Quote ``value`` in at most ``limit`` characters, without its middle."""
    text = ascii(value)
    return text if len(text) <= limit else f"{text[: limit // 2]}…{text[-limit // 2 :]}"


@dataclass_transform(eq_default=False)
class LoopkitError(Exception):
    """Base class of all errors of loopkit.

    A subclass declares its facts as fields and its message as a template of them. A field ``then`` says what to do, and follows
    the message where it is not empty. ``args`` are the positional fields, so that an error can be pickled.
    """

    _message = ""
    _positional: tuple[str, ...] = ()
    _keyword_only: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        names = tuple(cls.__annotations__)  # those of this class only
        split = names.index("_") if "_" in names else len(names)  # `_: KW_ONLY`
        cls._positional += names[:split]
        cls._keyword_only += names[split + 1 :]

    if not TYPE_CHECKING:  # type checkers derive it from the fields

        def __init__(self, *values: object, **facts: object) -> None:
            cls, names = type(self), self._positional
            declared, given = names + self._keyword_only, dict(zip(names, values, strict=False))
            known = {name: getattr(cls, name) for name in declared if hasattr(cls, name)} | facts | given
            if known.keys() != set(declared) or facts.keys() & given.keys() or len(values) > len(names) > 0:
                found = ", ".join((f"{len(values)} by position", *facts))
                raise TypeError(f"{cls.__name__} takes ({', '.join(declared)}); got {found}")
            vars(self).update(known)
            self.args = tuple(known[name] for name in names) or values

    def _text(self) -> str:
        return self._message.format_map(vars(self)) or super().__str__()

    def __str__(self) -> str:
        then = getattr(self, "then", "")
        return f"{self._text()}. {then}" if then else self._text()


class ProgrammingError(LoopkitError):
    """The call is wrong: change the code."""


class InvalidId(ProgrammingError, ValueError):
    """An identifier does not follow its rule."""

    kind: str
    value: object
    rule: str

    def _text(self) -> str:
        return f"{_short(self.value)} is not a {self.kind}: it must be {self.rule}"


class InvalidConfig(ProgrammingError, ValueError):
    """An argument or a setting cannot be used."""

    member: str
    why: str
    then: str = ""
    _message = "{member}: {why}"


class ContractBroken(ProgrammingError):
    """The next request would not extend the last request sent; nothing was sent."""

    why: str
    _: KW_ONLY
    offset: int | None = None
    """First byte that differs."""
    member: str | None = None
    """Member of the body that contains this byte."""
    _message = (
        "the next request would not extend the last request sent: {why}. Nothing was sent. A record, the baseline or the encoder "
        "changed after that request. The log on disk is unchanged: open the session again"
    )


class LoopBusy(ProgrammingError):
    """A second turn was started while one is running."""

    session: str
    _message = "session {session} is in the middle of a turn. Wait until the turn ends, or stop it, before you ask again"


class NothingToGoOn(ProgrammingError):
    """``go_on`` was called, but no turn is unfinished."""

    session: str
    _message = (
        "session {session} has no unfinished turn to continue. A question whose first response was interrupted or refused is not "
        "in the log: ask it again"
    )


class WorldError(LoopkitError):
    """The call is right; a file, the disk or a server has a fault."""


class SessionError(WorldError):
    """A session on disk has a fault, or cannot be used in this way."""


class SessionNotFound(SessionError):
    """The session does not exist."""

    path: str
    why: str = "does not exist"
    then: str = "Check the home and the session id, or create the session"
    _message = "no session found: {path} {why}"


class SessionExists(SessionError):
    """A session of that name exists already."""

    path: str
    _message = "{path} already exists, and loopkit never overwrites a session. Open it, or choose another session id"


class SessionLocked(SessionError):
    """Another writer has the session open."""

    path: str
    pid: int | None
    then: str = "Close it there, or read it here with Session.read"

    def __str__(self) -> str:
        holder = f"process {self.pid}" if self.pid is not None else "another process"
        return (
            f"{self.path} is open for writing in {holder}. {self.then}. "
            "The lock ends with that process; there is no lock file to remove"
        )


class SessionIOError(SessionError):
    """The operating system refused an operation on a file."""

    path: str
    doing: str
    why: str
    then: str = ""
    _message = "{path}: cannot {doing}: {why}"


class SessionClosed(SessionError):
    """The session accepts no more records."""

    path: str
    why: str = "it was closed"
    _message = "{path} accepts no more records: {why}. To continue, open the session again (lk.resume or Session.open)"


class EncodeError(SessionError):
    """JSON or the record's type cannot represent a value; nothing was written."""

    member: str
    why: str
    _message = "{member} cannot be encoded: {why}. Nothing was written"


class OutOfOrder(EncodeError):
    """A record must not follow the last one; nothing was written."""

    _message = "{why}. Nothing was written"


class PendingCalls(SessionError):
    """Tool calls of the last assistant message have no result, and it is unknown whether they ran."""

    session: str
    calls: tuple[str, ...]

    def _text(self) -> str:
        return (
            f"session {self.session} has tool calls without a result: {', '.join(self.calls)}. They may have run completely, in "
            'part, or not at all. Call loop.settle("rerun") to run them, or loop.settle("interrupted") to tell the model that '
            "there is no result"
        )


class TornLog(SessionError):
    """A log contains something that loopkit does not write; the file was not changed."""

    path: str
    line: int
    """Line number, from 1."""
    offset: int
    """Byte offset in the file."""
    why: str
    session_dir: str | None = None
    then: str = ""
    _: KW_ONLY
    at_end: bool = False
    """True if the fault may be the end of a log that another process is still writing."""

    def __str__(self) -> str:
        text = f"{self.path}:{self.line}: {self.why} (byte {self.offset} of the file). The file was not changed"
        if self.then:
            return f"{text}. {self.then}"
        nothing_before = self.line == 1 and PurePath(self.path).name == "0.jsonl"
        if self.session_dir is not None and not nothing_before:
            text += f". To copy the sound records into a new session: loopkit salvage {shlex.quote(self.session_dir)} --to NEW_ID"
        return text + '. To load everything that is sound: errors="report", or --errors report'


class BaselineError(SessionError):
    """A baseline cannot be read, decoded or encoded."""

    path: str | None
    why: str
    then: str = ""

    def _text(self) -> str:
        return f"{self.path or 'baseline'}: {self.why}"


class BaselineMismatch(BaselineError):
    """The baseline file is not the one that belongs to the log."""

    def __init__(self, path: str, expected: str, found: str) -> None:
        super().__init__(
            path,
            f"its SHA-256 is {found}, but the log was written with a baseline of SHA-256 {expected}",
            "The file changed after the epoch began. Restore the original file, or start a new session",
        )
        self.args = (path, expected, found)
        self.expected, self.found = expected, found


class ServerError(WorldError):
    """A server has a fault; ``url`` never contains a key."""

    url: str


class ServerUnreachable(ServerError):
    """There is no connection, or it was lost before the response began."""

    why: str
    seconds: float
    attempts: int = 1
    """0 if nothing was sent."""

    def _text(self) -> str:
        if not self.attempts:
            return f"{self.url}: {self.why}"
        tries = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        return (
            f"{self.url}: no response after {self.seconds:.1f} s and {tries}: {self.why}. "
            "Check that the server is running at this address"
        )


class ServerRefused(ServerError):
    """The server responded with an error."""

    status: int
    message: str
    then: str = ""
    attempts: int = 1

    def _text(self) -> str:
        tries = f" (after {self.attempts} attempts)" if self.attempts > 1 else ""
        return f"{self.url}: HTTP {self.status}: {self.message}{tries}"


class ContextExceeded(ServerError):
    """The prompt does not fit the server's context."""

    prompt_tokens: int | None
    context_size: int | None

    def _text(self) -> str:
        prompt = "the prompt" if self.prompt_tokens is None else f"a prompt of {self.prompt_tokens} tokens"
        size = "its context" if self.context_size is None else f"its context of {self.context_size} tokens"
        return f"{self.url}: {prompt} does not fit {size}. Send less, end the epoch, or serve with a larger context"


class StreamCut(ServerError):
    """The response ended before it was complete; nothing of it was logged."""

    why: str
    received: int
    """Number of events received."""
    _message = (
        "{url}: the response ended early (events received: {received}): {why}. "
        "Nothing was logged. Ask again to send the same bytes"
    )


class ServerTimeout(ServerError):
    """Nothing was received for longer than the time-out."""

    what: str
    seconds: float
    setting: str
    _message = "{url}: {what} for {seconds:.0f} s. If the machine is slow, set a larger {setting}="


class ServerNotStarted(ServerError):
    """The embedded server's process ended or hung before it accepted connections."""

    _message = "the embedded server did not start: {why}{output}"

    def __init__(self, why: str, log: str, then: str = "") -> None:
        super().__init__("")
        self.args = (why, log, then)
        self.why, self.log, self.then = why, log, then
        self.output = f"; its last output: {_short(log, 400)}" if log else ""


class EpochTooLarge(WorldError):
    """The start of a new epoch does not fit the server's context; nothing was sent, and no epoch was opened."""

    baseline_tokens: int
    carried_tokens: int
    room: int
    """Tokens available: the context size less the reserve."""
    _message = (
        "the request does not fit: about {baseline_tokens} tokens of baseline (system prompt, memory, tools) and "
        "{carried_tokens} tokens of messages, but only {room} tokens are available (the context less its reserve). "
        'Shorten the message or the tools, carry less over (loop.carry = None, or "summary"), or serve with a larger context'
    )


class ModelUnavailable(WorldError):
    """A model file is missing and cannot be downloaded."""

    model: str
    why: str
    then: str
    _message = "model {model}: {why}"


class LogError(WorldError):
    """A path to load is missing, or is not a log."""

    path: str
    why: str
    then: str = ""
    _message = "{path}: {why}"


def kind_of(value: object) -> str:
    """Return the type of a value with its article, for a message.

    Parameters
    ----------
    value : object
        Any value.

    Returns
    -------
    str
        For example ``'an int'``; ``'None'`` for None.

    Examples
    --------
    >>> [kind_of(value) for value in (5, "five", None, object())]
    ['an int', 'a str', 'None', 'an object']
    """
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"


def describe(error: BaseException, **facts: Any) -> str:
    """Describe an error of the operating system or a library in one line.

    Parameters
    ----------
    error : BaseException
        The error. If its text is empty, the name of its type is used.
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


__all__ = sorted(name for name, value in globals().items() if isinstance(value, type) and issubclass(value, LoopkitError))


def __dir__() -> list[str]:
    return list(__all__)
