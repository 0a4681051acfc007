"""The command line: one module for each group of commands."""

from loopkit.cli.main import main

__all__ = ["main"]
