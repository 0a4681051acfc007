"""`cache.reuse` on conversations that grow, taken in turn: ten times the requests, and plain bodies against their parse."""

from __future__ import annotations

import random
import statistics

import orjson

from loopkit.cache import reuse
from loopkit.cache.prefixes.reuse import shared_prefixes
from loopkit.contract.request import Request
from tests.benchmarks.table import Row, interleaved, seconds

TEXT = 5_000
"Bytes of text a message: 200,000 of them are 1 GB."
TURNS = 100


def grown(sessions: int) -> list[Request]:
    """Requests of conversations of 100 turns, as an epoch keeps them: each message once, shared by all that hold it."""
    draw = random.Random(sessions)
    text = draw.randbytes(1 << 20).hex().encode()
    head = b'{"model":"m","temperature":0,"messages":[{"role":"system","content":"Be brief."}'
    rows: list[list[bytes]] = [[] for _ in range(sessions)]
    requests = []
    for _ in range(TURNS):
        for number, row in enumerate(rows):
            for role in (b"user", b"assistant"):
                at = draw.randrange(len(text) - TEXT)
                row.append(b',{"role":"%s","content":"%s"}' % (role, text[at : at + TEXT]))
            requests.append(Request(head, row, len(row), None, "", "", 0))
            requests[-1].session = str(number)
    return requests


def measure(*, small: bool) -> list[Row]:
    few_requests, many_requests = (grown(sessions) for sessions in ((10, 100) if small else (100, 1_000)))
    reuse(few_requests)
    few = statistics.median(seconds(lambda: reuse(few_requests)) for _ in range(5))
    many = min(seconds(lambda: reuse(many_requests)) for _ in range(2))
    count, text = len(many_requests), 2 * TEXT * len(many_requests) / 1e9
    work = f"`cache.reuse`, {count:,} requests, {text:.1f} GB of text, time a request"
    rows = [Row(work, f"{many:.2f} s", f"of {len(few_requests):,}, {few:.3f} s", many / few / 10, 2.0)]

    found = shared_prefixes(many_requests)
    for each in found:
        last = each.session.request
        assert last is None or each.earlier == each.session
        assert last is None or each.session.bytes == found[last].size.bytes
    bodies = [request.body for request in few_requests[: 200 if small else 2_000]]
    mine, theirs = interleaved(lambda: reuse(bodies), lambda: [orjson.loads(body) for body in bodies], 3)
    work = f"`cache.reuse`, plain bodies, {sum(map(len, bodies)) / 1e6:.0f} MB"
    return [*rows, Row(work, f"{mine:.2f} s", f"orjson.loads, {theirs:.2f} s", mine / theirs, 4.0)]
