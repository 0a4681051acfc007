"""Print the table of ratios and, last, one JSON line of them; exit status 1 where a bar is missed."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys

import tests.benchmarks as here
from tests.benchmarks.table import HEADER


def main() -> int:
    names = sorted(
        module.name.removeprefix("bench_") for module in pkgutil.iter_modules(here.__path__) if module.name[:6] == "bench_"
    )
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"which of: {', '.join(names)} (default: all)")
    parser.add_argument("--size", choices=("full", "small"), default="full")
    asked = parser.parse_args()
    for name in asked.rows:
        if name not in names:
            parser.error(f"no row {name!r}; there are {', '.join(names)}")
    print(HEADER)
    ratios: dict[str, float] = {}
    missed = False
    for name in asked.rows or names:
        for row in importlib.import_module(f"tests.benchmarks.bench_{name}").measure(small=asked.size == "small"):
            print(row.line(), flush=True)
            ratios[row.work] = round(row.value, 3)
            missed |= not row.holds
    print(json.dumps(ratios, ensure_ascii=False))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
