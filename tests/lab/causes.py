"""The laboratory: every cause that the real server can show, done on purpose, and how many are named right.

    python -m tests.lab.causes [--rounds N] [--seed S] [--only NAME] [--keep FOLDER]

Each round does each of the injections once, with random conversations, and writes down what a loop would see. Another process
judges that. The table's rows are what was done, its columns what it was called; the last line is the count.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from loopkit.encoding import decode
from tests.lab import injections, recording
from tests.lab.talking import Lab, Truth

Key = tuple[str, int, int]
EARLY = ("template_rewrote", "retokenised")
ROOT = Path(__file__).parents[2]


class Result(NamedTuple):
    """What came of all rounds."""

    table: Counter[tuple[str, str]]
    right: int
    done: int
    invented: int
    faults: list[str]
    "Everything that is not as it should be, in words."


def run(rounds: int = 1, seed: int = 0, only: str | None = None, keep: Path | None = None) -> Result:
    """Do it all, and have it judged by another process."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = keep or Path(scratch)
        folder.mkdir(exist_ok=True)
        labs: dict[str, Lab] = {}
        for number in range(rounds):
            for injection in [*injections.ONE, *injections.TWO, *injections.NONE]:
                name = injection.__name__
                if only is not None and only != name:
                    continue
                lab = Lab(random.Random(f"{seed}/{number}/{name}"))
                injection(lab)
                labs[f"{number:03}-{name}"] = lab
                recording.write(folder / f"{number:03}-{name}.jsonl", lab.seen)
        command = [sys.executable, "-m", "tests.lab.judging", str(folder)]
        judged = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    return _result(labs, [decode(line, dict[str, Any]) for line in judged.splitlines()])


def _result(labs: dict[str, Lab], lines: list[dict[str, Any]]) -> Result:
    table: Counter[tuple[str, str]] = Counter()
    right = done = invented = 0
    faults: list[str] = []
    for line in lines:
        lab, key = labs[line["recording"]], (line["key"][0], line["key"][1], line["key"][2])
        place = f"{line['recording']} {key}"
        if not line["exact"]:
            faults.append(f"{place}: the count of its tokens is not the server's")
        truth, loss = lab.truth.get(key), line["loss"]
        if truth is None or not truth.causes:
            if loss is not None and truth is None:
                invented += 1
                table["nothing", loss["cause"]] += 1
                faults.append(f"{place}: nothing was done, and it is called {_told(loss)}")
            numbers = (line["expected"], line["reusable"], line["cached"])
            if truth is None and key[2] > 1 and len(set(numbers)) > 1:
                faults.append(f"{place}: expected, reusable and cached are {numbers}")
            continue
        done += 1
        named = (
            [] if loss is None else [loss["cause"], *([loss["evidence"]["also"]["cause"]] if "also" in loss["evidence"] else [])]
        )
        table[" + ".join(sorted(truth.causes)), " + ".join(sorted(named)) or "no loss"] += 1
        wrong = list(_wrong(truth, named, loss, line))
        right += not wrong
        faults += [f"{place}: {each}" for each in wrong]
    return Result(table, right, done, invented, faults)


def _wrong(truth: Truth, named: list[str], loss: dict[str, Any] | None, line: dict[str, Any]) -> Iterator[str]:
    if loss is None:
        yield f"{truth.causes} was done, and no loss is seen"
        return
    if sorted(named) != sorted(truth.causes):
        yield f"{truth.causes} was done, and it is called {_told(loss)}"
        return
    if truth.where is not None and not str(loss["location"]).startswith(truth.where):
        yield f"it points at {loss['location']}, and not at {truth.where}"
    if truth.byte is not None and loss["evidence"].get("byte") != truth.byte:
        yield f"it points at byte {loss['evidence'].get('byte')}, and not at {truth.byte}"
    early = any(_is_early(cause, loss["location"]) for cause in truth.causes)
    late = any(not _is_early(cause, loss["location"]) for cause in truth.causes)
    if early is not (line["reusable"] < line["expected"]) or late is not (line["cached"] < line["reusable"]):
        yield f"{truth.causes} cost {line['expected']} to {line['reusable']} before the server, and to {line['cached']} at it"


def _is_early(cause: str, where: str | None) -> bool:
    """Whether a cause costs tokens before they are at the server."""
    return (cause.endswith("_changed") or cause in EARLY) and where not in ("id_slot", "cache_prompt")


def _told(loss: dict[str, Any]) -> str:
    evidence = {name: value for name, value in loss["evidence"].items() if name not in ("counters", "rendered")}
    return f"{loss['cause']} ({loss['certainty']}, {loss['location']}): {evidence}"


def print_table(result: Result) -> None:
    print("| done | named | times |\n|---|---|---|")
    for (cause, named), times in sorted(result.table.items()):
        print(f"| {cause} | {named} | {times} |")
    print(f"{result.right} of {result.done} named right, {result.invented} invented")


def main() -> None:
    parser = argparse.ArgumentParser(description="Injects every cause of a lost cache, and counts those named right.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one injection, by name")
    parser.add_argument("--keep", type=Path, help="a folder for the recordings")
    asked = parser.parse_args()
    result = run(asked.rounds, asked.seed, asked.only, asked.keep)
    for fault in result.faults:
        print(fault, file=sys.stderr)
    print_table(result)
    sys.exit(bool(result.faults))


if __name__ == "__main__":
    main()
