"""Every error that loopkit raises, as a tree.

Each message says what happened, where (file and line, URL or member), and what to do next. All errors can be pickled, so they can
be passed between processes.

::

    LoopkitError
    ├── ProgrammingError        the call is wrong: change the code
    │   ├── InvalidId           also a ValueError
    │   ├── InvalidConfig       also a ValueError
    │   ├── ContractBroken      the next request would not begin with the last one
    │   ├── LoopBusy            a second turn was started while one is running
    │   └── NothingToGoOn       go_on was called after a finished turn
    └── WorldError              the call is correct, but a file, the disk or a server has a fault
        ├── SessionError
        │   ├── SessionNotFound
        │   ├── SessionExists
        │   ├── SessionLocked
        │   ├── SessionIOError
        │   ├── SessionClosed   closed, or unusable after a failed write
        │   ├── PendingCalls    tool calls without a result, because the process was killed
        │   ├── EncodeError     a value that JSON or the record cannot represent
        │   │   └── OutOfOrder  a record that must not follow the last one
        │   ├── TornLog         a log has a fault
        │   └── BaselineError   the file with the system prompt and tools of an epoch has a fault
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
    """Return ``value`` quoted, in at most about ``limit`` characters. The middle of a long value is left out."""
    text = ascii(value)
    return text if len(text) <= limit else f"{text[: limit // 2]}…{text[-limit // 2 :]}"


@dataclass_transform(eq_default=False)
class LoopkitError(Exception):
    """Base class of all errors of loopkit.

    A subclass declares its facts as fields, and ``_message`` as a template that contains them. A field ``then`` says what to do
    next. If it is not empty, it is appended to the message. ``args`` are the positional fields, so that an error can be pickled.
    """

    _message = ""
    _positional: tuple[str, ...] = ()
    _keyword_only: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        names = tuple(cls.__annotations__)  # the fields that this class adds to its base class
        split = names.index("_") if "_" in names else len(names)  # `_: KW_ONLY`
        cls._positional += names[:split]
        cls._keyword_only += names[split + 1 :]

    if not TYPE_CHECKING:  # type checkers derive the signature from the fields

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
    """Base class of errors that the calling code can avoid: the call is wrong, so change the code."""


class InvalidId(ProgrammingError, ValueError):
    """A value is not a valid identifier, hash or timestamp. ``rule`` says what the value must be."""

    kind: str
    value: object
    rule: str

    def _text(self) -> str:
        return f"{_short(self.value)} is not a {self.kind}: it must be {self.rule}"


class InvalidConfig(ProgrammingError, ValueError):
    """An argument or a setting has a value that cannot be used. ``member`` names it."""

    member: str
    why: str
    then: str = ""
    _message = "{member}: {why}"


class ContractBroken(ProgrammingError):
    """The next request would not begin with the bytes of the last request sent. Nothing was sent."""

    why: str
    _: KW_ONLY
    offset: int | None = None
    """Byte offset in the body at which the two requests first differ."""
    member: str | None = None
    """Member of the body at this offset, such as ``messages[3].content``."""
    _message = (
        "the next request would not extend the last request sent: {why}. Nothing was sent. A record, the baseline or the encoder "
        "changed after that request. The log on disk is unchanged: open the session again"
    )


class LoopBusy(ProgrammingError):
    """A turn was started while another turn of the same loop is running."""

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
    """Base class of errors outside the program: the call is correct, but a file, the disk or a server has a fault."""


class SessionError(WorldError):
    """Base class of errors of a session: its files have a fault, or it cannot be used in this way."""


class SessionNotFound(SessionError):
    """The session does not exist."""

    path: str
    why: str = "does not exist"
    then: str = "Check the home and the session id, or create the session"
    _message = "no session found: {path} {why}"


class SessionExists(SessionError):
    """A session with this id already exists."""

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
    """A value has no form in JSON or does not fit the record's type. Nothing was written."""

    member: str
    why: str
    _message = "{member} cannot be encoded: {why}. Nothing was written"


