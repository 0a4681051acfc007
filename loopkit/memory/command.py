"""``loopkit memory …``: each command as the lines that it says. Parses nothing and prints nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from loopkit.errors import InvalidConfig
from loopkit.ids import ProjectId, QueryId
from loopkit.memory.ingest import Ingested
from loopkit.memory.memory import Memory, open
from loopkit.memory.sources import Refused, listen, read_lines
from loopkit.server.client import connect, serve

__all__ = ["Said", "run"]


class Said(NamedTuple):
    """A line for the person."""

    text: str
    wrong: bool = False
    "For standard error, and the exit status is 1."


def run(asked: argparse.Namespace, api_key: str | None) -> Iterator[Said]:
    """Run ``asked.command``."""
    memory = open(asked.home)
    match asked.command:
        case "ingest":
            yield from _ingest(memory, asked)
        case "build":
            yield from _build(asked, api_key)
        case "rebuild":
            memory.rebuild(salvage=asked.salvage)
            found = memory.verify()
            yield from (Said(fault, wrong=True) for fault in found.faults)
            yield Said(f"{found.nodes:,} nodes, {found.edges:,} edges, {found.chunks:,} chunks")
        case "recall":
            for each in memory.recall(" ".join(asked.words), asked.k):
                places = ", ".join(f"{place.source}@{place.offset}" for place in each.provenance[:3])
                more = f" and {len(each.provenance) - 3} more" if len(each.provenance) > 3 else ""
                yield Said(f"{each.node.sha256} {each.node.level} from {places}{more}\n{each.node.text}\n")
        case "trace":
            for record in memory.trace(asked.node):
                yield Said(f"{record.path or record.source}@{record.offset} {record.role}\n{record.text}\n")
        case "render":
            memory.write(ProjectId(asked.project), asked.budget)
            yield Said(memory.block())


def _ingest(memory: Memory, asked: argparse.Namespace) -> Iterator[Said]:
    project = ProjectId(asked.project)
    if not asked.source and asked.listen is None:
        raise InvalidConfig("SOURCE", "there is nothing to take in", "Name a home, a session or a log, - or --listen PATH.sock")
    for source in asked.source:
        refused: list[Refused] = []
        what: Any = read_lines(sys.stdin.buffer, refused.append) if source == "-" else source
        found = memory.ingest(what, project=project, budget=asked.budget)
        yield from (Said(f"loopkit: {each}", wrong=True) for each in refused)
        yield Said(f"{source}: {_told(found)}")
    if asked.listen is not None:

        def take(stream: BinaryIO) -> dict[str, Any]:
            refused: list[Refused] = []
            found = memory.ingest(read_lines(stream, refused.append), project=project, budget=asked.budget)
            return {"taken": found.records, "known": found.known, "refused": [each._asdict() for each in refused]}

        yield Said(f"listening at {asked.listen}; Ctrl-C ends it")
        listen(asked.listen, take)


def _told(found: Ingested) -> str:
    return f"{found.records:,} records taken in {found.chunks:,} chunks, {found.known:,} known already"


def _build(asked: argparse.Namespace, api_key: str | None) -> Iterator[Said]:
    project = ProjectId(asked.project)
    with connect(asked.url, api_key=api_key) if asked.url else serve(asked.model) as server:
        memory = open(asked.home, server=server)
        built = memory.build(project, QueryId(asked.query), asked.question)
        yield Said(f"{built.calls} of {built.steps} steps paid for")
        if asked.synthesise:
            built = memory.synthesise(project)
            yield Said(f"{built.calls} of {built.steps} steps of the synthesis paid for")
    if built.node is not None:
        yield Said(f"{built.node.sha256} {built.node.level}\n{built.node.text}")
