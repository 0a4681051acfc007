"""Commands about logs: ``show``, ``check``, ``export``, ``verify`` and ``salvage``."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from loopkit.cli.arguments import add_errors, add_paths, natural_number
from loopkit.cli.output import print_error, print_lines
from loopkit.errors import InvalidConfig, WorldError

if TYPE_CHECKING:
    from loopkit.cli.arguments import Commands

__all__ = ["add_commands"]


def add_commands(commands: Commands) -> None:
    """Add the commands ``show``, ``check``, ``export``, ``verify`` and ``salvage`` to the parser."""
    parser = commands.add_parser("show", help="summarise logs of any kind: sessions, cache losses with causes, problems")
    add_paths(parser)
    add_errors(parser, default="report")
    parser.add_argument("--all", action="store_true", help="list every loss; by default losses are grouped by session")
    parser.set_defaults(run=_show)

    parser = commands.add_parser(
        "check", help="gate for CI: exit with 1 and the causes if too many tokens were lost, with 2 if a log cannot be read"
    )
    add_paths(parser)
    add_errors(parser)
    parser.add_argument(
        "--max-lost", type=natural_number, default=0, metavar="N", help="number of tokens that may be lost (default: 0)"
    )
    parser.set_defaults(run=_check)

    parser = commands.add_parser("export", help="write logs of any kind as Parquet or CSV tables, or as a trace without text")
    add_paths(parser)
    add_errors(parser)
    parser.add_argument("--parquet", type=Path, metavar="DIR", help="write every table as Parquet; loopkit can load it again")
    parser.add_argument("--csv", type=Path, metavar="DIR", help="write every table as CSV")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write salted, chained block hashes of the prompts as JSONL")
    parser.add_argument("--salt-file", type=Path, metavar="FILE", help="file with at least 16 random bytes, for --trace")
    parser.add_argument("--content", action="store_true", help="include the text of the messages")
    parser.set_defaults(run=_export)

    parser = commands.add_parser("verify", help="rebuild every request from the logs and compare its SHA-256")
    parser.add_argument("path", nargs="+", type=Path, help="a home or a session's directory")
    parser.set_defaults(run=_verify)

    parser = commands.add_parser("salvage", help="copy the intact records of a damaged session into a new session")
    parser.add_argument("source", type=Path, help="directory of the damaged session; it is not changed")
    parser.add_argument("--to", required=True, metavar="NEW_ID", help="id of the new session")
    parser.set_defaults(run=_salvage)


def _show(options: argparse.Namespace) -> int:
    from loopkit.logs.loading import load
    from loopkit.logs.summary import summary

    print_lines(summary(load(options.path, errors=options.errors), each=options.all))
    return 0


def _check(options: argparse.Namespace) -> int:
    from loopkit.logs.gate import gate

    try:
        verdict = gate(options.path, options.max_lost, errors=options.errors)
    except WorldError as error:
        print_error(error)
        return 2
    print_lines(verdict.lines)
    return 0 if verdict.ok else 1


def _export(options: argparse.Namespace) -> int:
    from loopkit.logs.loading import load
    from loopkit.logs.summary import describe_trace

    if options.trace is not None and options.salt_file is None:
        then = "Make one with: head -c 32 /dev/urandom > salt. Keep the file private"
        raise InvalidConfig("--salt-file", "--trace needs a salt", then)
    if not (options.parquet or options.csv or options.trace):
        raise InvalidConfig("export", "no output was given", "Add --parquet DIR, --csv DIR or --trace FILE")
    logs = load(options.path, errors=options.errors, content=options.content)
    if options.parquet is not None:
        logs.to_parquet(options.parquet)
    if options.csv is not None:
        logs.to_csv(options.csv)
    if options.trace is not None:
        written = logs.export_trace(options.trace, options.salt_file.read_bytes())
        print(describe_trace(logs, written, options.trace))
    for problem in logs.unread if options.errors == "report" else ():
        print_error(problem)
    print(logs)
    return 0


def _verify(options: argparse.Namespace) -> int:
    from loopkit.session.salvage import can_salvage
    from loopkit.session.verify import verify

    verification = verify(options.path)
    print_lines([*verification.faults, verification])
    damaged = {path if path.is_dir() else path.parent for path in (Path(fault.path) for fault in verification.faults)}
    for directory in sorted(filter(can_salvage, damaged)):
        print(f"To copy the intact records into a new session: loopkit salvage {shlex.quote(str(directory))} --to NEW_ID")
    return 0 if verification.ok else 1


def _salvage(options: argparse.Namespace) -> int:
    from loopkit.ids import SessionId
    from loopkit.session.salvage import salvage

    salvaged = salvage(options.source, SessionId(options.to))
    print(salvaged)
    print(f"The home now counts both this session and {salvaged.source}. To count the requests once, move one of them away.")
    return 0
