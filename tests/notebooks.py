"""Validate the notebooks strictly, several times: `python -m tests.notebooks [--times 5]`.

Each time under another time zone, hash seed and terminal width, which no output may depend on.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
ZONES = ("UTC", "Asia/Kathmandu", "America/St_Johns", "Pacific/Apia", "Europe/London")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.notebooks", description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    times = parser.parse_args().times
    for number in range(times):
        varied = {"TZ": ZONES[number % len(ZONES)], "PYTHONHASHSEED": str(number * 4241), "COLUMNS": str(60 + 40 * number)}
        print(f"{number + 1} of {times}: " + ", ".join(f"{name}={value}" for name, value in varied.items()), flush=True)
        # An IPython directory of its own: a person's profile must not change what a notebook gives.
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pytest", "-q", "--nbval", "--nbval-sanitize-with", "tests/nbval.cfg", "notebooks"]
            done = subprocess.run(command, cwd=ROOT, env={**os.environ, **varied, "IPYTHONDIR": folder}, check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
