"""The time of `import loopkit`, warm, beside that of an interpreter that imports nothing."""

from __future__ import annotations

import subprocess
import sys

from tests.benchmarks.table import Row, interleaved


def measure(*, small: bool) -> list[Row]:
    """Medians of whole processes, run in turn."""

    def run(code: str) -> None:
        subprocess.run([sys.executable, "-c", code], check=True)

    with_it, without = interleaved(lambda: run("import loopkit"), lambda: run("pass"), 5 if small else 21)
    added = max(0.0, with_it - without)
    return [Row("import loopkit, warm, in s", f"{added * 1000:.1f} ms", "100 ms", added, 0.1)]
