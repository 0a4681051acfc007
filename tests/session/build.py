"""Sessions made for tests: real records, real request hashes, fixed times."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import UNSET, Raw, UnsetType

from loopkit.contract.baseline import Baseline
from loopkit.contract.messages import FunctionSchema, ToolSchema
from loopkit.contract.records import (
    Assistant,
    CacheLoss,
    EpochEnd,
    LogRecord,
    ServerFacts,
    TagsFacts,
    ToolResult,
    Usage,
    UsageRecord,
    User,
)
from loopkit.contract.request import RequestEncoder
from loopkit.encoding import crc32, encode
from loopkit.ids import SessionId
from loopkit.session.session import Session

TIME = "2026-11-30T07:31:05.000000Z"
TOOL = ToolSchema(
    function=FunctionSchema(
        name="now_in",
        description="The time in a place.",
        parameters={"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    )
)
BASELINE = Baseline("Be brief.", (TOOL,))
OPTIONS: dict[str, Any] = {"model": "tiny", "temperature": 0.5, "seed": 7}
SERVER = ServerFacts(engine="llama.cpp", build="b7000", model="tiny", context_size=4096)
TAGS = TagsFacts(id="default-1")


def calls(*ids: str) -> Raw:
    return Raw(
        encode([{"id": id, "type": "function", "function": {"name": "now_in", "arguments": '{"place": "Lima"}'}} for id in ids])
    )


def group(
    session: Session,
    text: str | None,
    answer: str | None = "Yes.",
    *,
    ids: Sequence[str] = (),
    loss: int | None = None,
    reasoning: str | UnsetType = UNSET,
) -> list[LogRecord]:
    """One request with what it was asked and answered; its hash is that of the body that would have been sent."""
    user = None if text is None else User(time=TIME, content=text)
    encoder = RequestEncoder(session.baseline, session.options, session.start.slot)
    request = encoder.request(session.records, user)
    number = 1 + sum(isinstance(record, UsageRecord) for record in session.records)
    records: list[LogRecord] = [] if user is None else [user]
    records.append(Assistant(time=TIME, content=answer, reasoning_content=reasoning, tool_calls=calls(*ids) if ids else UNSET))
    records.append(
        UsageRecord(
            time=TIME,
            request=number,
            request_sha256=request.sha256,
            request_bytes=request.size,
            usage=Usage(prompt_tokens=100 + number, cached_tokens=90, completion_tokens=7, ttft_ms=12.5),
            expected_tokens=100,
            expected_exact=True,
            finish_reason="tool_calls" if ids else "stop",
            response_id=f"r{number}",
            attempts=1,
            elapsed_ms=40.0,
        )
    )
    if loss is not None:
        records.append(
            CacheLoss(
                time=TIME,
                request=number,
                expected_tokens=100,
                expected_exact=True,
                reusable_tokens=None,
                cached_tokens=100 - loss,
                lost_tokens=loss,
                cause="server",
                certainty="suspected",
                fixable_by="server",
                location=None,
                evidence={"n": 1, "of": [1.5, "é"]},
            )
        )
    return records


def result(call: int, id: str, content: str = "07:31") -> ToolResult:
    return ToolResult(time=TIME, call=call, tool_call_id=id, name="now_in", content=content, truncated=False, status="ok")


def end(reason: str = "asked") -> EpochEnd:
    assert reason in ("asked", "context_full")
    return EpochEnd(time=TIME, reason="asked", prompt_tokens=120, context_size=4096)


def create(home: Path, id: str = "lima", *, slot: int | None = None) -> Session:
    return Session.create(home, SessionId(id), BASELINE, slot=slot, options=OPTIONS, server=SERVER, tags=TAGS)


def filled(home: Path, id: str = "lima") -> Session:
    """Two epochs: text beyond ASCII, tool calls, a loss, a carried turn; open for writing."""
    session = create(home, id)
    session.extend(group(session, "Is it light in Lima?", None, ids=["a", "b"], reasoning="A tool knows.\n"))
    session.append(result(1, "a"))
    session.append(result(2, "b", "07:32\u2028\u0085\x0b é 😀"))
    session.extend(group(session, None, "  Yes, it is.\n", loss=10))
    session.extend(group(session, "And in Cusco?", ""))
    session.append(end())
    carried = [record for record in session.records[1:6] if not isinstance(record, UsageRecord)]
    session.next_epoch(Baseline("Be kind.", (TOOL,)), carried)
    session.extend(group(session, "And in Puno?", "No.", ids=["c"]))
    session.append(result(3, "c"))
    session.extend(group(session, None, "No, it is dark."))
    return session


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def digests(directory: Path) -> dict[str, str]:
    return {path.name: digest(path) for path in sorted(directory.iterdir())}


def chained(bodies: Sequence[bytes]) -> bytes:
    """Lines with right crcs, whatever the bodies hold (each without its closing brace)."""
    made, crc = [], 0
    for body in bodies:
        crc = crc32(body, crc)
        made.append(b'%b,"crc":"%08x"}\n' % (body, crc))
    return b"".join(made)


def bodies_of(log: bytes) -> list[bytes]:
    return [line[: line.rindex(b',"crc":"')] for line in log.split(b"\n")[:-1]]
