"""OpenTelemetry spans: what is a request and what only adds requests up, in both forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import loopkit as lk
from loopkit.logs.foreign.formats import otel

HERE = Path(__file__).parents[3] / "data" / "foreign" / "otel"


def test_a_span_of_an_agent_counts_nothing_twice() -> None:
    logs = lk.load(HERE / "export.jsonl")
    assert logs.usage["prompt_tokens"].sum() == 2000 + 2300 + 2500 + 1200


def test_spans_are_put_in_the_order_of_their_beginnings() -> None:
    usage = lk.load(HERE / "export.jsonl").usage
    assert usage["time"].dt.strftime("%H:%M:%S").tolist() == ["09:00:02", "09:00:12", "09:01:02", "09:00:08"]


def test_a_document_says_the_same_as_lines(tmp_path: Path) -> None:
    exports = [json.loads(line) for line in (HERE / "export.jsonl").read_bytes().splitlines()]
    whole = {"resourceSpans": [resource for export in exports for resource in export["resourceSpans"]]}
    (tmp_path / "x.json").write_text(json.dumps(whole, indent=2), encoding="utf-8")
    assert lk.load(tmp_path / "x.json").usage.equals(lk.load(HERE / "export.jsonl").usage)


def test_the_same_span_in_two_files_counts_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_bytes((HERE / "export.jsonl").read_bytes())
    assert len(lk.load(tmp_path).usage) == 4


@pytest.mark.parametrize("broken", [b'{"resourceSpans":7}', b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"spanId":1},2]}]}]}'])
def test_what_is_no_span_is_passed_over(tmp_path: Path, broken: bytes) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes((HERE / "export.jsonl").read_bytes() + broken + b"\n")
    assert lk.load(path).usage["prompt_tokens"].equals(lk.load(HERE / "export.jsonl").usage["prompt_tokens"])


def test_other_spans_are_no_log_of_requests() -> None:
    assert not otel.recognises(b'{"name":"GET /","attributes":{"http.method":"GET"}}')
