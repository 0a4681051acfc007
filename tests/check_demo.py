"""Hold a demo's output to what the README says of it: `python -m tests.check_demo DIR`."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(out: Path) -> None:
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    kept, broken = summary["kept"], summary["broken"]
    assert set(kept) == set(broken) == {"prompt_tokens", "cached_tokens", "read_tokens", "lost_tokens", "prompt_ms", "requests"}
    assert summary["verified"] is True
    assert kept["lost_tokens"] == 0, kept
    assert broken["read_tokens"] >= 5 * kept["read_tokens"], (kept, broken)
    assert kept["requests"] == broken["requests"] == 8
    for name in ("prefix_reuse.png", "usage.csv", "cache_loss.csv", "epochs.csv"):
        assert (out / name).stat().st_size > 100, name
    assert (out / "prefix_reuse.png").read_bytes().startswith(b"\x89PNG")
    print(f"demo: processed {broken['read_tokens'] / kept['read_tokens']:.1f} times as many tokens when broken; kept lost none")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
