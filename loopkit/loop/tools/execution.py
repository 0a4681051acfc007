"""Execution of tool calls: `ToolPort`, the protocol, and `PythonPort`, which runs functions in this process.

Errors of a tool or of the model become results that the model can act on. Errors of ``allow`` and Ctrl-C are raised.
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
from loopkit.loop.tools.schemas import InvalidCall

__all__ = ["Allow", "Denied", "Failed", "Ok", "Outcome", "PythonPort", "ToolPort"]

Allow: TypeAlias = Callable[[str, dict[str, Any]], bool | str]


@dataclass(frozen=True)
class Ok:
    """Result of a tool call that has run. ``content`` is the tool's result as text."""

    content: str
    status: ClassVar[Literal["ok"]] = "ok"


@dataclass(frozen=True)
class Denied:
    """Result of a tool call that was not allowed. ``content`` is the reason, for the model."""

    content: str
    status: ClassVar[Literal["denied"]] = "denied"


@dataclass(frozen=True)
class Failed:
    """Result of a tool call that failed. ``content`` describes the error, for the model."""

    content: str
    status: ClassVar[Literal["failed"]] = "failed"


Outcome: TypeAlias = Ok | Denied | Failed


class ToolPort(Protocol):
    """Protocol of an object that runs tool calls."""

    def call(self, name: str, arguments: str) -> Outcome:
        """Run a tool.

        Parameters
        ----------
        name : str
            Name of the tool.
        arguments : str
            Arguments as the model wrote them: JSON text, which may be invalid.

        Returns
        -------
        Ok, Denied or Failed
            The result for the model.
        """


class PythonPort:
    """A `ToolPort` that runs the tools of a registry in this process.

    Parameters
    ----------
    registry : Registry
        The tools.
    allow : callable, optional
        Called before each tool call with the tool's name and arguments. For ``call_tool``, these are the inner tool's.
        It returns True to allow the call, and False or a str with the reason to deny it. By default every call is allowed.
    seconds : float, optional
        Maximum run time of a call in seconds. After that time, the model gets a failure, but the tool keeps running in its
        thread. By default there is no limit: the tool runs in the caller's thread, and Ctrl-C stops it.

    Raises
    ------
    InvalidConfig
        If ``seconds`` is not a positive number. Also raised by :meth:`call` if ``allow`` returns neither a bool nor a str.

    Examples
    --------
    >>> def halve(n: int) -> float:
    ...     "Half of a number."
    ...     return n / 2
    >>> port = PythonPort(Registry([halve]), allow=lambda name, arguments: arguments.get("n") != 0 or "n is 0")
    >>> port.call("halve", '{"n": 5}')
    Ok(content='2.5')
    >>> port.call("halve", '{"n": 0}')
    Denied(content='Denied: n is 0')
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
        """Run a tool.

        Parameters
        ----------
        name : str
            Name of the tool.
        arguments : str
            Arguments as the model wrote them: JSON text, which may be invalid.

        Returns
        -------
        Ok, Denied or Failed
            The result for the model.

        Raises
        ------
        InvalidConfig
            If ``allow`` returns something other than a bool or a str. Errors that ``allow`` raises are passed on.
        """
        try:
            parsed = decode(arguments)
        except ValueError as error:
            return Failed(f"The arguments of this call are not JSON: {error}. Write them as one JSON object.")
        if not isinstance(parsed, dict):
            return Failed(f"The arguments of this call are not a JSON object but {arguments[:40]!a}. Write one JSON object.")
        try:
            bound = self.registry.bind(name, parsed)
        except InvalidCall as error:
            return Failed(str(error))
        except Exception as error:  # noqa: BLE001  a validator of the tool may raise anything; the model gets the error
            return _failure(name, error)
        denied = self._denied(bound)
        return denied if denied is not None else self._run(bound)

    def _denied(self, bound: Bound) -> Denied | None:
        try:
            verdict = True if self.allow is None else self.allow(bound.name, bound.arguments)
        except Exception as error:
            error.add_note(f"Raised by allow= for the tool {bound.name!r}, which was not run.")
            raise
        if verdict is True:
            return None
        if verdict is False or isinstance(verdict, str):
            return Denied(f"Denied: {verdict}" if verdict else DENIED)
        why = f"it returned {verdict!r} for the tool {bound.name}"  # type: ignore[unreachable]  # callers without a type checker
        raise InvalidConfig("allow", why, "Return True to allow the call, and False or a str with the reason to deny it")

    def _run(self, bound: Bound) -> Outcome:
        def work() -> str:
            return as_text(asyncio.run(bound.run()) if bound.is_async else bound.run())

        # A coroutine needs a separate thread even without a time limit, because a notebook's event loop runs in this one.
        in_thread = bound.is_async or self.seconds is not None
        try:
            text = _in_thread(work, f"tool {bound.name}", self.seconds) if in_thread else work()
        except (Exception, asyncio.CancelledError, SystemExit) as error:  # noqa: BLE001  the model gets every error of a tool
            return _failure(bound.name, error)
        if text is None:
            return Failed(f"{bound.name} gave no result within {self.seconds:g} s. It was left, and may still be running.")
        return Ok(text)


def _in_thread(work: Callable[[], str], name: str, seconds: float | None) -> str | None:
    """Call ``work`` in a daemon thread and return its text; None if it takes longer than ``seconds``."""
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
    # Python's own line names the type, and works for exceptions whose __str__ fails.
    return Failed(f"{name} failed: {''.join(traceback.format_exception_only(error)).strip()}")