class OutOfOrder(EncodeError):
    """A record must not follow the last record of the log. Nothing was written."""

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
    """A log has a fault, such as a changed byte, a lost line or an unfinished end. The file was not changed."""

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
    """True if the log ends in the middle of a line or a group of records. A process may still be writing it."""

    def __str__(self) -> str:
        text = f"{self.path}:{self.line}: {self.why} (byte {self.offset} of the file). The file was not changed"
        if self.then:
            return f"{text}. {self.then}"
        nothing_before = self.line == 1 and PurePath(self.path).name == "0.jsonl"
        if self.session_dir is not None and not nothing_before:
            text += f". To copy the sound records into a new session: loopkit salvage {shlex.quote(self.session_dir)} --to NEW_ID"
        return text + '. To load everything that is sound: errors="report", or --errors report'


class BaselineError(SessionError):
    """The baseline of an epoch (its system prompt and tools) cannot be read, decoded or encoded."""

    path: str | None
    why: str
    then: str = ""

    def _text(self) -> str:
        return f"{self.path or 'baseline'}: {self.why}"


class BaselineMismatch(BaselineError):
    """The SHA-256 of a baseline file differs from the one in the log: the file was changed or replaced."""

    def __init__(self, path: str, expected: str, found: str) -> None:
        super().__init__(
            path,
            f"its SHA-256 is {found}, but the log was written with a baseline of SHA-256 {expected}",
            "The file changed after the epoch began. Restore the original file, or start a new session",
        )
        self.args = (path, expected, found)
        self.expected, self.found = expected, found


class ServerError(WorldError):
    """Base class of errors of a server. ``url`` is its address, without an API key."""

    url: str


class ServerUnreachable(ServerError):
    """The server cannot be reached, or the connection was lost before the response began."""

    why: str
    seconds: float
    attempts: int = 1
    """Number of attempts to send the request; 0 if nothing was sent."""

    def _text(self) -> str:
        if not self.attempts:
            return f"{self.url}: {self.why}"
        tries = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        return (
            f"{self.url}: no response after {self.seconds:.1f} s and {tries}: {self.why}. "
            "Check that the server is running at this address"
        )


class ServerRefused(ServerError):
    """The server responded with an error: an HTTP status and a message."""

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
    """The response ended before it was complete. Nothing was logged, so the same request can be sent again."""

    why: str
    received: int
    """Number of stream events that had arrived."""
    _message = (
        "{url}: the response ended early (events received: {received}): {why}. "
        "Nothing was logged. Ask again to send the same bytes"
    )


class ServerTimeout(ServerError):
    """The server sent nothing for longer than the time-out. ``setting`` is the argument that sets the time-out."""

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
    """The first request of an epoch does not fit the server's context. Nothing was sent, and no epoch was opened."""

    baseline_tokens: int
    carried_tokens: int
    room: int
    """Available tokens: the context size less the tokens that ``Limits.reserve`` keeps free."""
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
    """A path that should be loaded does not exist, or is not a log."""

    path: str
    why: str
    then: str = ""
    _message = "{path}: {why}"


def kind_of(value: object) -> str:
    """Return the name of a value's type with its article, for an error message.

    Parameters
    ----------
    value : object
        Any value.

    Returns
    -------
    str
        Article and type name, such as ``'an int'``; for None, ``'None'``.

    Examples
    --------
    >>> [kind_of(value) for value in (5, "five", None, object())]
    ['an int', 'a str', 'None', 'an object']
    """
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"


def describe(error: BaseException, **facts: Any) -> str:
    """Return a description of an error of the operating system or a library, in one line.

    Parameters
    ----------
    error : BaseException
        The error. If its text is empty, the name of its type is used.
    **facts
        Names and values to append, as ``, name value``.

    Returns
    -------
    str
        The description, such as ``'No space left on device'``.

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
