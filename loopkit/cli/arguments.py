"""Options that several commands share."""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from loopkit.errors import InvalidConfig, LoopkitError, ServerRefused, describe

if TYPE_CHECKING:
    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["Commands", "add_errors", "add_model", "add_paths", "api_key", "name_key", "natural_number", "positive_number"]


def _whole_number(least: int, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number; got {text!r}") from None
    if value < least:
        raise argparse.ArgumentTypeError(f"expected at least {least}; got {value}")
    return value


natural_number, positive_number = partial(_whole_number, 0), partial(_whole_number, 1)


def add_paths(parser: argparse.ArgumentParser) -> None:
    """Add the argument PATH to a parser: one or more logs of any kind."""
    parser.add_argument("path", nargs="+", type=Path, help="a home, a session's directory, a log file or a directory of logs")


def add_errors(parser: argparse.ArgumentParser, *, default: str = "raise") -> None:
    """Add the ``--errors`` option to a parser."""
    text = f"stop at the first log that cannot be read (raise), or report it and continue (report); default: {default}"
    parser.add_argument("--errors", choices=("raise", "report"), default=default, help=text)


def add_model(parser: argparse.ArgumentParser, *, url: bool = True) -> None:
    """Add the option ``--model`` (for the embedded server) and, if `url` is True, ``--url`` (for a running server)."""
    text = "model of the embedded server: smollm2, tiny, or the path of a GGUF file (default: smollm2)"
    parser.add_argument("--model", default="smollm2", help=text)
    if url:
        text = "use this running server instead of the embedded one; set its API key in LOOPKIT_API_KEY"
        parser.add_argument("--url", help=text)


def api_key(file: Path | None = None) -> str | None:
    """Return the API key from a file or, without a file, from ``LOOPKIT_API_KEY``; None if neither is given.

    The key itself is not an option, because other users of the machine can see command-line arguments.
    """
    if file is None:
        return os.environ.get("LOOPKIT_API_KEY") or None
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig("--api-key-file", f"{file} cannot be read: {describe(error)}") from error


def name_key(error: LoopkitError, name: str) -> None:
    """Replace the Python argument ``api_key=`` in an error message with the option or variable of the command line."""
    if isinstance(error, ServerRefused | InvalidConfig):
        error.then = error.then.replace("api_key=", name)
    if isinstance(error, InvalidConfig) and error.member == "api_key":
        error.member = name
