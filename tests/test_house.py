"""Rules of the house that no linter knows: what tracked files hold, and what they must not."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.tagtext import BAR, GT, LT

ROOT = Path(__file__).parent.parent


def tracked() -> list[Path]:
    """Files that git tracks, or where there is no git those that are there."""
    try:
        names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    except (OSError, subprocess.CalledProcessError):
        folders = ("loopkit", "tests", "notebooks", "data")
        names = [str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def texts() -> list[tuple[str, str]]:
    found = []
    for path in tracked():
        try:
            found.append((str(path.relative_to(ROOT)), path.read_bytes().decode("utf-8")))
        except UnicodeDecodeError:
            continue
    return found


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [f"{name}:{text.count(chr(10), 0, match.start()) + 1}" for name, text in texts() for match in pattern.finditer(text)]


def test_no_control_tag_is_spelled_out() -> None:
    names = "start_of_turn|end_of_turn|start_header_id|INST"
    tag = re.compile(rf"{LT}{re.escape(BAR)}[a-z_]+{re.escape(BAR)}{GT}|{LT}/?(?:{names}){GT}")
    assert tag.search(f"{LT}{BAR}im_end{BAR}{GT}"), "the pattern finds what it must"
    assert lines_with(tag) == []


def test_no_file_is_over_400_lines() -> None:
    long = {str(path.relative_to(ROOT)): len(path.read_bytes().splitlines()) for path in tracked() if path.suffix == ".py"}
    # errors.py has one small class for each error: the tree stays in one file
    allowed = {"loopkit/errors.py": 450}
    assert {name: count for name, count in long.items() if name[:8] == "loopkit/" and count > allowed.get(name, 400)} == {}


def test_types_are_told_with_their_article() -> None:
    by_hand = [place for place in lines_with(re.compile(r"\ban? \{type\(")) if place.startswith("loopkit/")]
    assert by_hand == [], "use errors.kind_of: an int, None"


def test_no_address_stands_among_the_versions() -> None:
    lines = (ROOT / ".ci" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: str(path.stem))
def test_notebooks_are_saved_as_run_from_top_to_bottom(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert not any(output["output_type"] == "error" for cell in cells for output in cell["outputs"])


def test_every_skip_stands_in_the_list_of_quarantines() -> None:
    listed = (ROOT / "tests" / "QUARANTINES.md").read_text(encoding="utf-8")
    skip = re.compile(r"pytest\.(?:mark\.)?(?:skip|skipif|xfail)\b|pytest\.importorskip")
    for name, text in texts():
        if name.startswith("tests/") and name != "tests/test_house.py" and skip.search(text):
            assert name in listed, f"{name} skips: say why in tests/QUARANTINES.md"
