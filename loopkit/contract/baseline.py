"""`Baseline`, the fixed prefix of every request of an epoch, and the replay of a log as messages.

A baseline is a snapshot of system prompt, memory block (text appended to the system prompt) and tool schemas. It is written to
disk when an epoch begins and never changed after that, so all requests of the epoch begin with the same bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, assert_never

import msgspec

from loopkit.contract.messages import ChatMessage, ToolSchema
from loopkit.contract.neutralise import Tags, neutralise
from loopkit.contract.records import Assistant, CacheLoss, EpochEnd, LogRecord, SessionStart, ToolResult, UsageRecord, User
from loopkit.encoding import decode, encode
from loopkit.errors import BaselineError, EncodeError, describe
from loopkit.ids import Sha256Hash
from loopkit.reprs import Card, counted

if TYPE_CHECKING:
    from loopkit.config import Config

__all__ = ["Baseline", "CoreSchemas", "memory_block", "messages"]


class CoreSchemas(Protocol):
    """The part of a tool registry that a baseline needs."""

    def core_schemas(self) -> Sequence[ToolSchema]:
        """Return the tool schemas of the baseline, in registration order."""


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fixed prefix of every request of an epoch: system prompt and tool schemas. Baselines are compared by value.

    Parameters
    ----------
    system : str
        The system prompt, followed by the memory block if there is one.
    tools : tuple of ToolSchema
        The tool schemas, in registration order.

    Examples
    --------
    >>> baseline = Baseline("Be brief.", ())
    >>> baseline
    Baseline: system 9 characters, tools none
    >>> baseline.to_json()
    b'{"system":"Be brief.","tools":[]}'
    >>> Baseline.from_json(baseline.to_json()) == baseline
    True
    >>> Baseline.from_json('{"system": "Be brief.", "tolls": []}')
    Traceback (most recent call last):
        ...
    loopkit.errors.BaselineError: baseline: Object contains unknown field `tolls`
    """

    system: str
    tools: tuple[ToolSchema, ...]

    @classmethod
    def assemble(
        cls,
        config: Config,
        registry: CoreSchemas | None,
        memory: str | None = None,
        tags: Tags | None = None,
    ) -> Self:
        """Build a baseline from the present system prompt, memory block and tools.

        Parameters
        ----------
        config : Config
            Settings. They contain the system prompt, as text or as a file, and the home directory.
        registry : CoreSchemas or None
            The tools; None for no tools.
        memory : str, optional
            The memory block. None reads ``<home>/memory/core.md`` if that file exists; ``""`` means no block.
        tags : Tags, optional
            Control tags to neutralise in the memory block. The default is ``Tags.default()``. Tags in the system prompt stay.

        Returns
        -------
        Baseline
            The new baseline.

        Raises
        ------
        BaselineError
            If the system prompt or the memory block cannot be read or encoded. The message names the file.
        """
        system = config.system or ""
        if config.system_file is not None:
            system = _read_text(config.system_file, "system prompt")
        if memory is None:
            memory = memory_block(config.home)
        parts = [system.rstrip(), neutralise(memory.strip(), tags or Tags.default())]
        baseline = cls("\n\n".join(part for part in parts if part), tuple(registry.core_schemas()) if registry else ())
        baseline.to_json()
        return baseline

    def _card(self) -> Card:
        tools = ", ".join(tool.function.name for tool in self.tools) or "none"
        return Card("Baseline", [("system", counted(len(self.system), "character")), ("tools", tools)])

    def __repr__(self) -> str:
        return self._card().text()

    def _repr_html_(self) -> str:
        return self._card().html()

    def to_json(self) -> bytes:
        """Return the content of the baseline file: compact JSON with members in declared order, without a final newline.

        Raises
        ------
        BaselineError
            If a member cannot be encoded. The message names the member.
        """
        try:
            return encode(self, "baseline")
        except EncodeError as error:
            raise BaselineError(None, f"{error.member} cannot be encoded: {error.why}") from error

    def hash(self) -> Sha256Hash:
        """Return the SHA-256 of the bytes that :meth:`to_json` returns."""
        return Sha256Hash.of(self.to_json())

    @classmethod
    def from_json(cls, text: bytes | str, path: str | None = None) -> Self:
        """Decode a baseline. An unknown member or a wrong type is an error.

        Parameters
        ----------
        text : bytes or str
            Content of a baseline file, as :meth:`to_json` returns it.
        path : str, optional
            Path of the file, for error messages.

        Returns
        -------
        Baseline
            The decoded baseline.

        Raises
        ------
        BaselineError
            If the text is not UTF-8 or JSON, or has an unknown member or a wrong type.
        """
        try:
            if isinstance(text, bytes):
                text = text.decode("utf-8")
            return decode(text, cls)
        except UnicodeDecodeError as error:
            raise BaselineError(path, f"not UTF-8: {error.reason} at byte {error.start}") from error
        except ValueError as error:
            raise BaselineError(path, str(error)) from error

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a baseline file.

        Parameters
        ----------
        path : Path or str
            The file, such as ``0.baseline.json``.

        Returns
        -------
        Baseline
            The decoded baseline.

        Raises
        ------
        BaselineError
            If the file cannot be read or decoded. The message names the file.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise BaselineError(str(path), f"cannot be read: {describe(error)}") from error
        return cls.from_json(data, str(path))


