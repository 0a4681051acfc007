"""Texts of messages in other tools' logs, and the records made of them. All adapters make their records here."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from loopkit.contract.provenance import Provenance, Record, Role
from loopkit.encoding import encode
from loopkit.logs.foreign.entries import LogTime, to_rfc3339

__all__ = ["call_text", "content_text", "message_record"]


def message_record(role: Role, text: str, *, session: str, time: LogTime, offset: int) -> Record:
    """Return the record of a message. Its provenance is the session and the byte offset of its line.

    Examples
    --------
    >>> message_record(Role.User, "Hi", session="a", time="2026-11-30T09:00:00+02:00", offset=7).provenance
    Provenance(source='a', offset=7)
    """
    return Record(role, text, to_rfc3339(time), Provenance(session, offset))


def content_text(content: Any) -> str:
    r"""Return the text of a message's content: a string, or the texts of its blocks joined by line feeds.

    Examples
    --------
    >>> content_text("Hi"), content_text([{"type": "text", "text": "a"}, {"type": "image"}, {"text": "b"}]), content_text(None)
    ('Hi', 'a\nb', '')
    """
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    texts = (block.get("text") if isinstance(block, dict) else getattr(block, "text", None) for block in blocks)
    return "\n".join(text for text in texts if isinstance(text, str))


def call_text(name: object, arguments: Any) -> str:
    """Return a tool call as text.

    Examples
    --------
    >>> call_text("ls", '{"path":"."}'), call_text("ls", {"path": "."}), call_text("ls", Raw(b'{"path": "."}'))
    ('ls({"path":"."})', 'ls({"path":"."})', 'ls({"path": "."})')
    """
    if isinstance(arguments, Raw):
        arguments = bytes(arguments).decode()
    return f"{name}({arguments if isinstance(arguments, str) else encode(arguments).decode()})"
