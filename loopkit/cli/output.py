"""Printing: results on standard output, errors and warnings on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from loopkit.reprs import shown

__all__ = ["print_error", "print_lines", "print_text", "print_warning"]


def print_lines(lines: Iterable[object]) -> None:
    """Print each object on its own line."""
    for line in lines:
        print(line)


def print_text(text: str) -> None:
    """Print text from outside at once, with control characters replaced, because a terminal would obey them."""
    print(shown(text, len(text)), flush=True)


def print_error(error: object) -> None:
    """Print an error as one line on standard error."""
    text = f"loopkit: {error}"
    print(shown(text, len(text)), file=sys.stderr, flush=True)


def print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning as one line on standard error. If a progress bar is shown, the line appears above it."""
    from tqdm import tqdm

    tqdm.write(f"loopkit: {message}", file=sys.stderr)
