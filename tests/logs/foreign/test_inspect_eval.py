"""Inspect's logs, written by Inspect itself with its mock model and read through it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import loopkit as lk
from loopkit.contract.records import Usage
from loopkit.errors import InvalidConfig, TornLog
from loopkit.logs.foreign.formats import inspect_eval

LOG = Path(__file__).parents[3] / "data" / "foreign" / "inspect" / "talk.eval"


def test_a_cause_names_the_member_of_the_logged_request() -> None:
    [loss] = lk.load(LOG, errors="report").cache_loss.to_dict("records")
    assert (loss["cause"], loss["certainty"], loss["location"]) == ("system_changed", "confirmed", "messages[0].content")


def test_messages_are_those_of_the_requests() -> None:
    found = lk.load(LOG, content=True).messages
    assert found["content"].tolist()[:4] == ["You are A.", "One.", "Well.", "Two."]


@pytest.mark.parametrize(
    ("input", "cached", "written", "total", "prompt"),
    [
        (25, 75, 0, 108, 100),
        (1568, 1024, None, 1576, 1568),
        (30, None, None, 38, 30),
        (10, 0, 5000, 5018, 5010),
        (25, 75, 0, 33, 100),
    ],
)
def test_the_total_says_whether_the_input_has_the_cached_tokens_in_it(
    input: int, cached: int | None, written: int | None, total: int, prompt: int
) -> None:
    counts = SimpleNamespace(input_tokens=input, output_tokens=8, total_tokens=total, reasoning_tokens=None)
    counts.input_tokens_cache_read, counts.input_tokens_cache_write = cached, written
    expected = Usage(prompt_tokens=prompt, cached_tokens=cached, cache_write_tokens=written, completion_tokens=8)
    assert inspect_eval._usage(counts) == expected


def test_without_inspect_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "inspect_ai.log", None)
    with pytest.raises(InvalidConfig, match=r"inspect_ai: it is not installed.* pip install inspect_ai"):
        lk.load(LOG)


def test_a_damaged_log_is_a_fault_and_no_traceback(tmp_path: Path) -> None:
    whole = LOG.read_bytes()
    path = tmp_path / "x.eval"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TornLog, match=r"x\.eval:1: inspect_ai cannot read the file"):
        lk.load(path)
    logs = lk.load(path, errors="report")
    assert [problem.kind for problem in logs.unread] == ["torn"]


def test_another_archive_is_no_log() -> None:
    assert not inspect_eval.recognises(b"PK\x03\x04" + bytes(26) + b"word/document.xml")
