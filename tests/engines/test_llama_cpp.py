"""llama.cpp: slots, the host cache, checkpoints, context shift."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loopkit.cache.losses.judge import judge
from loopkit.contract.records import Usage
from loopkit.engines.evidence.observation import Counters, Observation
from loopkit.engines.evidence.tokens import TokenView
from tests.engines.observations import (
    A1,
    AFTER,
    BEFORE,
    ELSEWHERE,
    KEPT,
    SHARES_HALF,
    U1,
    U2,
    WRITTEN,
    Case,
    Wanted,
    body,
    check_diagnosis,
    counters,
    first,
    other,
    second,
    view,
)

TABLE: list[Case] = [
    (
        "the slot holds something else",
        first(),
        second(0, before=counters(101, 400)),
        [],
        ("slot_taken", "confirmed", "server", "slot 0"),
    ),
    (
        "by whom is known",
        first(),
        second(0, before=counters(101, 400)),
        [other()],
        ("slot_taken", "confirmed", "server", "session b, request 7"),
    ),
    (
        "pinned, and empty",
        first(),
        second(0, before=counters(0, 400, other=90)),
        [other(slot=1)],
        ("pinned_empty_slot", "confirmed", "server", "slot 0"),
    ),
    (
        "pinned, empty, and nobody was there",
        first(),
        second(0, before=counters(0, 300)),
        [],
        ("pinned_empty_slot", "suspected", "server", "slot 0"),
    ),
    (
        "unpinned, and the slot is empty",
        replace(first(), slot=None),
        replace(second(0, before=counters(0, 400)), slot=None),
        [],
        ("evicted", "suspected", "server", "slot 0"),
    ),
    (
        "a branch that shares half",
        first(),
        second(182, before=counters(208, 600, host=64)),
        [other(SHARES_HALF)],
        ("host_cache_rule", "confirmed", "server", "session b, request 7"),
    ),
    (
        "the same, where nobody knows of a host cache",
        first(),
        second(182, before=counters(208, 600, host=None)),
        [other(SHARES_HALF)],
        ("host_cache_rule", "suspected", "server", "session b, request 7"),
    ),
    (
        "the host cache should have had it",
        first(),
        second(1, before=counters(136, 600, host=64)),
        [other(ELSEWHERE)],
        ("evicted", "confirmed", "server", "host cache"),
    ),
    (
        "there is no host cache",
        first(),
        second(1, before=counters(136, 600, host=0)),
        [other(ELSEWHERE)],
        ("slot_taken", "confirmed", "server", "session b, request 7"),
    ),
    (
        "the host cache gave it back to a memory that could not take it all",
        first(),
        second(len(BEFORE) - 4, before=counters(136, 600, host=64)),
        [other(ELSEWHERE)],
        ("no_checkpoint", "confirmed", "server", "memory"),
    ),
    (
        "who it was is not known; what the host cache gave back ends at a checkpoint",
        first(),
        second(len(BEFORE) - 4 - 1, before=counters(136, 600, host=64)),
        [],
        ("no_checkpoint", "suspected", "server", "memory"),
    ),
    (
        "a branch, and no host cache",
        first(),
        second(182, before=counters(208, 600, host=0)),
        [other(SHARES_HALF)],
        ("slot_taken", "confirmed", "server", "session b, request 7"),
    ),
    (
        "slots are not shown, and others were answered",
        first(after=Counters(read=300, written=0)),
        second(0, before=Counters(read=700, written=9)),
        [],
        ("slot_taken", "suspected", "server", "slot 0"),
    ),
    (
        "it held it all the time, while others were answered elsewhere",
        first(),
        second(0, before=counters(KEPT, 900)),
        [],
        ("no_checkpoint", "suspected", "server", "memory"),
    ),
    (
        "the slot held it all the time, and nobody else was answered",
        first(),
        second(0, after=counters(KEPT, 300 + len(AFTER) + WRITTEN)),
        [],
        ("no_checkpoint", "confirmed", "server", "memory"),
    ),
    (
        "as many tokens, but another was answered before they were counted",
        first(before=counters(0, 0), after=counters(KEPT, 300)),
        second(0, after=counters(KEPT, 300 + len(AFTER) + WRITTEN)),
        [],
        ("no_checkpoint", "suspected", "server", "memory"),
    ),
    (
        "as many tokens, but others were answered, one of them there",
        first(),
        second(0, before=counters(KEPT, 900)),
        [other()],
        ("slot_taken", "suspected", "server", "session b, request 7"),
    ),
    ("it held it when the request was sent", first(), second(0), [], ("no_checkpoint", "suspected", "server", "memory")),
    (
        "it held it then, and answered another before",
        first(),
        second(0, after=counters(KEPT, 999)),
        [],
        ("slot_taken", "confirmed", "server", "slot 0"),
    ),
    (
        "it held it then, and another was answered in another slot",
        first(),
        second(0, before=counters(KEPT, 300, other=5), after=counters(KEPT, 999, other=600)),
        [],
        ("no_checkpoint", "suspected", "server", "memory"),
    ),
    (
        "it held it then, and by the times another was answered there",
        first(),
        second(0, time="2026-11-30T07:31:05.000000Z", elapsed_ms=900.0),
        [other(time="2026-11-30T07:31:04.200000Z")],
        ("slot_taken", "suspected", "server", "session b, request 7"),
    ),
    (
        "it held it then, and the other was answered before",
        first(),
        second(0, time="2026-11-30T07:31:05.000000Z", elapsed_ms=700.0),
        [other(time="2026-11-30T07:31:04.200000Z")],
        ("no_checkpoint", "suspected", "server", "memory"),
    ),
    (
        "all used that was put back, where another had the slot: the host cache is not looked at",
        first(),
        second(40, before=counters(40, 900, host=64), restored=40),
        [other(ELSEWHERE)],
        ("slot_taken", "confirmed", "server", "session b, request 7"),
    ),
    (
        "dropped while it wrote",
        first(after=counters(150, 300), context_size=KEPT),
        second(0, before=counters(150, 300)),
        [],
        ("context_shifted", "confirmed", "server", "slot 0"),
    ),
    (
        "dropped, or another's, where the context's size is not known",
        first(after=counters(150, 300)),
        second(0, before=counters(150, 300)),
        [],
        ("context_shifted", "suspected", "server", "slot 0"),
    ),
    (
        "another's, for the context was not full",
        first(after=counters(150, 300), context_size=KEPT + 1),
        second(0, before=counters(150, 300)),
        [],
        ("slot_taken", "confirmed", "server", "slot 0"),
    ),
    (
        "another's, who is known",
        first(after=counters(150, 300)),
        second(0, before=counters(150, 300)),
        [other()],
        ("slot_taken", "confirmed", "server", "session b, request 7"),
    ),
]


@pytest.mark.parametrize(("name", "previous", "now", "between", "wanted"), TABLE, ids=[row[0] for row in TABLE])
def test_table(name: str, previous: Observation, now: Observation, between: list[Observation], wanted: Wanted) -> None:
    check_diagnosis(previous, now, between, wanted)


HEAD_ALONE = view(("template", "["), ("messages[0].content", "Be brief." * 3))


BRANCH = view(("template", "["), ("messages[0].content", "Be brief." * 8 + "And something else. " * 12))


@pytest.mark.parametrize(
    ("between", "rule"),
    [
        ([SHARES_HALF, ELSEWHERE], "not saved"),
        ([ELSEWHERE, HEAD_ALONE], "not looked up"),
        ([ELSEWHERE, BRANCH], "moved"),
        ([ELSEWHERE], None),
    ],
)
def test_the_rule_of_the_host_cache_is_told_with_its_shares(between: list[TokenView], rule: str | None) -> None:
    last = other(between[-1]).slot_tokens
    found = judge(first(), second(0, before=counters(last, 900, host=64)), [other(each) for each in between])
    assert found.cause == ("host_cache_rule" if rule else "evicted")
    thresholds = found.evidence["thresholds"]
    assert (thresholds["rule"] or "").startswith(rule or "")
    assert 0 <= thresholds["kept_when_taken"] <= 1
    assert (thresholds["kept_when_taken"] >= 0.5) is (rule == "not saved")
    assert (thresholds["kept_when_back"] >= 0.5) is (rule == "not looked up")


def test_an_entry_of_little_use_is_not_loaded() -> None:
    edited = view(("template", "["), ("messages[0].content", "Be brief." * 4 + "Edited." + "Be brief." * 20))
    now = second(
        1, body=body(U1, A1, U2).replace(b"brief", b"short"), tokens=edited, before=counters(len(ELSEWHERE), 900, host=64)
    )
    now = replace(now, usage=Usage(prompt_tokens=len(edited), cached_tokens=1))
    found = judge(first(), now, [other(ELSEWHERE)])
    assert (found.cause, found.evidence["also"]["cause"]) == ("system_changed", "host_cache_rule")
    assert found.evidence["also"]["evidence"]["thresholds"]["rule"].startswith("not loaded")
