"""The ``record`` command: a proxy that records an agent's requests."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from loopkit.cli.arguments import natural_number

if TYPE_CHECKING:
    from loopkit.cli.arguments import Commands

__all__ = ["add_commands"]


def add_commands(commands: Commands) -> None:
    """Add the command ``record`` to the parser."""
    parser = commands.add_parser("record", help="forward an agent's requests to its server and record them, until Ctrl-C")
    parser.add_argument("--url", required=True, help="base URL of the agent's server; the agent's API key is forwarded")
    parser.add_argument("--home", type=Path, default=Path("runs"), metavar="DIR", help="write to DIR/recordings (default: runs)")
    parser.add_argument(
        "--port", type=natural_number, default=0, metavar="N", help="listen on this port of 127.0.0.1 (default: a free one)"
    )
    parser.set_defaults(run=_record)


def _record(options: argparse.Namespace) -> int:
    from loopkit.record import proxy

    stops = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)  # in every thread, so that sigwait below receives them
    with proxy(options.url, options.home, port=options.port) as recorder:
        lines = (f"url   {recorder.url}", f"for   {recorder.upstream}", f"file  {recorder.path}", "Press Ctrl-C to stop.")
        print("\n".join(lines), flush=True)
        signal.sigwait(stops)
    print(recorder)
    return 1 if recorder.missed else 0
