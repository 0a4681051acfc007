"""What the laboratory writes down of each request and another process reads: bodies, counters, tokens; never what was done."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from loopkit.contract.records import Usage
from loopkit.encoding import decode, encode
from loopkit.engines.evidence.observation import Counters, Observation
from loopkit.engines.evidence.tokens import Run, TokenView

PLAIN = (
    "session",
    "epoch",
    "request",
    "time",
    "elapsed_ms",
    "slot",
    "engine",
    "build",
    "model",
    "server",
    "context_size",
    "restored",
)


def write(path: Path, requests: Iterable[Observation]) -> None:
    path.write_bytes(b"".join(encode(_out(seen)) + b"\n" for seen in requests))


def read(path: Path) -> Iterator[Observation]:
    for line in path.read_bytes().splitlines():
        yield _in(decode(line, dict[str, Any]))


def _out(seen: Observation) -> dict[str, Any]:
    view, body = seen.tokens, seen.body
    assert view is not None
    assert body is not None
    return {
        **{name: getattr(seen, name) for name in PLAIN},
        "usage": seen.usage,
        "body": body.decode(),
        "before": seen.before,
        "after": seen.after,
        "tokens": view.tokens.tolist(),
        "prompt": view.prompt,
        "offsets": None if view.offsets is None else view.offsets.tolist(),
        "parts": view.parts,
        "exact": view.exact,
    }


def _in(line: dict[str, Any]) -> Observation:
    offsets, parts = line["offsets"], line["parts"]
    view = TokenView(
        array("i", line["tokens"]),
        line["prompt"],
        None if offsets is None else array("i", offsets),
        None if parts is None else tuple(Run(*each) for each in parts),
        line["exact"],
    )
    before, after = (None if line[name] is None else msgspec.convert(line[name], Counters) for name in ("before", "after"))
    usage = msgspec.convert(line["usage"], Usage)
    plain = {name: line[name] for name in PLAIN}
    return Observation(usage=usage, body=line["body"].encode(), tokens=view, before=before, after=after, **plain)
