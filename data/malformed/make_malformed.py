"""Make damaged logs, one fault each.

``python data/malformed/make_malformed.py data/malformed`` makes them all anew, the same bytes every time; a test holds the
files to it. Each is the one sound log of `lines`, damaged as its function says; ``tests/logs/test_malformed.py`` says what is
found in each.
A fault that a disk, an editor or a killed writer makes leaves the ``crc`` of a line wrong; one that only a faulty writer could
make has lines that are closed anew, so that the ``crc`` is right and the fault is in what the line says.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from loopkit.session.journal import close_line

BASELINE = b'{"system":"Be brief.","tools":[]}'
SHA = b"696197e265f9f0595d144f96d924f6f47abb1638a3490ed3802507012110bfb8"
NUMBERS = (
    b'"usage":{"prompt_tokens":%d,"cached_tokens":%d,"cache_write_tokens":null,"completion_tokens":5,"reasoning_tokens":null,'
    b'"ttft_ms":null,"prompt_ms":12.5,"predicted_ms":null}'
)


def stamp(second: int) -> bytes:
    """A fixed moment."""
    return b'"time":"2026-11-30T07:31:%02d.000000Z"' % second


def usage(second: int, request: int, prompt: int, cached: int, expected: bytes) -> bytes:
    """A usage record."""
    numbers = NUMBERS % (prompt, cached)
    head = b'{"kind":"usage",%b,"request":%d,"request_sha256":"%b","request_bytes":%d' % (
        stamp(second),
        request,
        SHA,
        90 * request,
    )
    return head + b",%b%b" % (numbers, expected) + b',"finish_reason":"stop","response_id":null,"attempts":1,"elapsed_ms":20.5'


def lines(session: str) -> list[bytes]:
    """The records of a sound log, without their ends: two turns, three requests, a loss."""
    call = b'[{"id":"a1","type":"function","function":{"name":"now_in","arguments":"{}"}}]'
    server = b'"server":{"engine":"llama.cpp","build":null,"model":"tiny","context_size":4096},"tags":{"id":"default-1"}'
    expected = b',"expected_tokens":1004,"expected_exact":true'
    return [
        b'{"kind":"session_start",%b,"format":1,"session":"%b","epoch":0,"slot":0,"baseline_sha256":"%b","options":{},%b'
        % (stamp(0), session.encode(), SHA, server),
        b'{"kind":"user",%b,"content":"What is the time in Lima?"' % stamp(1),
        b'{"kind":"assistant",%b,"content":null,"tool_calls":%b' % (stamp(2), call),
        usage(2, 1, 1000, 0, b',"shortfall":"first_request"'),
        b'{"kind":"tool_result",%b,"call":1,"tool_call_id":"a1","name":"now_in","content":"07:31","truncated":false,"status":"ok"'
        % stamp(3),
        b'{"kind":"assistant",%b,"content":"It is 07:31."' % stamp(4),
        usage(4, 2, 1100, 600, expected),
        b'{"kind":"cache_loss",%b,"request":2,"expected_tokens":1004,"expected_exact":true,"reusable_tokens":null,"cached_tokens":600,'
        b'"lost_tokens":404,"cause":"server","certainty":"suspected","mendable_by":"server","where":null,"evidence":{"slot":0}'
        % stamp(4),
        "é".encode().join([b'{"kind":"user",%b,"content":"And in San Jos' % stamp(5), b'?"']),
        b'{"kind":"assistant",%b,"content":"It is 06:31."' % stamp(6),
        usage(6, 3, 1200, 1104, b',"expected_tokens":1104,"expected_exact":true'),
        b'{"kind":"epoch_end",%b,"reason":"asked","prompt_tokens":1200,"context_size":4096' % stamp(7),
    ]


def closed(bodies: list[bytes]) -> list[bytes]:
    """Whole lines with their crc."""
    crc, made = 0, []
    for body in bodies:
        line, crc = close_line(body, crc)
        made.append(line)
    return made


Damage = Callable[[list[bytes]], list[bytes]]


def torn(damage: Damage) -> Damage:
    """Damage whole lines."""
    return lambda bodies: damage(closed(bodies))


def said(number: int, old: bytes, new: bytes) -> Damage:
    """Write something else into a line, and close it and all that follow anew."""

    def damage(bodies: list[bytes]) -> list[bytes]:
        assert old in bodies[number - 1]
        return closed([*bodies[: number - 1], bodies[number - 1].replace(old, new, 1), *bodies[number:]])

    return damage


def changed(number: int, old: bytes, new: bytes) -> Damage:
    """Change bytes of a line on the disk."""

    def damage(bodies: list[bytes]) -> list[bytes]:
        made = closed(bodies)
        assert old in made[number - 1]
        return [*made[: number - 1], made[number - 1].replace(old, new, 1), *made[number:]]

    return damage


def another_crc(made: list[bytes]) -> list[bytes]:
    """A digit of the fourth line's crc is another."""
    digit = made[3][-4:-3]
    return [*made[:3], made[3][:-4] + (b"0" if digit != b"0" else b"1") + made[3][-3:], *made[4:]]


