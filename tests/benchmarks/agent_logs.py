"""Sessions as an agent writes them: turns that each read two files, so three requests, some 2.7 KB of log a request.

That is what public transcripts of coding agents come to (2.8 KB a call). Quick to make, so that a gigabyte can be made for a run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from msgspec import Raw

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
from loopkit.encoding import encode_texts, sha256
from loopkit.session.journal import close_line

BASELINE = b'{"system":"Be brief.","tools":[]}'
LETTERS = "abcdefghijklmnopqrstuvwxyz"
ALIKE = 25
"So many different sessions a home has; the others are copies under names of their own."


def write_log(home: Path, megabytes: float) -> Path:
    """Write one long session; returns its log."""
    path = home / "sessions" / "big" / "0.jsonl"
    _write(path, map(_body, _records(1, "big")), round(megabytes * 1e6))
    return path


def write_home(home: Path, sessions: int, kilobytes: float) -> int:
    """Write many sessions, each about so long; returns the bytes of all."""
    size = 0
    longest = round(kilobytes * 1000)
    made = [list(_upto(map(_body, _records(seed, "")), longest)) for seed in range(min(sessions, ALIKE))]
    for number in range(sessions):
        name = f"s{number:05}"
        bodies = [_body(_start(name)), *made[number % ALIKE][1:]]
        size += _write(home / "sessions" / name / "0.jsonl", iter(bodies), longest * 2)
    return size


def _write(path: Path, bodies: Iterator[bytes], longest: int) -> int:
    path.parent.mkdir(parents=True)
    path.with_name("0.baseline.json").write_bytes(BASELINE)
    crc = 0
    with path.open("wb") as file:
        for body in _upto(bodies, longest):
            line, crc = close_line(body, crc)
            file.write(line)
        return file.tell()


def _upto(bodies: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Whole turns, until there are so many bytes."""
    written = 0
    for body in bodies:
        if written >= size and body.startswith(b'{"kind":"user"'):
            return
        written += len(body)
        yield body


def _body(record: LogRecord) -> bytes:
    return encode_texts(record, "record")[:-1]  # the bytes that encode_record gives, in a tenth of its time


def _records(seed: int, session: str) -> Iterator[LogRecord]:
    """A session that never ends."""
    rng = random.Random(seed)
    words = ["".join(rng.choices(LETTERS, k=rng.randint(2, 9))) for _ in range(500)]
    pool = " ".join(rng.choices(words, k=50_000))
    times = map(_time, count(1))

    def text(words: int) -> str:
        start = rng.randrange(len(pool) - 6 * words)
        return pool[start : start + 6 * words]

    yield _start(session)
    for request in count(1):
        prompt = 1000 + 300 * request
        last = request % 3 == 0
        name = f"call_{request}"
        made = b'[{"id":"%b","type":"function","function":{"name":"read","arguments":"{}"}}]' % name.encode()
        if request % 3 == 1:
            yield User(time=next(times), content=text(30))
        if last:
            yield Assistant(time=next(times), content=text(90))
        else:
            yield Assistant(time=next(times), content=text(60), tool_calls=Raw(made))
        yield UsageRecord(
            time=next(times),
            request=request,
            request_sha256=f"{rng.getrandbits(256):064x}",
            request_bytes=4 * prompt,
            usage=Usage(
                prompt_tokens=prompt,
                cached_tokens=prompt - 300,
                completion_tokens=90,
                ttft_ms=41.5,
                prompt_ms=40.25,
                predicted_ms=300.125,
            ),
            expected_tokens=prompt - 300,
            expected_exact=True,
            reusable_tokens=prompt - 300,
            finish_reason="stop" if last else "tool_calls",
            response_id=f"chatcmpl-{request}",
            attempts=1,
            elapsed_ms=341.5,
        )
        if not last:
            yield ToolResult(
                time=next(times),
                call=request - request // 3,
                tool_call_id=name,
                name="read",
                content=text(rng.choice([50, 100, 300, 800])),
                truncated=False,
                status="ok",
            )


def _start(session: str) -> SessionStart:
    facts = ServerFacts(engine="llama.cpp", model="m", context_size=1 << 20)
    start: dict[str, Any] = {
        "slot": 0,
        "baseline_sha256": sha256(BASELINE),
        "options": {},
        "server": facts,
        "tags": TagsFacts(id="default"),
    }
    return SessionStart(time=_time(0), session=session, epoch=0, **start)


def _time(clock: int) -> str:
    return f"2026-11-{clock // 86400 + 1:02}T{clock // 3600 % 24:02}:{clock // 60 % 60:02}:{clock % 60:02}.{clock % 1000:03}000Z"
