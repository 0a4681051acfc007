"""Neutralising leaves real text alone: `python -m tests.real_text` reads a megabyte and more of each kind from this machine.

The three names that are both HTML and tag are taken out before. Prints a row a kind; exit status 1 where a text was changed, or
where less than a megabyte of a kind lies about (CI installs Debian packages that bring it; of Markdown it takes what there is).
"""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from loopkit.contract.neutralise import neutralise
from tests.tagtext import GT, LT

MEGABYTE = 1_000_000
MOST = 5 * MEGABYTE
BOTH = re.compile(f"{LT}(/s|s|unk){GT}")
OF_MODELS = re.compile("gguf|llama|token|transformers|loopkit")
SHARE = [Path("/usr/share"), Path(sysconfig.get_path("purelib")), Path(sys.base_prefix) / "share"]
KINDS = {
    "Python": ([Path(sysconfig.get_path("stdlib"))], "*.py"),
    "HTML": (SHARE, "*.html"),
    "Markdown": ([*SHARE, Path("/usr/lib"), Path("/usr/local/lib")], "*.md"),
    "Rust": (SHARE, "*.rs"),
    "shell": ([Path("/usr/share/bash-completion"), *SHARE], "completions/*"),
    "JSON": (SHARE, "*.json"),
    "XML": (SHARE, "*.xml"),
}


def texts(roots: list[Path], pattern: str) -> Iterator[tuple[Path, str]]:
    seen: set[Path] = set()
    for root in roots:
        for path in root.rglob(pattern):
            if path.is_file() and not OF_MODELS.search(str(path.relative_to(root))) and path.resolve() not in seen:
                seen.add(path.resolve())
                yield path, BOTH.sub(r"(\1)", path.read_text("utf-8", errors="replace"))


def main() -> int:
    failed = False
    for kind, (roots, pattern) in KINDS.items():
        size = files = 0
        changed: list[str] = []
        for path, text in texts(roots, pattern):
            size, files = size + len(text), files + 1
            if neutralise(text) is not text:
                changed.append(path.name)
            if size >= MOST:
                break
        enough = size >= MEGABYTE or kind == "Markdown"
        print(f"{kind:9} {size:10,} characters in {files:5,} files, changed: {', '.join(changed) or 'none'}")
        failed |= bool(changed) or not enough
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
