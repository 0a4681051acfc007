"""The command line: thin, for what has no notebook. Each command parses, calls one function and prints what it gives.

A loopkit error is printed as one line on standard error, and the exit status is 1; 2 is a wrong command line. Of ``check`` 1 says
that more was lost than allowed, or that nothing could be judged, and 2 also that something cannot be read.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopkit import __version__
from loopkit.errors import InvalidConfig, LogError, LoopkitError, ServerRefused, WorldError, describe

if TYPE_CHECKING:
    from loopkit.cache.prefixes.prompt_parts import Prompt
    from loopkit.session.session import Session

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    arguments : sequence of str, optional
        Those of the process where not given.

    Returns
    -------
    int
        The exit status.

    Examples
    --------
    >>> main(["verify", "no-such-home"])                                        # the reason goes to standard error
    1
    """
    asked = _parser().parse_args(arguments)
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        return _run(asked)


def _run(asked: argparse.Namespace) -> int:
    try:
        return int(asked.run(asked))
    except LoopkitError as error:
        _name_key(error, "--api-key-file" if getattr(asked, "api_key_file", None) else "LOOPKIT_API_KEY")
        print(f"loopkit: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"loopkit: {error.filename or 'the system'}: {describe(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning as a line of its own, above a bar that is being drawn."""
    from tqdm import tqdm

    tqdm.write(f"loopkit: {message}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="loopkit", description="Run, resume and study LLM agent loops whose prompt cache stays warm."
    )
    parser.add_argument("--version", action="version", version=f"loopkit {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="what a stable prefix is worth, measured on a real server")
    demo.add_argument("--model", default="smollm2", help="smollm2, tiny, or the path of a GGUF file (default: smollm2)")
    demo.add_argument("--url", help="a running server instead of the embedded one; its key is in LOOPKIT_API_KEY")
    demo.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="where files go (default: demo)")
    demo.add_argument("--turns", type=_count, default=8, metavar="N", help="questions asked (default: 8)")
    demo.set_defaults(run=_demo)

    serve = commands.add_parser("serve", help="run the embedded llama.cpp server until Ctrl-C")
    serve.add_argument("--model", default="smollm2", help="smollm2, tiny, or the path of a GGUF file (default: smollm2)")
    serve.add_argument("--slots", type=_count, default=2, metavar="N", help="conversations kept at once (default: 2)")
    serve.add_argument("--context", type=_count, default=4096, metavar="N", help="tokens for each (default: 4096)")
    serve.set_defaults(run=_serve)

    doctor = commands.add_parser("doctor", help="what a server offers and lacks for a warm cache; one tiny completion, twice")
    doctor.add_argument("url", help="the server's base URL")
    doctor.add_argument("--model", help="its name, where the server has several")
    doctor.add_argument("--api-key-file", type=Path, metavar="FILE", help="a file that holds the key (default: LOOPKIT_API_KEY)")
    doctor.set_defaults(run=_doctor)

    record = commands.add_parser("record", help="pass an agent's requests on to its server, and record them, until Ctrl-C")
    record.add_argument("--url", required=True, help="the server, as the agent names it; the agent's own key is passed on")
    record.add_argument("--home", type=Path, default=Path("runs"), metavar="DIR", help="where recordings/ lies (default: runs)")
    record.add_argument("--port", type=_whole, default=0, metavar="N", help="on 127.0.0.1 (default: a free one)")
    record.set_defaults(run=_record)

    verify = commands.add_parser("verify", help="rebuild every request from the logs and compare its SHA-256")
    verify.add_argument("path", nargs="+", type=Path, help="a home or a session's directory")
    verify.set_defaults(run=_verify)

    errors = argparse.ArgumentParser(add_help=False)
    errors.add_argument(
        "--errors", choices=("raise", "report"), default="raise", help="at a fault: stop (default), or name it and go on"
    )

    told = "a gate for CI: exit status 1, and the causes, where more of the cache was lost; 2 where a log cannot be read"
    check = commands.add_parser("check", parents=[errors], help=told)
    check.add_argument("path", nargs="+", type=Path, help="a home, a session's directory or a .jsonl")
    check.add_argument("--max-lost", type=_whole, default=0, metavar="N", help="tokens that may be lost (default: 0)")
    check.set_defaults(run=_check)

    show = commands.add_parser(
        "show", help="what is in logs of any kind: sessions, losses with their causes, what cannot be read"
    )
    show.add_argument("path", nargs="+", type=Path, help="a home, a session's directory, a log or a directory of logs")
    show.add_argument("--errors", choices=("raise", "report"), default="report", help="at a fault: stop, or name it (default)")
    show.add_argument("--all", action="store_true", help="each loss, and not those of a session together")
    show.set_defaults(run=_show)

    told = "logs of any kind as tables for other programs, or as a trace without their text"
    export = commands.add_parser("export", parents=[errors], help=told)
    export.add_argument("path", nargs="+", type=Path, help="a home, a session's directory, a log or a directory of logs")
    export.add_argument("--parquet", type=Path, metavar="DIR", help="every table as Parquet; loopkit loads it again")
    export.add_argument("--csv", type=Path, metavar="DIR", help="every table as CSV")
    export.add_argument("--trace", type=Path, metavar="FILE", help="salted, chained block hashes of the prompts, as JSONL")
    export.add_argument("--salt-file", type=Path, metavar="FILE", help="at least 16 random bytes, for --trace")
    export.add_argument("--content", action="store_true", help="the messages' text, too")
    export.set_defaults(run=_export)

    salvage = commands.add_parser("salvage", help="copy the sound records of a torn session into a new one")
    salvage.add_argument("source", type=Path, help="the torn session's directory; it is not touched")
    salvage.add_argument("--to", required=True, metavar="NEW_ID", help="the new session's name")
    salvage.set_defaults(run=_salvage)

    replay = commands.add_parser("replay", help="a session's requests again, changed in one way after the other: what each costs")
    replay.add_argument("session", type=Path, help="its directory; or a recording, or another log that holds bodies")
    replay.add_argument("--variants", default="live_system", metavar="A,B", help="such as tools_shuffled,window(4)")
    replay.add_argument("--model", default="smollm2", help="smollm2, tiny, or the path of a GGUF file (default: smollm2)")
    replay.add_argument("--url", help="a running server instead of the embedded one; its key is in LOOPKIT_API_KEY")
    replay.add_argument("--repeats", type=_count, default=1, metavar="N", help="rounds (default: 1)")
    replay.add_argument("--out", type=Path, default=Path("replay"), metavar="DIR", help="where files go (default: replay)")
    replay.set_defaults(run=_replay)

    _memory_parser(commands.add_parser("memory", help="what sessions learned, traced to its evidence"))
    return parser


def _memory_parser(parser: argparse.ArgumentParser) -> None:
    home = argparse.ArgumentParser(add_help=False)
    home.add_argument("--home", type=Path, default=Path("runs"), metavar="DIR", help="where memory/ lies (default: runs)")
    project = argparse.ArgumentParser(add_help=False)
    project.add_argument("--project", required=True, metavar="ID", help="whose memory")
    budget = argparse.ArgumentParser(add_help=False)
    budget.add_argument(
        "--budget", type=_count, default=1024, metavar="N", help="tokens of a chunk, or of the block (default: 1024)"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")

    ingest = commands.add_parser("ingest", parents=[home, project, budget], help="take transcripts in, each record once")
    ingest.add_argument("source", nargs="*", help="a home, a session, another tool's log; - for JSON lines of records")
    ingest.add_argument("--errors", choices=("raise", "report"), default="raise", help="at a fault: stop (default), or name it")
    ingest.add_argument("--listen", type=Path, metavar="PATH.sock", help="take JSON lines from a Unix socket, until Ctrl-C")

    build = commands.add_parser("build", parents=[home, project], help="fold the evidence for a query, paying no step twice")
    build.add_argument("--query", required=True, metavar="ID", help="the question's name")
    build.add_argument("--question", required=True, metavar="TEXT", help="what the memory is to help with")
    build.add_argument("--synthesise", action="store_true", help="fold the project's queries into its synthesis, too")
    build.add_argument("--model", default="smollm2", help="smollm2, tiny, or the path of a GGUF file (default: smollm2)")
    build.add_argument("--url", help="a running server instead of the embedded one; its key is in LOOPKIT_API_KEY")

    rebuild = commands.add_parser("rebuild", parents=[home], help="make memory.db anew from nodes.jsonl, and verify both")
    rebuild.add_argument("--salvage", action="store_true", help="go on with the lines before a fault; the torn file is kept")

    recall = commands.add_parser("recall", parents=[home], help="search, the best first")
    recall.add_argument("words", nargs="+")
    recall.add_argument("-k", type=_count, default=5, metavar="N", help="how many (default: 5)")

    trace = commands.add_parser("trace", parents=[home], help="the records that a node was made from, with file and byte offset")
    trace.add_argument("node", help="its hash, or the first 8 digits or more")

    commands.add_parser("render", parents=[home, project, budget], help="write the memory block to core.md, and print it")
    parser.set_defaults(run=_memory)


def _at_least(least: int, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if value < least:
        raise argparse.ArgumentTypeError(f"{value} is not at least {least}")
    return value


_count, _whole = partial(_at_least, 1), partial(_at_least, 0)


def _demo(asked: argparse.Namespace) -> int:
    from loopkit import demo

    demo.run(asked.out, model=asked.model, url=asked.url, turns=asked.turns, api_key=_api_key(None))
    return 0


def _serve(asked: argparse.Namespace) -> int:
    from loopkit.server.embedded.foreground import serve_until_stopped

    return serve_until_stopped(asked.model, slots=asked.slots, context=asked.context)


def _doctor(asked: argparse.Namespace) -> int:
    from loopkit.server.client import connect

    with connect(asked.url, api_key=_api_key(asked.api_key_file), model=asked.model) as server:
        print(server)
        print(server.doctor())
    return 0


def _api_key(file: Path | None) -> str | None:
    """The key from a file or the environment; never from the command line, which every process may read."""
    if file is None:
        return os.environ.get("LOOPKIT_API_KEY") or None
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig("--api-key-file", f"{file} cannot be read: {describe(error)}") from error


def _name_key(error: LoopkitError, name: str) -> None:
    """Have an error name the key as it is given here; the library calls it ``api_key=``."""
    if isinstance(error, ServerRefused | InvalidConfig):
        error.then = error.then.replace("api_key=", name)
    if isinstance(error, InvalidConfig) and error.member == "api_key":
        error.member = name


def _record(asked: argparse.Namespace) -> int:
    from loopkit.record import proxy

    stops = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)  # of every thread: they are waited for, and wake no other
    with proxy(asked.url, asked.home, port=asked.port) as standing:
        print(f"url   {standing.url}\nfor   {standing.upstream}\nfile  {standing.path}\nCtrl-C ends it.", flush=True)
        signal.sigwait(stops)
    print(standing)
    return 1 if standing.missed else 0


def _verify(asked: argparse.Namespace) -> int:
    from loopkit.session.salvage import can_salvage
    from loopkit.session.verify import verify

    verification = verify(asked.path)
    for fault in verification.faults:
        print(fault)
    print(verification)
    torn = {path if path.is_dir() else path.parent for path in (Path(fault.path) for fault in verification.faults)}
    for directory in sorted(filter(can_salvage, torn)):
        print(f"To copy what is sound into a new session: loopkit salvage {shlex.quote(str(directory))} --to NEW_ID")
    return 0 if verification.ok else 1


def _check(asked: argparse.Namespace) -> int:
    from loopkit.logs.gate import gate

    try:
        seen = gate(asked.path, asked.max_lost, errors=asked.errors)
    except WorldError as error:
        print(f"loopkit: {error}", file=sys.stderr)
        return 2
    for line in seen.lines:
        print(line)
    return 0 if seen.ok else 1


def _show(asked: argparse.Namespace) -> int:
    from loopkit.logs.loading import load
    from loopkit.logs.summary import summary

    for line in summary(load(asked.path, errors=asked.errors), each=asked.all):
        print(line)
    return 0


def _export(asked: argparse.Namespace) -> int:
    from loopkit.logs.loading import load
    from loopkit.logs.summary import describe_trace

    if asked.trace is not None and asked.salt_file is None:
        raise InvalidConfig(
            "--salt-file", "a trace needs a salt", "head -c 32 /dev/urandom > salt, and keep the file to yourself"
        )
    if not (asked.parquet or asked.csv or asked.trace):
        raise InvalidConfig("export", "nothing to write", "Give --parquet DIR, --csv DIR or --trace FILE")
    logs = load(asked.path, errors=asked.errors, content=asked.content)
    if asked.parquet is not None:
        logs.to_parquet(asked.parquet)
    if asked.csv is not None:
        logs.to_csv(asked.csv)
    if asked.trace is not None:
        written = logs.export_trace(asked.trace, asked.salt_file.read_bytes())
        print(describe_trace(logs, written, asked.trace))
    for problem in logs.unread if asked.errors == "report" else ():
        print(f"loopkit: {problem}", file=sys.stderr)
    print(logs)
    return 0


def _replay(asked: argparse.Namespace) -> int:
    from matplotlib.figure import Figure

    from loopkit import plot, replay
    from loopkit.server.client import connect, serve

    table, picture = asked.out / "compare.csv", asked.out / "compare.png"
    for file in (table, picture):
        if file.exists():
            raise LogError(str(file), "it exists already, and nothing is ever overwritten", "Choose another --out")
    requests = _requests(asked.session)
    variants = [name.strip() for name in asked.variants.split(",") if name.strip()]
    whole = requests if isinstance(requests, list) else requests.requests()
    known = [(len(each.body or b""), each.slot or 0) for each in whole]
    size = max((size for size, _ in known), default=0)
    context = 1024 + (size if asked.model == "tiny" else size // 2)  # of the tiny model a byte is a token
    slots = 1 + max((slot for _, slot in known), default=0)
    finished: list[Any] = []  # frames
    try:
        ours = connect(asked.url, api_key=_api_key(None)) if asked.url else serve(asked.model, slots=slots, context=context)
        with ours as server:
            frame = replay.compare(requests, server, variants, asked.repeats, home=asked.out, on_run=finished.append)
    except KeyboardInterrupt:
        runs = finished[-1].groupby(["variant", "repeat"]).ngroups if finished else 0
        print(f"loopkit: interrupted after {runs} of {(1 + len(variants)) * asked.repeats} runs", file=sys.stderr)
        if finished:
            finished[-1].to_csv(table, index=False)
            print(f"What they cost: {table}", file=sys.stderr)
        if (asked.out / "replays").is_dir():
            print(f'Every request answered: {asked.out}/replays/, read by loopkit.load("{asked.out}")', file=sys.stderr)
        raise
    frame.to_csv(table, index=False)
    figure = Figure(figsize=(9.5, 1.5 + 0.62 * frame["variant"].nunique()), layout="constrained")
    plot.compare(frame, ax=figure.subplots())
    figure.savefig(picture, dpi=150)
    print(replay.describe(replay.summary(frame)))
    print(f"Figure, frame and logs: {asked.out}/")
    return 0


def _requests(path: Path) -> Session | list[Prompt]:
    """What there is to replay: of one session, recording or other log."""
    from loopkit.ids import SessionId
    from loopkit.logs.loading import load
    from loopkit.session.session import Session
    from loopkit.session.store import refuse_home

    if (path / "0.jsonl").exists():
        return Session.read(path.absolute().parent.parent, SessionId(path.absolute().name))
    refuse_home(path)
    return list(load(path).requests())


def _memory(asked: argparse.Namespace) -> int:
    from loopkit.memory import command
    from loopkit.reprs import shown

    status = 0
    for said in command.run(asked, _api_key(None)):
        print(shown(said.text, len(said.text)), file=sys.stderr if said.wrong else sys.stdout, flush=True)
        status |= said.wrong
    return status


def _salvage(asked: argparse.Namespace) -> int:
    from loopkit.ids import SessionId
    from loopkit.session.salvage import salvage

    salvaged = salvage(asked.source, SessionId(asked.to))
    print(salvaged)
    print(f"In the totals of a home it counts beside {salvaged.source}, until one of them is moved away")
    return 0


if __name__ == "__main__":
    sys.exit(main())
