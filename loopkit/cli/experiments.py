"""Commands that measure on a server: ``demo`` and ``replay``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopkit.cli.arguments import add_model, api_key, positive_number
from loopkit.cli.output import print_error
from loopkit.errors import LogError

if TYPE_CHECKING:
    from loopkit.cache.prefixes.prompt_parts import Prompt
    from loopkit.cli.arguments import Commands
    from loopkit.session.session import Session

__all__ = ["add_demo", "add_replay"]


def add_demo(commands: Commands) -> None:
    """Add the command ``demo`` to the parser."""
    parser = commands.add_parser("demo", help="measure on a real server how many tokens a stable prefix saves")
    add_model(parser)
    parser.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="directory of the results (default: demo)")
    parser.add_argument("--turns", type=positive_number, default=8, metavar="N", help="number of questions (default: 8)")
    parser.set_defaults(run=_demo)


def add_replay(commands: Commands) -> None:
    """Add the command ``replay`` to the parser."""
    parser = commands.add_parser("replay", help="send a session's requests again, with changes, and measure what each one costs")
    text = "a session's directory, a recording, or another log that contains request bodies"
    parser.add_argument("session", type=Path, help=text)
    text = "changes to try, separated by commas, for example tools_shuffled,window(4) (default: live_system)"
    parser.add_argument("--variants", default="live_system", metavar="A,B", help=text)
    add_model(parser)
    parser.add_argument("--repeats", type=positive_number, default=1, metavar="N", help="runs of each variant (default: 1)")
    text = "directory of the results (default: replay)"
    parser.add_argument("--out", type=Path, default=Path("replay"), metavar="DIR", help=text)
    parser.set_defaults(run=_replay)


def _demo(options: argparse.Namespace) -> int:
    from loopkit import demo

    demo.run(options.out, model=options.model, url=options.url, turns=options.turns, api_key=api_key())
    return 0


def _replay(options: argparse.Namespace) -> int:
    from matplotlib.figure import Figure

    from loopkit import plot, replay
    from loopkit.server.opening import connect, serve

    table, picture = options.out / "compare.csv", options.out / "compare.png"
    for file in (table, picture):
        if file.exists():
            raise LogError(str(file), "the file exists already, and loopkit overwrites nothing", "Choose another --out")
    source = _source(options.session)
    variants = [name.strip() for name in options.variants.split(",") if name.strip()]
    slots, context = _room(source if isinstance(source, list) else source.requests(), options.model)
    finished: list[Any] = []  # after each run, the frame of all runs so far
    try:
        ours = connect(options.url, api_key=api_key()) if options.url else serve(options.model, slots=slots, context=context)
        with ours as server:
            frame = replay.compare(source, server, variants, options.repeats, home=options.out, on_run=finished.append)
    except KeyboardInterrupt:
        runs = finished[-1].groupby(["variant", "repeat"]).ngroups if finished else 0
        print_error(f"interrupted after {runs} of {(1 + len(variants)) * options.repeats} runs")
        if finished:
            finished[-1].to_csv(table, index=False)
            print_error(f"the finished runs are in {table}")
        if (options.out / "replays").is_dir():
            print_error(f'to load every answered request: loopkit.load("{options.out}")')
        raise
    frame.to_csv(table, index=False)
    figure = Figure(figsize=(9.5, 1.5 + 0.62 * frame["variant"].nunique()), layout="constrained")
    plot.compare(frame, ax=figure.subplots())
    figure.savefig(picture, dpi=150)
    print(replay.describe(replay.summary(frame)))
    print(f"Figure, table and logs: {options.out}/")
    return 0


def _room(requests: Any, model: str) -> tuple[int, int]:
    """Return how many slots the requests use, and a context size in tokens into which the longest request fits.

    The estimate is one token per byte for the tiny model, and one token per two bytes for others.
    """
    sizes = [(len(request.body or b""), request.slot or 0) for request in requests]
    longest = max((size for size, _ in sizes), default=0)
    return 1 + max((slot for _, slot in sizes), default=0), 1024 + (longest if model == "tiny" else longest // 2)


def _source(path: Path) -> Session | list[Prompt]:
    """Return the session in a directory, or the requests of a recording or another log."""
    from loopkit.ids import SessionId
    from loopkit.logs.loading import load
    from loopkit.session.layout import refuse_home
    from loopkit.session.session import Session

    if (path / "0.jsonl").exists():
        return Session.read(path.absolute().parent.parent, SessionId(path.absolute().name))
    refuse_home(path)
    return list(load(path).requests())
