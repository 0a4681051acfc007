"""Traces of block hashes: their blocks as prompts, what loopkit exports among them, and files that are packed."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import loopkit as lk
from loopkit.contract.records import LogRecord
from loopkit.errors import LogError, TornLog
from tests.logs.make import assistant, end, kept, loss, start, usage, user, write_session

HERE = Path(__file__).parents[3] / "data" / "foreign"
SALT = b"sixteen bytes or more"


def test_a_prompt_is_its_blocks() -> None:
    blocks = [list(request.blocks or ()) for request in lk.load(HERE / "mooncake" / "conversation.jsonl").requests()]
    assert blocks == [[0, 1, 2], [0, 1, 3], [1 << 65]]
    shared = lk.cache.reuse(lk.load(HERE / "mooncake" / "conversation.jsonl"))
    assert shared["earlier_blocks"].tolist() == [0, 2, 0]


def test_times_count_from_the_beginning() -> None:
    moon = lk.load(HERE / "mooncake" / "conversation.jsonl").usage["time"]
    assert [each.timestamp() for each in moon] == [0, 1.5, 2]
    chats = lk.load(HERE / "bailian").usage["time"]
    assert chats[0].timestamp() == 61.114


def test_a_chat_is_a_session_and_a_second_try_goes_on_from_the_same_request() -> None:
    logs = lk.load(HERE / "bailian")
    assert logs.sessions["session"].tolist() == ["159", "160", "165", "164"]
    assert [len(list(part.requests())) for part in logs.parts if part.requests] == [3, 1, 1, 1]


def test_what_is_exported_loads_again(tmp_path: Path) -> None:
    logs = lk.load(HERE / "openai" / "requests.jsonl", errors="report")
    path = tmp_path / "trace.jsonl"
    assert logs.export_trace(path, SALT, block=16) == len(logs.usage)
    again = lk.load(path)
    assert set(again.sessions["source"]) == {"mooncake"}
    assert again.sessions["requests"].tolist() == logs.sessions["requests"].tolist()
    for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
        assert again.usage[name].equals(logs.usage[name])
    assert (again.usage["time"] - again.usage["time"].min()).equals(logs.usage["time"] - logs.usage["time"].min())
    first, second, *_ = (list(request.blocks or ()) for request in again.requests())
    shared = [a == b for a, b in zip(first, second, strict=False)]
    assert shared == sorted(shared, reverse=True)  # equal numbers stand for equal prefixes
    assert any(shared)
    twice = tmp_path / "twice.jsonl"
    assert again.export_trace(twice, SALT, block=16) == len(logs.usage)
    assert lk.load(twice).usage["prompt_tokens"].equals(logs.usage["prompt_tokens"])


def test_a_trace_is_judged_as_its_log_was(tmp_path: Path) -> None:
    """Tokens that are fewer than a block of hashes are lost all the same, and a new epoch is no loss."""
    first: list[LogRecord] = [start("a"), *kept(1, first=3000), user(8), assistant(9)]
    first += [usage(9, 2, 3100, 2972, expected=3004), loss(9, 2, expected=3004, cached=2972), end(10)]
    second = [start("a", 1, at=20), *kept(1, first=2000, at=21), user(30), assistant(31), usage(31, 2, 2100, 2004, expected=2004)]
    write_session(tmp_path / "home", "a", first, second)
    logs = lk.load(tmp_path / "home")
    logs.export_trace(tmp_path / "trace.jsonl", SALT)
    again = lk.load(tmp_path / "trace.jsonl")
    assert logs.usage["lost_tokens"].tolist() == again.usage["lost_tokens"].tolist() == [0, 32, 0, 0]
    assert set(again.sessions["engine"]) == {"llama.cpp"}
    assert len(again.sessions) == 1


def test_lengths_in_bytes_are_not_taken_for_tokens(tmp_path: Path) -> None:
    lk.load(HERE / "openai" / "bodies.jsonl").export_trace(tmp_path / "x.jsonl", SALT)
    assert lk.load(tmp_path / "x.jsonl").usage["prompt_tokens"].isna().all()


def test_a_packed_file_that_is_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    line = b'{"timestamp":1,"input_length":%d,"output_length":1,"hash_ids":[%d]}\n'
    packed = gzip.compress(b"".join(line % (number, number) for number in range(20_000)), 1)
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(TornLog, match=r"x\.jsonl\.gz:\d+: cannot decompress"):
        lk.load(path)
    logs = lk.load(path, errors="report")
    assert 0 < len(logs.usage) < 20_000
    assert [problem.kind for problem in logs.unread] == ["torn"]
    path.write_bytes(packed[:12] + b"?" + packed[13:])
    with pytest.raises(LogError, match="the format is unknown"):
        lk.load(path)


def test_a_packed_file_is_found_in_a_directory(tmp_path: Path) -> None:
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        (tmp_path / name).write_bytes((HERE / "bailian" / "chats.jsonl.gz").read_bytes())
    assert len(lk.load(tmp_path).usage) == 12
