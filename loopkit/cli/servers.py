"""Commands about servers: ``serve`` and ``doctor``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from loopkit.cli.arguments import add_model, api_key, positive_number
from loopkit.cli.output import print_lines

if TYPE_CHECKING:
    from loopkit.cli.arguments import Commands

__all__ = ["add_commands"]


def add_commands(commands: Commands) -> None:
    """Add the commands ``serve`` and ``doctor`` to the parser."""
    parser = commands.add_parser("serve", help="run the embedded llama.cpp server until Ctrl-C")
    add_model(parser, url=False)
    parser.add_argument("--slots", type=positive_number, default=2, metavar="N", help="conversations cached at once (default: 2)")
    parser.add_argument("--context", type=positive_number, default=4096, metavar="N", help="tokens per slot (default: 4096)")
    parser.set_defaults(run=_serve)

    parser = commands.add_parser("doctor", help="check what a server supports for a warm cache; sends one tiny prompt twice")
    parser.add_argument("url", help="base URL of the server")
    parser.add_argument("--model", help="model to check, if the server has several")
    parser.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="file that contains the API key (default: use LOOPKIT_API_KEY)"
    )
    parser.set_defaults(run=_doctor)


def _serve(options: argparse.Namespace) -> int:
    from loopkit.server.embedded.foreground import serve_until_stopped

    return serve_until_stopped(options.model, slots=options.slots, context=options.context)


def _doctor(options: argparse.Namespace) -> int:
    from loopkit.server.opening import connect

    with connect(options.url, api_key=api_key(options.api_key_file), model=options.model) as server:
        print_lines([server, server.doctor()])
    return 0
