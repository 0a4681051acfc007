"""Logs for tests, written with the real encoders, line by line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from msgspec import Raw

from loopkit.contract.records import (
    Assistant,
    CacheLoss,
    Carried,
    EpochEnd,
    Forked,
    LogRecord,
    ReplayRecord,
    ServerFacts,
    SessionStart,
    TagsFacts,
    ToolResult,
    Usage,
    UsageRecord,
    User,
    encode_record,
)
from loopkit.encoding import sha256
from loopkit.session.journal import close_line

BASELINE = b'{"system":"Be brief.","tools":[]}'


def stamp(second: float) -> str:
    """A moment of the tests' one day."""
    whole, micro = divmod(round(second * 1_000_000), 1_000_000)
    return f"2026-11-30T{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}.{micro:06}Z"


def closed(bodies: Iterable[bytes]) -> list[bytes]:
    """Records without their closing braces, as a log's lines."""
    crc, made = 0, []
    for body in bodies:
        line, crc = close_line(body, crc)
        made.append(line)
    return made


def write(path: Path, records: Iterable[LogRecord | ReplayRecord]) -> Path:
    """Write a log as its writer would."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(closed(encode_record(record)[:-1] for record in records)))
    return path


def write_session(home: Path, session: str, *epochs: Iterable[LogRecord]) -> Path:
    """Write a session's directory."""
    directory = home / "sessions" / session
    for number, records in enumerate(epochs):
        write(directory / f"{number}.jsonl", records)
        (directory / f"{number}.baseline.json").write_bytes(BASELINE)
    return directory


def start(
    session: str, epoch: int = 0, *, at: float = 0, model: str | None = "tiny", carried: int = 0, forked: str | None = None
) -> SessionStart:
    more: dict[str, Any] = {}
    if carried:
        more["carried"] = Carried(kind="turn", from_epoch=max(epoch - 1, 0), records=carried)
    if forked is not None:
        more["forked"] = Forked(session=forked, epoch=0, line=3)
    return SessionStart(
        time=stamp(at),
        session=session,
        epoch=epoch,
        slot=0,
        baseline_sha256=sha256(BASELINE),
        options={"temperature": 0},
        server=ServerFacts(engine="llama.cpp", model=model),
        tags=TagsFacts(id="default"),
        **more,
    )


def user(at: float, text: str = "What is the time in Lima?") -> User:
    return User(time=stamp(at), content=text)


def assistant(at: float, text: str = "It is nine.", *, call: str | None = None) -> Assistant:
    if call is None:
        return Assistant(time=stamp(at), content=text)
    made = b'[{"id":"%b","type":"function","function":{"name":"now_in","arguments":"{}"}}]' % call.encode()
    return Assistant(time=stamp(at), content=text, tool_calls=Raw(made))


def result(at: float, number: int, call: str, text: str = "09:00") -> ToolResult:
    return ToolResult(time=stamp(at), call=number, tool_call_id=call, name="now_in", content=text, truncated=False, status="ok")


def usage(
    at: float, request: int, prompt: int | None, cached: int | None, *, expected: int | None = None, **more: Any
) -> UsageRecord:
    defaults: dict[str, Any] = {
        "request_sha256": sha256(b"%d" % request),
        "request_bytes": 100 * request + 400,
        "finish_reason": "stop",
        "response_id": None,
        "attempts": 1,
        "elapsed_ms": 12.5,
    }
    if expected is not None:
        defaults |= {"expected_tokens": expected, "expected_exact": True, "reusable_tokens": expected}
    numbers = {name: more.pop(name) for name in Usage.__struct_fields__ if name in more}
    made = Usage(prompt_tokens=prompt, cached_tokens=cached, **{"completion_tokens": 5, **numbers})
    return UsageRecord(time=stamp(at), request=request, usage=made, **defaults | more)


def loss(at: float, request: int, *, expected: int, cached: int, cause: str = "slot_taken") -> CacheLoss:
    return CacheLoss(
        time=stamp(at),
        request=request,
        expected_tokens=expected,
        expected_exact=True,
        reusable_tokens=expected,
        cached_tokens=cached,
        lost_tokens=expected - cached,
        cause=cause,
        certainty="confirmed",
        fixable_by="server",
        location="slot 0",
        evidence={"slot": 0, "taken_by": "b"},
    )


def end(at: float, reason: Literal["context_full", "asked"] = "asked") -> EpochEnd:
    return EpochEnd(time=stamp(at), reason=reason, prompt_tokens=100, context_size=512)


def kept(
    requests: int, *, first: int = 1000, new: int = 100, at: float = 1, loses: frozenset[int] = frozenset()
) -> Iterator[LogRecord]:
    """Turns of one request each whose contract was kept, but for requests that lost all of their cache."""
    for request in range(1, requests + 1):
        prompt = first + (request - 1) * new
        expected = prompt - new
        now = at + request
        yield user(now)
        yield assistant(now + 0.25)
        if request == 1:
            yield usage(now + 0.25, request, prompt, 0, shortfall="first_request")
        else:
            cached = 0 if request in loses else expected
            yield usage(now + 0.25, request, prompt, cached, expected=expected, prompt_ms=float(prompt - cached))
            if request in loses:
                yield loss(now + 0.25, request, expected=expected, cached=0)


def replay(
    variant: str | None, requests: int, *, session: str | None = "a", first: int = 1000, new: int = 100, broken: bool = False
) -> Iterator[ReplayRecord]:
    """A replay whose cache was kept, or lost every time but the first."""
    for request in range(1, requests + 1):
        prompt = first + (request - 1) * new
        expected = None if request == 1 else prompt - new
        cached = 0 if broken or expected is None else expected
        lost = 0 if expected is None else expected - cached
        why: dict[str, Any] = {"shortfall": "first_request"} if request == 1 else {}
        if lost:
            why = {"cause": "system_changed", "certainty": "confirmed", "fixable_by": "client", "location": "messages[0].content"}
            why["evidence"] = {"byte": 93}
        yield ReplayRecord(
            time=stamp(request),
            session=session,
            variant=variant,
            request=request,
            request_sha256=sha256(b"%d" % request),
            request_bytes=100 * request + 400,
            usage=Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=5, prompt_ms=float(prompt - cached)),
            expected_tokens=expected,
            expected_exact=True,
            reusable_tokens=expected,
            lost_tokens=lost,
            finish_reason="stop",
            elapsed_ms=12.5,
            model="tiny",
            engine="llama.cpp",
            **why,
        )
