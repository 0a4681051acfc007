"""``loopkit memory …``: each command as the lines that it says. Parses nothing and prints nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from loopkit.errors import InvalidConfig, LogError
from loopkit.ids import ProjectId, QueryId
from loopkit.memory.ingest import Ingested
from loopkit.memory.memory import Memory, open
from loopkit.memory.recall import need_project
from loopkit.memory.sources import Refused, listen, read_lines
from loopkit.memory.store import Store
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
            seen = memory.verify()
            yield from (Said(fault, wrong=True) for fault in seen.faults)
            yield Said(f"{seen.nodes:,} nodes, {seen.edges:,} edges, {seen.chunks:,} chunks")
        case "recall":
            if not memory.dir.is_dir():
                raise LogError(str(memory.dir), "there is no memory here", "Give --home DIR, the directory that holds memory/")
            found = memory.recall(" ".join(asked.words), asked.k)
            if not found:
                yield Said("nothing holds these words")
            for each in found:
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
        found = memory.ingest(what, project=project, budget=asked.budget, errors=asked.errors)
        yield from (Said(f"loopkit: {each}", wrong=True) for each in [*refused, *found.problems])
        yield Said(f"{source}: {_told(found)}")
    if asked.listen is not None:

        def take(stream: BinaryIO) -> dict[str, Any]:
            refused: list[Refused] = []
            found = memory.ingest(read_lines(stream, refused.append), project=project, budget=asked.budget)
            return {"taken": found.records, "known": found.known, "refused": [each._asdict() for each in refused]}

        for _ in listen(asked.listen, take):
            yield Said(f"listening at {asked.listen}; Ctrl-C ends it")


def _told(found: Ingested) -> str:
    return f"{found.records:,} records taken in {found.chunks:,} chunks, {found.known:,} known already"


def _build(asked: argparse.Namespace, api_key: str | None) -> Iterator[Said]:
    project = ProjectId(asked.project)
    need_project(Store(asked.home), project)  # before a server is started for it
    with connect(asked.url, api_key=api_key) if asked.url else serve(asked.model) as server:
        memory = open(asked.home, server=server)
        built = memory.build(project, QueryId(asked.query), asked.question)
        yield Said(f"{built.calls} of {built.steps} steps paid for")
        if asked.synthesise:
            built = memory.synthesise(project)
            yield Said(f"{built.calls} of {built.steps} steps of the synthesis paid for")
    if built.node is not None:
        yield Said(f"{built.node.sha256} {built.node.level}\n{built.node.text}")
