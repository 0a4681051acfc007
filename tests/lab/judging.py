"""The other process: reads recordings and says what it makes of them. It cannot see what was done.

    python -m tests.lab.judging FOLDER

One line a request: what was expected, could be used again and was cached, and, where some of it was lost, the cause.
"""

from __future__ import annotations

import sys
from pathlib import Path

from loopkit.cache.losses.findings import diagnose
from loopkit.cache.losses.judge import expected_of, rendered_of
from loopkit.encoding import encode
from loopkit.engines.evidence.observation import Observation
from tests.lab import recording


def main(folder: Path) -> None:
    for path in sorted(folder.glob("*.jsonl")):
        requests = list(recording.read(path))
        losses = {id(loss.observation): loss for loss in diagnose(requests).losses}
        latest: dict[tuple[str | None, int], Observation] = {}
        for seen in requests:
            previous = latest.get((seen.session, seen.epoch))
            latest[seen.session, seen.epoch] = seen
            loss = losses.get(id(seen))
            rendered = None if previous is None else rendered_of(previous, seen)
            line = {
                "recording": path.stem,
                "key": [seen.session, seen.epoch, seen.request],
                "exact": seen.tokens is not None and seen.tokens.exact,
                "expected": expected_of(previous, seen).expected_tokens,
                "reusable": 0 if rendered is None else rendered.reusable,
                "cached": seen.usage.cached_tokens,
                "loss": None if loss is None else loss.diagnosis._asdict(),
            }
            sys.stdout.buffer.write(encode(line) + b"\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
