"""Recordings: ``<home>/recordings/<id>.jsonl``, what `loopkit.record` kept of an agent's requests; FORMAT.md has a line.

The lines are ours, so their ends and ``crc`` are checked as a session's are. Each holds the very body that was sent: which
conversation it goes on with is found by that, and where a cache was lost, the byte that differs. A conversation is called
``<id>.1``, ``<id>.2``, …; one that parts from another has it as its parent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from loopkit.encoding import decode_lenient, encode, sha256
from loopkit.errors import TornLog
from loopkit.logs.conversations import Conversations
from loopkit.logs.entries import Call, Entry, Said
from loopkit.logs.source import Line, Source
from loopkit.provenance import Provenance, Record, Role
from loopkit.recorded import RecordedRequest, decode_recorded
from loopkit.session.journal import body_of, checked_blocks
from loopkit.session.live import settled

__all__ = ["NAME", "entries", "recognises"]

NAME = "recorded"

FEW = 8
"So many requests before one are named as those that may have taken its slot."
HEAD = b'{"kind":"recorded",'
ROLES = {
    "user": Role.User,
    **dict.fromkeys(("system", "developer"), Role.System),
    **dict.fromkeys(("tool", "function", "function_call_output"), Role.ToolResult),
}


def recognises(head: bytes) -> bool:
    """Whether a file that begins so is a recording.

    Examples
    --------
    >>> recognises(b'{"kind":"recorded","time":"2026-11-30T07:31:05.000000Z"')
    True
    """
    return head.startswith(HEAD)


def entries(source: Source, *, texts: bool) -> Iterator[Entry]:
    """What a recording says; requests without a whole answer are counted and left out."""
    conversations = Conversations()
    answered: list[tuple[str, int, str]] = []
    "Session and number of each request, and when it was sent."
    counts: Counter[str] = Counter()
    for line, record in _records(source):
        if not record.answered:
            source.left_out("requests without a whole answer")
            continue
        body = record.body.encode("utf-8")
        placed = conversations.place(body)
        session = f"{source.path.stem}.{placed.conversation + 1}"
        number = len(answered)
        before = None if placed.follows is None else str(placed.follows)
        since = answered[-FEW:] if placed.follows is None else answered[max(placed.follows + 1, number - FEW) :]
        counts[session] += 1
        answered.append((session, counts[session], record.sent))
        for index, message in enumerate(placed.new):
            link = {"session": session, "id": f"{number}.{index}", "parent": before, "time": record.sent}
            yield _said(message, link, line.offset if texts else None)
            before = f"{number}.{index}"
        yield Call(
            session=session,
            id=str(number),
            parent=before,
            time=record.time,
            usage=record.usage,
            key=f"{session} {number}",
            response=record.response_id,
            model=record.model,
            engine=record.engine,
            finish=record.finish_reason,
            sent=record.sent,
            request_bytes=len(body),
            request_sha256=sha256(body),
            others=tuple((name, request) for name, request, sent in since if name != session and sent < record.sent),
            body=partial(_body, source.path, line.offset, len(line.data)),
        )


def _records(source: Source) -> Iterator[tuple[Line, RecordedRequest]]:
    """The sound lines before the first fault, as in a log of ours."""
    path = source.path
    try:  # first to the end, which may still be written
        sound = settled(path.parent, lambda: sum(len(block.lines) for block in checked_blocks(path)))
    except TornLog as torn:
        source.fault(Line(b"", torn.line, torn.offset), torn.why, at_end=torn.at_end)
        sound = torn.line - 1
    for block in checked_blocks(path) if sound else ():
        offset = block.offset
        for number, data in enumerate(block.lines, block.line):
            line = Line(data, number, offset)
            try:
                yield line, decode_recorded(body_of(data) + b"}")
            except ValueError as error:
                source.fault(line, f"not a record: {error}")
                return
            if number == sound:
                return
            offset += len(data)


def _body(path: Path, offset: int, size: int) -> bytes:
    """The body that was sent, out of its line."""
    with path.open("rb") as file:
        file.seek(offset)
        return decode_recorded(body_of(file.read(size)) + b"}").body.encode("utf-8")


def _said(message: bytes, link: dict[str, Any], offset: int | None) -> Said:
    """A message of a body; with its text where the offset of its line is given."""
    try:
        value: Any = decode_lenient(message)
    except ValueError:
        value = None
    value = value if isinstance(value, dict) else {}
    role = ROLES.get(str(value.get("role") or value.get("type")), Role.Assistant)
    content = value.get("content", value.get("output"))
    blocks = _dicts(content)
    results = sum(block.get("type") == "tool_result" for block in blocks) or int(role is Role.ToolResult)
    role = Role.ToolResult if results else role
    said = None
    if offset is not None:
        texts = [content] if isinstance(content, str) else [_text(block) for block in blocks]
        made = [_call(each.get("function", each)) for each in (value, *blocks, *_dicts(value.get("tool_calls")))]
        said = Record(role, "\n".join(filter(None, texts + made)), link["time"], Provenance(link["session"], offset))
    tool = value.get("name") if results and isinstance(value.get("name"), str) else None
    return Said(**link, role=role, asks=role is Role.User, results=results, tool=tool, record=said)


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(block: dict[str, Any]) -> str:
    return next((block[name] for name in ("text", "thinking", "content") if isinstance(block.get(name), str)), "")


def _call(made: Any) -> str:
    """A call, as it is written; nothing where it is none."""
    given = None if not isinstance(made, dict) else made.get("arguments", made.get("input"))
    return "" if given is None else f"{made.get('name')}({given if isinstance(given, str) else encode(given).decode()})"
