"""The port between a loop and its tools: one call in, one outcome out, never an exception for what a tool or a model did wrong.

``ToolPort`` is the protocol, ``PythonPort`` the port for functions of this process: it asks whether the call is allowed, runs it
in time, and words every failure so that the model can act on it. Knows nothing of the log; results are capped and neutralised
by the loop. What ``allow`` did wrong, and Ctrl-C, pass through.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from loopkit.encoding import decode
from loopkit.errors import InvalidConfig
from loopkit.loop.limits import DENIED, seconds_fault
from loopkit.loop.tools.registry import Bound, Registry
from loopkit.loop.tools.results import as_text
from loopkit.loop.tools.schemas import Misfit

__all__ = ["Allow", "Denied", "Failed", "Ok", "Outcome", "PythonPort", "ToolPort"]

Allow: TypeAlias = Callable[[str, dict[str, Any]], bool | str]


@dataclass(frozen=True)
class Ok:
    """What the tool returned, as text."""

    content: str
    status: ClassVar[Literal["ok"]] = "ok"


@dataclass(frozen=True)
class Denied:
    """Why the call was not allowed, for the model."""

    content: str
    status: ClassVar[Literal["denied"]] = "denied"


@dataclass(frozen=True)
class Failed:
    """What went wrong, for the model."""

    content: str
    status: ClassVar[Literal["failed"]] = "failed"


Outcome: TypeAlias = Ok | Denied | Failed


class ToolPort(Protocol):
    """What a loop needs to have a tool run."""

    def call(self, name: str, arguments: str) -> Outcome:
        """Run a tool; ``arguments`` is the JSON text as the model wrote it."""


class PythonPort:
    """Runs the tools of a registry in this process.

    Parameters
    ----------
    registry : Registry
        The tools.
    allow : callable, optional
        Asked with the tool's name and arguments before every call; of a ``call_tool``, with those of the tool that it calls. True
        allows; False, or a string with the reason, denies. Without it every call is allowed.
    seconds : float, optional
        How long a tool may take; then its thread is left to end by itself. None for no limit: the tool runs in the caller's
        thread, and Ctrl-C stops it.

    Raises
    ------
    InvalidConfig
        When ``seconds`` is not a time; in a call, when ``allow`` returns anything else.

    Examples
    --------
    >>> def halve(n: int) -> float:
    ...     "Half of a number."
    ...     return n / 2
    >>> port = PythonPort(Registry([halve]), allow=lambda name, arguments: arguments.get("n") != 0 or "zero is taken")
    >>> port.call("halve", '{"n": 5}')
    Ok(content='2.5')
    >>> port.call("halve", '{"n": 0}')
    Denied(content='Denied: zero is taken')
    >>> port.call("halve", '{"n": "five"}').content
    'The arguments do not fit halve: n: Input should be a valid integer, unable to parse string as an integer'
    >>> port.call("have", "{}").content
    "There is no tool 'have'. The nearest names are: halve."
    """

    def __init__(self, registry: Registry, *, allow: Allow | None = None, seconds: float | None = None) -> None:
        if (why := seconds_fault(seconds)) is not None:
            raise InvalidConfig("seconds", why)
        self.registry, self.allow, self.seconds = registry, allow, seconds

    def call(self, name: str, arguments: str) -> Outcome:
        """Run a tool; see :class:`ToolPort`."""
        try:
            parsed = decode(arguments)
        except ValueError as error:
            return Failed(f"The arguments of this call are not JSON: {error}. Write them as one JSON object.")
        if not isinstance(parsed, dict):
            return Failed(f"The arguments of this call are not a JSON object but {arguments[:40]!a}. Write one JSON object.")
        try:
            bound = self.registry.bind(name, parsed)
        except Misfit as misfit:
            return Failed(str(misfit))
        except Exception as error:  # noqa: BLE001  a validator of the tool's own may raise anything: it is the model's to know
            return _failure(name, error)
        denied = self._denied(bound)
        return denied if denied is not None else self._run(bound)

    def _denied(self, bound: Bound) -> Denied | None:
        try:
            verdict = True if self.allow is None else self.allow(bound.name, bound.arguments)
        except Exception as error:
            error.add_note(f"raised by allow=, which was asked about {bound.name}; the tool was not run")
            raise
        if verdict is True:
            return None
        if verdict is False or isinstance(verdict, str):
            return Denied(f"Denied: {verdict}" if verdict else DENIED)
        why = f"it returned {verdict!r} for {bound.name}"  # type: ignore[unreachable]  # it is the owner's own code
        raise InvalidConfig("allow", why, "Return True to allow; False, or a str with the reason, to deny")

    def _run(self, bound: Bound) -> Outcome:
        def work() -> str:
            return as_text(asyncio.run(bound.run()) if bound.asynchronous else bound.run())

        # A coroutine needs a thread of its own even without a time-out: in a notebook this one's event loop runs already.
        apart = bound.asynchronous or self.seconds is not None
        try:
            text = _in_thread(work, f"tool {bound.name}", self.seconds) if apart else work()
        except (Exception, asyncio.CancelledError, SystemExit) as error:  # noqa: BLE001  whatever a tool raises is the model's to know
            return _failure(bound.name, error)
        if text is None:
            return Failed(f"{bound.name} gave no result within {self.seconds:g} s. It was left, and may still be running.")
        return Ok(text)


def _in_thread(work: Callable[[], str], name: str, seconds: float | None) -> str | None:
    """Run in a thread that ends with the process at the latest; None when it took too long."""
    done: queue.SimpleQueue[tuple[str, BaseException | None]] = queue.SimpleQueue()

    def target() -> None:
        try:
            done.put((work(), None))
        except BaseException as error:  # noqa: BLE001  raised again in the caller's thread
            done.put(("", error))

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(target,), name=name, daemon=True).start()
    try:
        text, error = done.get(timeout=seconds)
    except queue.Empty:
        return None
    if error is not None:
        raise error
    return text


def _failure(name: str, error: BaseException) -> Failed:
    # One line of Python's own: it names the type, and copes with an exception whose text cannot be had.
    return Failed(f"{name} failed: {''.join(traceback.format_exception_only(error)).strip()}")
