"""The fast reader against a plain one, on logs damaged at random: equal rows, equal problems.

The plain one takes every rule of FORMAT.md literally, line by line, with the typed records. ``LOOPKIT_MUTANTS`` says how many
logs (2,000 in a full run).
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import pandas as pd
from msgspec import UNSET

from loopkit.contract.records import CacheLoss, EpochEnd, LogRecord, SessionStart, UsageRecord, encode_record
from loopkit.logs.collection import Logs
from loopkit.logs.loading import load
from tests.logs.make import assistant, closed, end, loss, result, start, usage, user, write_session

MUTANTS = int(os.environ.get("LOOPKIT_MUTANTS", "300"))
TAIL = re.compile(rb',"crc":"([0-9a-f]{8})"\}\Z')
HEAD = re.compile(rb'\{"kind":"([a-z_]+)","time":"')
READ: dict[bytes, type[Any]] = {
    b"session_start": SessionStart,
    b"usage": UsageRecord,
    b"cache_loss": CacheLoss,
    b"epoch_end": EpochEnd,
}
PASSED = (b"user", b"assistant", b"tool_result")
TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[:,\[\]{}]|[^":,\[\]{}]+')

SOUND: list[LogRecord] = [
    start("a", carried=2),
    user(1),
    assistant(1),
    user(2),
    assistant(3, call="c1"),
    usage(3, 1, 1000, 0, shortfall="first_request", finish_reason="tool_calls", ttft_ms=12.5),
    result(4, 1, "c1", 'a "quoted", {"json": 1} text'),
    assistant(5),
    usage(5, 2, 1100, 1004, expected=1004),
    user(6),
    assistant(7),
    usage(7, 3, 1200, 600, expected=1104),
    loss(7, 3, expected=1104, cached=600),
    user(8),
    assistant(9),
    usage(9, 4, 1300, None),
    end(10),
]
BODIES = [encode_record(record)[:-1] for record in SOUND]


class Plain(NamedTuple):
    """What the plain reader finds."""

    usage: list[tuple[object, ...]]
    losses: list[tuple[object, ...]]
    turns: list[tuple[object, ...]]
    problems: list[tuple[int, int]]
    "Line, and how many lines."


def plain(data: bytes) -> Plain:
    *lines, rest = data.split(b"\n")
    wrong: list[int] = []
    chain, doubtful = 0, False
    for number, line in enumerate(lines, 1):
        found = TAIL.search(line)
        if found is None:
            wrong.append(number)
            doubtful = True
            continue
        recorded = int(found[1], 16)
        if not doubtful and crc32(line[: found.start()], chain) != recorded:
            wrong.append(number)
        chain, doubtful = recorded, False
    if rest:
        wrong.append(len(lines) + 1)
    runs: list[tuple[int, int]] = []
    for number in wrong:
        if runs and number == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    sound = [TAIL.sub(b"", line) for line in (lines[: wrong[0] - 1] if wrong else lines)]
    return rows(sound, runs)


def rows(sound: list[bytes], problems: list[tuple[int, int]]) -> Plain:
    """Read record after record until one is wrong; what follows the last whole group is none."""
    usage: list[Any] = []
    losses: list[Any] = []
    turns: list[list[int]] = []
    kept: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    state, begun, carried, fault = "start", 1, 0, 0
    for number, body in enumerate(sound, 1):
        head = HEAD.match(body)
        kind = head[1] if head else b""
        try:
            record = msgspec.json.decode(body + b"}", type=READ[kind]) if kind in READ else None
        except ValueError:
            fault = number
            break
        if kind not in READ and kind not in PASSED:
            fault = number
            break
        if state == "start":
            if not isinstance(record, SessionStart) or (record.session, record.epoch) != ("a", 0):
                fault = number
                break
            carried = 0 if record.carried is UNSET else record.carried.records
            state = "whole"
        elif carried:
            if kind not in PASSED:
                fault = number
                break
            carried -= 1
        elif kind == b"user" and state in ("whole", "used", "answered"):
            state, begun = "asked", number
            turns.append([0, 0])
        elif kind == b"assistant" and state in ("whole", "used", "answered", "asked"):
            begun = begun if state == "asked" else number
            state = "said"
            if not turns:
                turns.append([0, 0])
        elif isinstance(record, UsageRecord) and state == "said":
            state = "used"
            turns[-1][0] += 1
            usage.append([len(turns), record, None])
        elif isinstance(record, CacheLoss) and state == "used":
            state = "answered"
            usage[-1][2] = record.lost_tokens
            losses.append((usage[-1][0], record.request, record.lost_tokens, record.cause))
        elif kind == b"tool_result" and state in ("used", "answered"):
            state = "answered"
            turns[-1][1] += 1
        elif isinstance(record, EpochEnd) and state in ("whole", "used", "answered"):
            state = "ended"
        else:
            fault = number
            break
        if not carried and state in ("whole", "used", "answered", "ended"):
            kept = ([list(each) for each in usage], list(losses), [list(each) for each in turns])
    cut = bool(fault or problems)
    if fault:
        problems = [(fault, 1), *problems]
    elif not sound and not problems:
        problems = [(1, 1)]
    elif not cut and carried:
        problems = [(len(sound) + 1, 1)]
    elif not cut and state in ("asked", "said"):
        problems = [(begun, 1)]
    made: list[tuple[object, ...]] = []
    before = 0
    for turn, record, lost in kept[0]:
        given = lost
        cached, expected = record.usage.cached_tokens, None if record.expected_tokens is UNSET else record.expected_tokens
        if given is None and cached is not None and (expected is not None or record.shortfall is not UNSET):
            given = 0
        made.append((turn, record.request, record.usage.prompt_tokens, cached, expected, given, record.request_bytes - before))
        before = record.request_bytes
    last: Any = kept[0][-1][1] if kept[0] else None
    behind_cut = cut and state == "used" and last is not None and last.expected_tokens not in (UNSET, None)
    if behind_cut and last.usage.cached_tokens is not None and last.usage.cached_tokens < last.expected_tokens:
        made[-1] = (*made[-1][:5], None, made[-1][6])  # whether it lost any is said by the line that is not read
    return Plain(made, kept[1], [tuple(each) for each in kept[2]], problems)


def fast(logs: Logs) -> Plain:
    def table(frame: pd.DataFrame, *names: str) -> list[tuple[object, ...]]:
        values = frame[list(names)].astype(object)
        return [tuple(None if value is pd.NA else value for value in row) for row in values.itertuples(index=False)]

    usage = table(logs.usage, "turn", "request", "prompt_tokens", "cached_tokens", "expected_tokens", "lost_tokens", "new_bytes")
    losses = table(logs.cache_loss, "turn", "request", "lost_tokens", "cause")
    problems = [(problem.line or 0, problem.affected) for problem in logs.unread]
    return Plain(usage, losses, table(logs.turns, "requests", "tool_calls"), problems)


def spaced(rng: random.Random, body: bytes) -> bytes:
    """White space between some tokens behind the head; the same JSON."""
    head = HEAD.match(body)
    at = head.end() - 1 if head else 0
    spaces = (b"", b"", b" ", b"  ", b"\t", b" \r")
    tokens = (token + (rng.choice(spaces) if token in b":,[]{}" else b"") for token in TOKEN.findall(body[at:]))
    return body[:at] + b"".join(tokens)


def _on_disk(rng: random.Random) -> bytes:
    made = closed(BODIES)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(made)) if made else 0
        line = made[at] if made else b""
        place = rng.randrange(len(line)) if line else 0
        made[at : at + 1] = rng.choice(
            (
                [line[:place] + bytes([rng.randrange(256)]) + line[place + 1 :]],
                [line[:place] + line[place + 1 :]],
                [line, line],
                [],
                [line[:place] + b"\n" + line[place:]],
                [b"\n", line],
                [b"\0" * 16 + b"\n", line],
                [*made[at + 1 : at + 2], line],
                [line[:-1]],
            )
        )
    whole = b"".join(made)
    return whole[: rng.randrange(len(whole) + 1)] if rng.random() < 0.2 else whole


VALUES = (b"-1", b"0", b"1e3", b"null", b"7.5", b'"x"', b"9223372036854775807", b"9223372036854775808", b"true", b"[]", b"NaN")


def _written(rng: random.Random) -> bytes:
    """Lines of another writer: sound by their crc, whatever they say."""
    bodies = [spaced(rng, body) if rng.random() < 0.5 else body for body in BODIES]
    for _ in range(rng.choice((0, 1, 1, 2))):
        at = rng.randrange(len(bodies))
        body = bodies[at]
        numbers = list(re.finditer(rb":\s*(-?[0-9.]+)(?=[,}\s])", body))
        change = rng.randrange(6)
        if change == 0 and numbers:
            found = rng.choice(numbers)
            bodies[at] = body[: found.start(1)] + rng.choice(VALUES) + body[found.end(1) :]
        elif change == 1:
            bodies[at] = body.replace(b'"kind"', b'"kinf"', 1)
        elif change == 2:
            bodies[at : at + 1] = [body, body]
        elif change == 3 and len(bodies) > 1:
            del bodies[at]
        elif change == 4:
            bodies[at] = body + b',"more":1'
        else:
            other = rng.randrange(len(bodies))
            bodies[at], bodies[other] = bodies[other], bodies[at]
    whole = closed(bodies)
    return b"".join(whole[: rng.randrange(len(whole) + 1)] if rng.random() < 0.2 else whole)


def _compare(path: Path, data: bytes) -> Plain:
    path.write_bytes(data)
    found = plain(data)
    assert fast(load(path, errors="report")) == found, data
    return found


def test_rows_and_problems_are_those_of_a_plain_reader(tmp_path: Path) -> None:
    path = write_session(tmp_path, "a", SOUND) / "0.jsonl"
    assert _compare(path, path.read_bytes()).problems == []
    rng = random.Random(50)
    makers: tuple[Callable[[random.Random], bytes], ...] = (_on_disk, _written)
    seen = [_compare(path, makers[number % 2](rng)) for number in range(MUTANTS)]
    assert {len(each.problems) for each in seen} >= {0, 1, 2}
    assert {len(each.usage) for each in seen} == {0, 1, 2, 3, 4}
