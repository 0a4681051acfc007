"""Make the golden session of format version 1.

``python data/golden/make_golden.py data/golden`` was run once, when the format was fixed.
The session is committed and never made again: that it opens, verifies and replays to the request hashes that stand as literals
in ``tests/session/test_golden.py`` is the promise to whoever has a log. A new format version gets a new golden session beside it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec import UNSET, Raw

from loopkit.contract.baseline import Baseline
from loopkit.contract.messages import Extra, FunctionSchema, ToolSchema
from loopkit.contract.records import (
    Assistant,
    CacheLoss,
    Carried,
    EpochEnd,
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
from loopkit.ids import SessionId
from loopkit.session.store import Epoch, write_session

ID = SessionId("format-1")
TOOL = ToolSchema(
    function=FunctionSchema(
        name="now_in",
        description="The time in a place.",
        parameters={"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    )
)


def time(second: int) -> str:
    """A fixed moment."""
    return f"2026-11-30T07:31:{second:02d}.000000Z"


def start(epoch: int, baseline: Baseline, carried: int = 0) -> SessionStart:
    """The first record of an epoch."""
    return SessionStart(
        time=time(epoch),
        session=ID,
        epoch=epoch,
        slot=0,
        baseline_sha256=baseline.hash(),
        options={"model": "tiny", "temperature": 0.5, "seed": 7, "chat_template_kwargs": {"enable_thinking": True}},
        server=ServerFacts(engine="llama.cpp", build="b7000", model="tiny", context_size=4096),
        tags=TagsFacts(id="default-1"),
        carried=Carried(kind="turn", from_epoch=epoch - 1, records=carried) if carried else UNSET,
    )


def usage(second: int, request: int, encoder: RequestEncoder, records: list[LogRecord], **more: object) -> UsageRecord:
    """What was sent for the assistant record that stands last, hashed."""
    asked = records[-2] if isinstance(records[-2], User) else None
    sent = encoder.request(records[: -2 if asked else -1], asked)
    encoder.sent(sent)
    numbers = Usage(prompt_tokens=100 + request, cached_tokens=None if request == 1 else 90, completion_tokens=7, ttft_ms=12.5)
    facts = {
        "time": time(second),
        "request": request,
        "request_sha256": sent.sha256,
        "request_bytes": sent.size,
        "usage": numbers,
        "finish_reason": "stop",
        "response_id": None,
        "attempts": 1,
        "elapsed_ms": 40.0,
    }
    return UsageRecord(**(facts | more))  # type: ignore[arg-type]


def first(baseline: Baseline) -> list[LogRecord]:
    """Epoch 0: every kind of record, and what an encoder could spoil."""
    opening = start(0, baseline)
    records: list[LogRecord] = [opening]
    encoder = RequestEncoder(baseline, opening.options, opening.slot)
    records.append(User(time=time(2), content="What is the time in Lima and in Cusco?\u2028 \ufffd", replaced=1))
    calls = (
        rb'[{"id":"a","type":"function","function":{"name":"now_in","arguments":"{ \"place\" : \"Lima\", \"n\": 1.10 }"}}, '
        rb'{"id":"b","type":"function","function":{"name":"now_in","arguments":"{\"place\":\"Cusco\",\"place\":\"Cusco\"}"}}]'
    )
    records.append(
        Assistant(
            time=time(3),
            content=None,
            reasoning_content="Two calls.\n",
            tool_calls=Raw(calls),
            extra=Extra(reasoning_name="reasoning", members={"signature": Raw(b'{"b": 1.10, "a": "\\u00e9"}')}),
        )
    )
    records.append(usage(3, 1, encoder, records, finish_reason="tool_calls", response_id="r1"))
    records.append(
        ToolResult(time=time(4), call=1, tool_call_id="a", name="now_in", content="07:31", truncated=False, status="ok")
    )
    records.append(
        ToolResult(
            time=time(5),
            call=2,
            tool_call_id="b",
            name="now_in",
            content="not allowed: &lt;b&gt;",
            truncated=True,
            status="denied",
            neutralised=1,
        )
    )
    records.append(Assistant(time=time(6), content="  It is 07:31 in Lima. \n"))
    records.append(usage(6, 2, encoder, records, reported=Raw(b'{"prompt_tokens": 1.0e2}'), shortfall="block"))
    records.append(
        CacheLoss(
            time=time(6),
            request=2,
            expected_tokens=108,
            expected_exact=False,
            reusable_tokens=None,
            cached_tokens=90,
            lost_tokens=18,
            cause="server",
            certainty="suspected",
            fixable_by="server",
            where="messages[2]",
            evidence={"slots": [0, 1.5], "note": "é"},
        )
    )
    records.append(User(time=time(7), content=""))
    records.append(Assistant(time=time(8), content=""))
    records.append(usage(8, 3, encoder, records, expected_tokens=None, expected_exact=False))
    records.append(EpochEnd(time=time(9), reason="context_full", prompt_tokens=103, context_size=4096))
    return records


def second(baseline: Baseline, before: list[LogRecord]) -> list[LogRecord]:
    """Epoch 1: a carried turn and one request."""
    carried = before[-4:-2]
    records: list[LogRecord] = [start(1, baseline, len(carried)), *carried]
    opening = records[0]
    assert isinstance(opening, SessionStart)
    encoder = RequestEncoder(baseline, opening.options, opening.slot)
    records.append(User(time=time(10), content="Once more?"))
    records.append(Assistant(time=time(11)))
    records.append(usage(11, 1, encoder, records, finish_reason=None))
    return records


def main() -> None:
    """Write the session below the directory that is the first argument."""
    baselines = Baseline("Be brief.", (TOOL,)), Baseline("Be brief.\n\nWhat is known: é 😀", (TOOL,))
    before = first(baselines[0])
    epochs = [Epoch(baselines[0], before), Epoch(baselines[1], second(baselines[1], before))]
    write_session(Path(sys.argv[1]) / "sessions" / ID, epochs)


if __name__ == "__main__":
    main()
