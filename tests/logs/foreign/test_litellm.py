"""Rows of gateways: JSON within strings, counts in three places, and what never reached a provider."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import loopkit as lk
from loopkit.logs.foreign.formats import litellm, openai_log

HERE = Path(__file__).parents[3] / "data" / "foreign" / "litellm"


def test_a_body_within_a_string_is_what_was_sent() -> None:
    bodies = [request.body for request in lk.load(HERE / "gateways.json").requests()]
    rows = json.loads((HERE / "gateways.json").read_bytes())
    assert [body.decode() for body in bodies[:2] if body] == [row["request_body"] for row in rows[:2]]
    assert bodies[2] == b'{"messages":[{"role":"user","content":"Hi."}]}'


def test_times_are_seconds_or_text() -> None:
    usage = lk.load(HERE / "spend.jsonl", errors="report").usage
    assert usage["time"].dt.strftime("%H:%M:%S.%f").tolist()[:2] == ["09:00:03.250000", "09:01:03.000000"]


def test_engines_are_the_providers() -> None:
    found = lk.load(HERE / "spend.jsonl", errors="report").sessions.set_index("session")["engine"]
    assert found.to_dict() == {"s.1": "anthropic", "s.0": "openai", "spend.0": "openai"}


def test_a_loss_without_bodies_says_what_is_not_known() -> None:
    [loss] = lk.load(HERE / "spend.jsonl", errors="report").cache_loss.to_dict("records")
    assert json.loads(loss["evidence"])["not_known"] == ["the bodies"]


@pytest.mark.parametrize(
    ("head", "known"),
    [
        (b'{"id":"x","input":[],"output":{},"model":"m"}', True),
        (b'[{"request_body":"{}","response_body":"{}"}]', True),
        (b'{"model":"m","messages":[]}', False),
        (b'{"input":"Hi","model":"m"}', False),
    ],
)
def test_rows_are_known_by_their_members(head: bytes, known: bool) -> None:
    assert litellm.recognises(head) is known
    assert known or openai_log.recognises(head)
