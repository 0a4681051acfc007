"""Entry point of the command line: parse, run one command, and turn errors into one line and an exit status.

Exit status 0 is success, 1 a loopkit error, 2 a wrong command line and 130 Ctrl-C. ``check`` also returns 2 if a log cannot be
read.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence

from loopkit import __version__
from loopkit.cli import experiments, logs, memory, recording, servers
from loopkit.cli.arguments import name_key
from loopkit.cli.output import print_error, print_warning
from loopkit.errors import LoopkitError, describe

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        The command and its options. By default, the arguments of the process (``sys.argv``).

    Returns
    -------
    int
        0 for success, 1 for an error or a failed check, 2 if ``check`` cannot read a log, 130 for Ctrl-C.

    Examples
    --------
    >>> main(["verify", "no-such-home"])                                        # the reason goes to standard error
    1
    """
    options = _parser().parse_args(arguments)
    with warnings.catch_warnings():
        warnings.showwarning = print_warning
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    try:
        return int(options.run(options))
    except LoopkitError as error:
        name_key(error, "--api-key-file" if getattr(options, "api_key_file", None) else "LOOPKIT_API_KEY")
        print_error(error)
        return 1
    except BrokenPipeError:  # the program that reads the output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print_error(f"{error.filename or 'the system'}: {describe(error)}")
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="loopkit", description="Run, resume and study LLM agent loops whose prompt cache stays warm."
    )
    parser.add_argument("--version", action="version", version=f"loopkit {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    experiments.add_demo(commands)
    servers.add_commands(commands)
    recording.add_commands(commands)
    logs.add_commands(commands)
    experiments.add_replay(commands)
    memory.add_commands(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