def memory_block(home: Path) -> str:
    """Return the content of ``<home>/memory/core.md``; empty if the file does not exist.

    Raises
    ------
    BaselineError
        If the file cannot be read.
    """
    path = home / "memory" / "core.md"
    with contextlib.suppress(PermissionError):  # reading the file raises it again
        if not path.is_file():
            return ""
    return _read_text(path, "memory block")


def _read_text(path: Path, what: str) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise BaselineError(str(path), f"the {what} cannot be read: {describe(error)}") from error
    except UnicodeDecodeError as error:
        why = f"the {what} is not UTF-8: {error.reason} at byte {error.start}"
        raise BaselineError(str(path), why, "Save it as UTF-8") from error


def messages(baseline: Baseline, records: Iterable[LogRecord]) -> list[ChatMessage]:
    """Return the messages of an epoch: the system message, then one for each user, assistant and tool result record.

    Parameters
    ----------
    baseline : Baseline
        Baseline of the epoch.
    records : iterable of LogRecord
        Records of the epoch, in order.

    Returns
    -------
    list of ChatMessage
        The messages. Adding records only appends messages; the earlier ones stay the same.

    Examples
    --------
    >>> from loopkit.contract.records import User
    >>> log = [User(time="2026-11-30T07:31:05.000000Z", content="Hi.")]
    >>> [message.role for message in messages(Baseline("Be brief.", ()), log)]
    ['system', 'user']
    """
    replay = [system_message(baseline)]
    for record in records:
        message = message_of(record)
        if message is not None:
            replay.append(message)
    return replay


def system_message(baseline: Baseline) -> ChatMessage:
    """Return the system message of an epoch."""
    return ChatMessage(role="system", content=baseline.system)


def message_of(record: LogRecord) -> ChatMessage | None:
    """Return the chat message of a record; None if the record is not sent to the model.

    The type checker reports a kind of record that is missing here.
    """
    match record:
        case SessionStart():
            return None
        case User():
            return ChatMessage(role="user", content=record.content)
        case Assistant():
            return ChatMessage(
                role="assistant",
                content=record.content,
                reasoning_content=record.reasoning_content,
                tool_calls=record.tool_calls,
                extra=record.extra,
            )
        case ToolResult():
            return ChatMessage(role="tool", tool_call_id=record.tool_call_id, content=record.content)
        case UsageRecord():
            return None
        case CacheLoss():
            return None
        case EpochEnd():
            return None
        case _:
            assert_never(record)
