"""A session of every format version that was ever written opens, verifies and replays to the requests that were sent."""

from __future__ import annotations

from pathlib import Path

from loopkit.ids import SessionId
from loopkit.session.session import Session
from loopkit.session.verify import verify
from tests.session.build import digests

HOME = Path(__file__).parents[2] / "data" / "golden"
FORMAT_1 = SessionId("format-1")
REQUESTS = [
    ("bfcecb42de52baccff21631ed5c3e84186740b2eb0ad6dcddb6b12c1796e77ec", 419),
    ("69bb102d234f23a1e620dbde12e8afda86102bcdd24bfe7ea583defa2b645c5e", 884),
    ("cc67792e90acfcfebeb2d23969fcfc60ec15540afb73ddbcbe7e1f40042f3b69", 972),
    ("a64f4564ce865aacd6f502fecebd12f203436468aeb8c4d231eb71975c4de8b1", 473),
]
FILES = {
    "0.baseline.json": "fb17dd0e13351ae8b5140a228b74c62c1611667224e6b57d1a7b8bee9c036a4f",
    "0.jsonl": "013e1afc92c07c058575b89af4837dc9624cf5c93eceb30fe334ab8afcf5ba96",
    "1.baseline.json": "39df252e08a5ef2d8dd5873499b6d9a64d232aef09d1140aaf1f92d0761f78bb",
    "1.jsonl": "581e395a181f2a9022ba7fc3ae6cd356e944bc7cb9a2f79d79ececb6b8a38a00",
}


def test_format_1_replays_to_the_requests_that_were_sent() -> None:
    session = Session.read(HOME, FORMAT_1)
    assert [(request.sha256, request.size) for request in session.requests()] == REQUESTS
    assert session.next_call() == 3
    assert session.pending == ()


def test_format_1_verifies() -> None:
    result = verify(HOME)
    assert (result.faults, result.sessions, result.records, result.requests) == ((), 1, 19, 4)


def test_format_1_is_the_file_that_was_committed() -> None:
    assert digests(HOME / "sessions" / FORMAT_1) == FILES


def test_what_the_model_wrote_is_byte_for_byte_in_the_request() -> None:
    session = Session.read(HOME, FORMAT_1)
    body = list(session.requests())[1].body
    assert rb'"arguments":"{ \"place\" : \"Lima\", \"n\": 1.10 }"}}, {"id":"b"' in body
    assert rb"\"place\":\"Cusco\",\"place\":\"Cusco\"" in body
    assert rb'"reasoning":"Two calls.\n","tool_calls":' in body
    assert rb'"signature":{"b": 1.10, "a": "\u00e9"}' in body
    assert b'"role":"assistant","content":null,' in body
