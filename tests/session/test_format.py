"""FORMAT.md says what is so: its example is a whole log, and its checking loop is run."""

from __future__ import annotations

import re
import zlib
from importlib.resources import files
from pathlib import Path
from typing import get_args

from loopkit.contract.baseline import Baseline
from loopkit.contract.recording import RecordedRequest, decode_recorded, encode_recorded
from loopkit.contract.records import LogRecord
from loopkit.encoding import encode
from loopkit.session.journal import body_of
from loopkit.session.order import Order
from loopkit.session.scan import read_log
from loopkit.session.verify import first_mismatch
from tests.session.build import chained

TEXT = files("loopkit.session").joinpath("FORMAT.md").read_text("utf-8")


def example() -> bytes:
    (block,) = re.findall(r"```jsonl\n(.*?)```", TEXT, re.DOTALL)
    assert isinstance(block, str)
    return block.encode()


def test_the_example_parses_and_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "0.jsonl"
    path.write_bytes(example())
    records: list[LogRecord] = []
    read_log(path, Order("lima", 0), records)
    assert chained([encode(record)[:-1] for record in records]) == example()
    assert first_mismatch(Baseline("Be brief.", ()), records) is None


def test_the_example_has_one_line_of_each_kind(tmp_path: Path) -> None:
    path = tmp_path / "0.jsonl"
    path.write_bytes(example())
    records: list[LogRecord] = []
    read_log(path, Order("lima", 0), records)
    assert sorted(type(record).__name__ for record in records) == sorted(kind.__name__ for kind in get_args(LogRecord))


def test_the_checking_loop_of_the_document_holds(tmp_path: Path) -> None:
    path = tmp_path / "0.jsonl"
    path.write_bytes(example())
    loop = re.search(r"    crc = 0\n(?:    .*\n)+", TEXT)
    assert loop is not None
    code = re.sub(r"^    ", "", loop.group(), flags=re.MULTILINE).replace('"0.jsonl"', repr(str(path)))
    exec(code, {"zlib": zlib})
    path.write_bytes(example().replace(b"Lima", b"Rome", 1))
    try:
        exec(code, {"zlib": zlib})
    except AssertionError:
        return
    raise AssertionError("the loop did not see a changed byte")


def test_every_member_of_every_record_is_named() -> None:
    for kind in (*get_args(LogRecord), RecordedRequest):
        (row,) = re.findall(rf"^\| `{kind.__struct_config__.tag}` \|.*$", TEXT, re.MULTILINE)
        for field in kind.__struct_encode_fields__:
            assert field == "time" or f"`{field}`" in row, (kind.__name__, field)


def test_the_line_of_a_recording_parses_and_round_trips() -> None:
    (line,) = re.findall(r"```json\n(.*\n)```", TEXT)
    record = decode_recorded(body_of(line.encode()) + b"}")
    assert chained([encode_recorded(record)[:-1]]) == line.encode()
    assert record.answered
