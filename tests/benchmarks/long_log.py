"""A session of many messages, made in one write: what the rows about opening and proving a log measure on."""

from __future__ import annotations

import random
from pathlib import Path

from msgspec import UNSET, Raw

from loopkit.contract.baseline import Baseline
from loopkit.contract.records import (
    Assistant,
    LogRecord,
    ServerFacts,
    SessionStart,
    TagsFacts,
    ToolResult,
    Usage,
    UsageRecord,
    User,
)
from loopkit.contract.request import RequestEncoder
from loopkit.encoding import encode
from loopkit.ids import SessionId
from loopkit.session.session import Session
from loopkit.session.store import Epoch, write_session

TIME = "2026-11-30T07:{:02d}:{:02d}.{:06d}Z"
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "lazy",
    "dog",
    '"quoted"',
    "and",
    "then",
    "(runs)",
    "away\n",
    "into_forest",
    "where",
    "=",
    "trees[0]",
    "are",
    "tall;",
    "return",
    "None",
    "#",
    "so",
    "it",
    "is,",
    "don't",
    "ask:",
    "3.14",
    "https://example.org/page?id=7\n\n",
]
OPTIONS = {"model": "tiny", "temperature": 0.2, "seed": 7}


def long_session(home: Path, messages: int) -> Session:
    """Write and read a session of that many messages, about 450 bytes each: half of the answers call a tool.

    One text in ten holds characters beyond ASCII. With 10,000 messages that is 4.5 MB of messages.
    """
    chance = random.Random(7)
    baseline = Baseline("Be brief.", ())
    start = SessionStart(
        time=TIME.format(0, 0, 0),
        session="long",
        epoch=0,
        slot=0,
        baseline_sha256=baseline.hash(),
        options=OPTIONS,
        server=ServerFacts(engine="llama.cpp", build="b7000", model="tiny", context_size=1 << 22),
        tags=TagsFacts(id="default-1"),
    )
    records: list[LogRecord] = [start]
    encoder = RequestEncoder(baseline, start.options, start.slot)
    made = requests = calls = 0

    def time() -> str:
        return TIME.format(requests // 60 % 60, requests % 60, chance.randrange(1_000_000))

    def text() -> str:
        words = [chance.choice(WORDS) for _ in range(chance.randrange(20, 120))]
        return " ".join(words) + (" naïve café, 日本語" if chance.random() < 0.1 else "")

    asking = True
    while made < messages:
        user = User(time=time(), content=text()) if asking else None
        request = encoder.request(records, user)
        encoder.sent(request)
        requests += 1
        if user is not None:
            records.append(user)
            made += 1
        asking = chance.random() < 0.5
        call = {"id": f"call_{requests}", "type": "function", "function": {"name": "read", "arguments": '{"path": "a.py"}'}}
        tool_calls = UNSET if asking else Raw(encode([call]))
        records.append(Assistant(time=time(), content=text(), tool_calls=tool_calls))
        numbers = Usage(prompt_tokens=100 * requests, cached_tokens=90 * requests, completion_tokens=120, ttft_ms=31.25)
        records.append(
            UsageRecord(
                time=time(),
                request=requests,
                request_sha256=request.sha256,
                request_bytes=request.size,
                usage=numbers,
                expected_tokens=90 * requests,
                expected_exact=True,
                finish_reason="stop" if asking else "tool_calls",
                response_id=f"chatcmpl-{requests}",
                attempts=1,
                elapsed_ms=1234.5,
            )
        )
        made += 1
        if not asking:
            calls += 1
            result = ToolResult(
                time=time(), call=calls, tool_call_id=str(call["id"]), name="read", content=text(), truncated=False, status="ok"
            )
            records.append(result)
            made += 1
    id = SessionId("long")
    write_session(Session.dir_for(home, id), [Epoch(baseline, records)])
    return Session.read(home, id)
