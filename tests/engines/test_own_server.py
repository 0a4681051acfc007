"""Servers that one runs oneself, of any engine: restarts, restored slots, truncated prompts."""

from __future__ import annotations

import pytest

from loopkit import engines
from loopkit.cache.losses.expected import expect
from loopkit.contract.records import Usage
from loopkit.engines.evidence.observation import Counters, Observation
from tests.engines.observations import (
    HEAD,
    KEPT,
    Case,
    Wanted,
    check_diagnosis,
    counters,
    first,
    second,
    view,
)

TABLE: list[Case] = [
    (
        "counters went back",
        first(),
        second(0, before=counters(None, 7)),
        [],
        ("server_restarted", "confirmed", "server", "counters"),
    ),
    (
        "it has read nothing",
        first(after=None),
        second(0, before=counters(None, 0)),
        [],
        ("server_restarted", "confirmed", "server", "counters"),
    ),
    (
        "it has held nothing, and counts nothing",
        first(),
        second(0, before=Counters(slots=(None, None))),
        [],
        ("server_restarted", "suspected", "server", "slots"),
    ),
    ("another build", first(build="1"), second(0, build="2"), [], ("server_changed", "confirmed", "server", "build")),
    (
        "another model behind the address",
        first(model="x"),
        second(0, model="y"),
        [],
        ("server_changed", "confirmed", "server", "model"),
    ),
    (
        "put back from a file",
        first(),
        second(0, before=counters(None, 0), restored=KEPT),
        [],
        ("restored_without_checkpoints", "confirmed", "server", "restore"),
    ),
    (
        "put back from a file, and used in part",
        first(),
        second(39, before=counters(KEPT, 0), restored=KEPT),
        [],
        ("restored_without_checkpoints", "confirmed", "server", "restore"),
    ),
    (
        "used in part, but of a file older than the session, whose tokens may not be those of the prompt",
        first(),
        second(39, before=counters(40, 0), restored=40),
        [],
        ("restored_without_checkpoints", "suspected", "server", "restore"),
    ),
    (
        "all used that was put back, of a file older than the session",
        first(),
        second(40, before=counters(40, 0), restored=40),
        [],
        ("server_restarted", "confirmed", "server", "counters"),
    ),
    (
        "all used that was put back, and nothing else is known",
        first(after=None),
        second(40, before=counters(40, 900), restored=40),
        [],
        ("unexplained", "unexplained", "server", None),
    ),
    (
        "fewer tokens than the prompt has",
        first(),
        second(3, tokens=view(*HEAD, ("template", "]:Done.][More.]:" + "x" * 300))),
        [],
        ("server_truncated", "confirmed", "server", "prompt"),
    ),
]


@pytest.mark.parametrize(("name", "previous", "now", "between", "wanted"), TABLE, ids=[row[0] for row in TABLE])
def test_table(name: str, previous: Observation, now: Observation, between: list[Observation], wanted: Wanted) -> None:
    check_diagnosis(previous, now, between, wanted)


@pytest.mark.parametrize(
    ("name", "flag", "path", "last_token"),
    [
        ("llama.cpp", None, None, True),
        ("vllm", "--enable-prompt-tokens-details", "/version", True),
        ("sglang", "--enable-cache-report", "/server_info", True),
        ("ollama", None, "/api/version", False),
    ],
)
def test_facts_of_each_server(name: str, flag: str | None, path: str | None, last_token: bool) -> None:
    engine = engines.find(name)
    assert (engine.hosted, engine.retention, engine.retentions, engine.cache_write_seconds()) == (False, None, {}, None)
    assert (engine.cached_tokens_flag, engine.version_path, engine.processes_last_token) == (flag, path, last_token)


@pytest.mark.parametrize("name", ["sglang", "ollama", None])
def test_only_bounds_are_known(name: str | None) -> None:
    before, now = Usage(prompt_tokens=1000, completion_tokens=30), Usage(prompt_tokens=1100, cached_tokens=768)
    assert expect(before, now, name) == (896, False, 0, "granularity")
    assert engines.find(name).kept(before) == (1000, 128, False)