SESSIONS: dict[str, Damage] = {
    "another-session": lambda bodies: closed([re.sub(b'"session":"[^"]*"', b'"session":"lima"', bodies[0]), *bodies[1:]]),
    "blank-line": torn(lambda made: [*made[:4], b"  \n", *made[4:]]),
    "bom": torn(lambda made: [b"\xef\xbb\xbf" + made[0], *made[1:]]),
    "carried-too-few": said(
        1, b'"tags":{"id":"default-1"}', b'"tags":{"id":"default-1"},"carried":{"kind":"turn","from_epoch":0,"records":3}'
    ),
    "count-negative": said(7, b'"prompt_tokens":1100', b'"prompt_tokens":-1100'),
    "count-of-5000-digits": said(7, b'"prompt_tokens":1100', b'"prompt_tokens":' + b"9" * 5000),
    "crc-changed": torn(another_crc),
    "crc-missing": torn(lambda made: [*made[:4], made[4][:-19] + b"}\n", *made[5:]]),
    "crc-upper-case": torn(
        lambda made: [*made[:4], made[4][:-19] + made[4][-19:-11] + made[4][-11:-3].upper() + b'"}\n', *made[5:]]
    ),
    "crlf": torn(lambda made: [line[:-1] + b"\r\n" for line in made]),
    "cut-in-a-character": torn(lambda made: [*made[:8], made[8][: made[8].index("é".encode()) + 1]]),
    "cut-in-a-record": torn(lambda made: [*made[:10], made[10][:100]]),
    "cut-of-its-line-feed": torn(lambda made: [*made[:11], made[11][:-1]]),
    "empty": lambda bodies: [],
    "empty-line": torn(lambda made: [*made[:6], b"\n", *made[6:]]),
    "group-unfinished": lambda bodies: closed(bodies[:10]),
    "kind-not-first": said(7, b'"kind":"usage",' + stamp(4), stamp(4) + b',"kind":"usage"'),
    "kind-unknown": said(5, b"tool_result", b"tool_answer"),
    "latin-1": changed(9, "é".encode(), b"\xe9"),
    "line-doubled": torn(lambda made: [*made[:6], *made[5:]]),
    "line-lost": torn(lambda made: [*made[:5], *made[6:]]),
    "line-split": torn(lambda made: [*made[:5], made[5][:60] + b"\n" + made[5][60:], *made[6:]]),
    "lines-joined": torn(lambda made: [*made[:4], made[4][:-1] + made[5], *made[6:]]),
    "lines-swapped": torn(lambda made: [*made[:5], made[6], made[5], *made[7:]]),
    "member-missing": said(7, b',"attempts":1', b""),
    "member-unknown": said(7, b',"attempts":1', b',"attempts":1,"mood":"good"'),
    "nested-too-deep": said(8, b'{"slot":0}', b'{"slot":' + b"[" * 3000 + b"]" * 3000 + b"}"),
    "nul-bytes": torn(lambda made: [*made[:3], b"\0" * 512 + b"\n", *made[3:]]),
    "nul-bytes-at-the-end": torn(lambda made: [*made, b"\0" * 512]),
    "number-changed": changed(7, b'"cached_tokens":600', b'"cached_tokens":900'),
    "number-infinite": said(7, b'"prompt_ms":12.5', b'"prompt_ms":1e999'),
    "number-nan": said(7, b'"prompt_ms":12.5', b'"prompt_ms":NaN'),
    "record-after-the-end": lambda bodies: closed([*bodies, bodies[1]]),
    "start-missing": lambda bodies: closed(bodies[1:]),
    "text-changed": changed(6, b"07:31", b"08:31"),
    "time-is-none": said(9, b"2026-11-30", b"2026-02-30"),
    "two-users": lambda bodies: closed([*bodies[:9], bodies[8], *bodies[9:]]),
    "type-wrong": said(7, b'"request":2', b'"request":"2"'),
}
"Damaged logs of sessions; the session has the name of its damage."


def main(home: Path) -> None:
    """Write them all."""
    for name, damage in SESSIONS.items():
        directory = home / "sessions" / name
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "0.baseline.json").write_bytes(BASELINE)
        (directory / "0.jsonl").write_bytes(b"".join(damage(lines(name))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
