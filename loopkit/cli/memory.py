"""The ``memory`` commands."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from loopkit.cli.arguments import add_errors, add_model, api_key, positive_number
from loopkit.cli.output import print_error, print_text
from loopkit.errors import InvalidConfig, LogError

if TYPE_CHECKING:
    from loopkit.cli.arguments import Commands
    from loopkit.memory.sources import RefusedLine

__all__ = ["add_commands"]


def add_commands(commands: Commands) -> None:
    """Add the command ``memory`` with its subcommands to the parser."""
    text = "keep what sessions learned, traceable to its evidence"
    memory = commands.add_parser("memory", help=text, description=text).add_subparsers(required=True, metavar="COMMAND")

    parser = memory.add_parser("ingest", help="add transcripts; a record that is known already is not added again")
    _add_home(parser, project=True)
    parser.add_argument("source", nargs="*", help="a home, a session or another tool's log; - reads records as JSON lines")
    parser.add_argument("--budget", type=positive_number, default=1024, metavar="N", help="tokens per chunk (default: 1024)")
    add_errors(parser)
    parser.add_argument("--listen", type=Path, metavar="PATH.sock", help="read JSON lines from a Unix socket until Ctrl-C")
    parser.set_defaults(run=_ingest)

    parser = memory.add_parser("build", help="summarise the evidence for a question; finished steps are reused")
    _add_home(parser, project=True)
    parser.add_argument("--query", required=True, metavar="ID", help="id of the question")
    parser.add_argument("--question", required=True, metavar="TEXT", help="question that the memory should help to answer")
    parser.add_argument("--synthesise", action="store_true", help="also combine the project's questions into one synthesis")
    add_model(parser)
    parser.set_defaults(run=_build)

    parser = memory.add_parser("rebuild", help="rebuild memory.db from nodes.jsonl and verify both")
    _add_home(parser)
    parser.add_argument(
        "--salvage", action="store_true", help="use the lines before the first damaged one; the damaged file is kept"
    )
    parser.set_defaults(run=_rebuild)

    parser = memory.add_parser("recall", help="search the memory; the best match comes first")
    _add_home(parser)
    parser.add_argument("words", nargs="+", help="words to search for")
    parser.add_argument("-k", type=positive_number, default=5, metavar="N", help="number of results (default: 5)")
    parser.set_defaults(run=_recall)

    parser = memory.add_parser("trace", help="print the records that a node was made from, with file and byte offset")
    _add_home(parser)
    parser.add_argument("node", help="SHA-256 of the node, or at least its first 8 digits")
    parser.set_defaults(run=_trace)

    parser = memory.add_parser("render", help="write the memory block to core.md and print it")
    _add_home(parser, project=True)
    parser.add_argument("--budget", type=positive_number, default=1024, metavar="N", help="tokens of the block (default: 1024)")
    parser.set_defaults(run=_render)


def _add_home(parser: argparse.ArgumentParser, *, project: bool = False) -> None:
    parser.add_argument("--home", type=Path, default=Path("runs"), metavar="DIR", help="directory of memory/ (default: runs)")
    if project:
        parser.add_argument("--project", required=True, metavar="ID", help="id of the project")


def _ingest(options: argparse.Namespace) -> int:
    from loopkit.ids import ProjectId
    from loopkit.memory import open
    from loopkit.memory.sources import listen, read_lines

    if not options.source and options.listen is None:
        raise InvalidConfig("SOURCE", "no source was given", "Give a home, a session, a log, - or --listen PATH.sock")
    memory, project, failed = open(options.home), ProjectId(options.project), False
    for source in options.source:
        refused: list[RefusedLine] = []
        records: Any = read_lines(sys.stdin.buffer, refused.append) if source == "-" else source
        found = memory.ingest(records, project=project, budget=options.budget, errors=options.errors)
        for problem in [*refused, *found.problems]:
            print_error(problem)
            failed = True
        print_text(f"{source}: {found.records:,} records added in {found.chunks:,} chunks, {found.known:,} already known")
    if options.listen is not None:

        def add(stream: BinaryIO) -> dict[str, Any]:
            refused: list[RefusedLine] = []
            found = memory.ingest(read_lines(stream, refused.append), project=project, budget=options.budget)
            return {"taken": found.records, "known": found.known, "refused": [each._asdict() for each in refused]}

        for _ in listen(options.listen, add):
            print_text(f"Listening at {options.listen}. Press Ctrl-C to stop.")
    return int(failed)


def _build(options: argparse.Namespace) -> int:
    from loopkit.ids import ProjectId, QueryId
    from loopkit.memory import open
    from loopkit.memory.recall import need_project
    from loopkit.memory.store import Store
    from loopkit.server.opening import connect, serve

    project = ProjectId(options.project)
    need_project(Store(options.home), project)  # an unknown project should fail before a server starts
    with connect(options.url, api_key=api_key()) if options.url else serve(options.model) as server:
        memory = open(options.home, server=server)
        built = memory.build(project, QueryId(options.query), options.question)
        print_text(f"{built.calls} of {built.steps} steps ran on the model")
        if options.synthesise:
            built = memory.synthesise(project)
            print_text(f"{built.calls} of {built.steps} steps of the synthesis ran on the model")
    if built.node is not None:
        print_text(f"{built.node.sha256} {built.node.level}\n{built.node.text}")
    return 0


def _rebuild(options: argparse.Namespace) -> int:
    from loopkit.memory import open

    memory = open(options.home)
    memory.rebuild(salvage=options.salvage)
    verification = memory.verify()
    for fault in verification.faults:
        print_error(fault)
    print_text(f"{verification.nodes:,} nodes, {verification.edges:,} edges, {verification.chunks:,} chunks")
    return int(bool(verification.faults))


def _recall(options: argparse.Namespace) -> int:
    from loopkit.memory import open

    memory = open(options.home)
    if not memory.dir.is_dir():
        raise LogError(str(memory.dir), "there is no memory here", "Give --home DIR, the directory that holds memory/")
    found = memory.recall(" ".join(options.words), options.k)
    if not found:
        print_text("No node contains these words.")
    for each in found:
        places = ", ".join(f"{place.source}@{place.offset}" for place in each.provenance[:3])
        more = f" and {len(each.provenance) - 3} more" if len(each.provenance) > 3 else ""
        print_text(f"{each.node.sha256} {each.node.level} from {places}{more}\n{each.node.text}\n")
    return 0


def _trace(options: argparse.Namespace) -> int:
    from loopkit.memory import open

    for record in open(options.home).trace(options.node):
        print_text(f"{record.path or record.source}@{record.offset} {record.role}\n{record.text}\n")
    return 0


def _render(options: argparse.Namespace) -> int:
    from loopkit.ids import ProjectId
    from loopkit.memory import open

    memory = open(options.home)
    memory.write(ProjectId(options.project), options.budget)
    print_text(memory.block())
    return 0
