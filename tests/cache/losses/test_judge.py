"""Causes from made evidence; field reports B01, B02, B05, B09 and B10 among them. Rules of one engine: ``tests/engines``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loopkit.cache.losses.findings import diagnose
from loopkit.cache.losses.judge import judge
from loopkit.contract.records import Usage
from loopkit.encoding import encode
from loopkit.engines.evidence.observation import Observation
from loopkit.errors import InvalidConfig
from tests.engines.observations import (
    A1,
    AFTER,
    BEFORE,
    HEAD,
    KEPT,
    U1,
    U2,
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


def changed(**members: Any) -> Observation:
    """The second request, where the first one's bytes are not what it begins with."""
    return second(10, body=body(U1, A1, U2, **members), tokens=None)


TABLE: list[Case] = [
    (
        "a system prompt that changed",
        first(),
        second(3, body=body(U1, A1, U2).replace(b"brief", b"short"), tokens=None),
        [],
        ("system_changed", "confirmed", "client", "messages[0].content"),
    ),
    ("tools that are new", first(), changed(tools=[{"a": 1}]), [], ("tools_changed", "confirmed", "client", "tools")),
    (
        "another model",
        replace(first(), body=body(U1, model="x")),
        changed(model="y"),
        [],
        ("model_changed", "confirmed", "client", "model"),
    ),
    (
        "an option of the template",
        replace(first(), body=body(U1, chat_template_kwargs={"a": 1})),
        changed(chat_template_kwargs={"a": 2}),
        [],
        ("options_changed", "confirmed", "client", "chat_template_kwargs.a"),
    ),
    (
        "an edited message",
        first(),
        second(3, body=body({**U1, "content": "Ha."}, A1, U2), tokens=None),
        [],
        ("history_changed", "confirmed", "client", "messages[1].content"),
    ),
    (
        "a sampling option loses nothing; the slot was taken",
        first(),
        second(10, body=body(U1, A1, U2, temperature=1), before=counters(50, 400)),
        [],
        ("slot_taken", "confirmed", "server", "slot 0"),
    ),
    (
        "another slot was asked for",
        replace(first(), body=body(U1, id_slot=0)),
        second(0, body=body(U1, A1, U2, id_slot=1)),
        [],
        ("options_changed", "confirmed", "client", "id_slot"),
    ),
    (
        "a date that the template puts in",
        first(tokens=view(("template", "30 Nov "), *HEAD, ("template", "]:"))),
        second(0, tokens=view(("template", "31 Nov "), *HEAD, ("template", "]:Done."))),
        [],
        ("template_rewrote", "confirmed", "template", "messages[0]"),
    ),
    (
        "what was written stands there in another form",
        first(),
        second(len(BEFORE) + 4, body=body(U1, {**A1, "content": "Done!"}, U2), tokens=AFTER),
        [],
        ("template_rewrote", "confirmed", "template", "messages[2].content"),
    ),
    (
        "as many bytes, in fewer tokens",
        replace(first(), usage=Usage(prompt_tokens=len(BEFORE), cached_tokens=0, completion_tokens=9)),
        second(len(BEFORE)),
        [],
        ("retokenised", "suspected", "template", "messages[2]"),
    ),
]


@pytest.mark.parametrize(("name", "previous", "now", "between", "wanted"), TABLE, ids=[row[0] for row in TABLE])
def test_table(name: str, previous: Observation, now: Observation, between: list[Observation], wanted: Wanted) -> None:
    check_diagnosis(previous, now, between, wanted)


def test_the_smaller_part_of_a_loss_stands_beside_the_larger() -> None:
    edited = view(("template", "["), ("messages[0].content", "Be brief." * 20), ("template", "][Ha.]:Done.][More.]:"))
    now = second(5, body=body({**U1, "content": "Ha."}, A1, U2), tokens=edited, before=counters(101, 400))
    found = judge(first(), now)
    assert (found.cause, found.location) == ("slot_taken", "slot 0")
    also = found.evidence["also"]
    assert (also["cause"], also["location"]) == ("history_changed", "messages[1].content")
    lost = KEPT - 5 if len(edited) > KEPT else len(edited) - 1 - 5
    reusable = 184
    assert also["lost_tokens"] == lost + 5 - reusable


def test_first_requests_and_shortfalls_are_nobodys() -> None:
    now = second(0)
    assert judge(None, now)[:3] == ("first_request", "confirmed", "nobody")
    assert judge(None, replace(now, epoch=2)).cause == "epoch_started"
    same = replace(first(), usage=Usage(prompt_tokens=len(BEFORE), cached_tokens=len(BEFORE) - 1))
    assert judge(first(), same).cause == "last_token"
    vllm = replace(second(160, engine="vllm"))
    assert judge(replace(first(), engine="vllm"), replace(vllm, usage=Usage(prompt_tokens=len(AFTER), cached_tokens=192)))[
        :3
    ] == (
        "granularity",
        "confirmed",
        "nobody",
    )
    short = Usage(prompt_tokens=300, cached_tokens=0)
    assert judge(replace(first(), engine="openai"), replace(second(0, engine="openai"), usage=short)).cause == "below_minimum"


@pytest.mark.parametrize("engine", ["llama.cpp", "vllm", "anthropic", "openai", None])
@pytest.mark.parametrize(
    "odd",
    [
        *(b"", b"null", b"[]", b"{}", b"{", b"\xff", b'{"messages":null}', b'{"messages":["a",1]}', b'{"input":"Hi"}'),
        *(b'{"messages":[],"messages":[]}', b'{"messages":' + b"[" * 5000),
    ],
)
def test_bodies_of_any_shape_are_judged(engine: str | None, odd: bytes) -> None:
    """What was recorded of others is anything; also where it is a strict extension, or the same again."""
    for one, two in ((odd, odd), (odd, odd + b" "), (odd, body(U1)), (body(U1), odd)):
        before = Observation(usage=Usage(prompt_tokens=5000, completion_tokens=9), body=one, engine=engine)
        found = diagnose([before, Observation(usage=Usage(prompt_tokens=5100, cached_tokens=0), body=two, engine=engine)])
        assert [loss.cached_tokens for loss in found.losses] == [0]


def test_b01_an_extended_body_is_never_called_the_clients_fault() -> None:
    before = Observation(usage=Usage(prompt_tokens=2000, cached_tokens=0, completion_tokens=1), body=body(U1), engine="llama.cpp")
    now = Observation(usage=Usage(prompt_tokens=2100, cached_tokens=0), body=body(U1, A1, U2), engine="llama.cpp")
    (loss,) = diagnose([before, now]).losses
    assert (loss.lost_tokens, loss.diagnosis.cause, loss.diagnosis.fixable_by) == (2000, "unexplained", "server")
    assert "client" in loss.diagnosis.evidence["ruled_out"]
    assert any("sliding window" in each for each in loss.diagnosis.evidence["possible"])


def test_b02_counts_alone_decide() -> None:
    assert diagnose([Observation(usage=Usage(prompt_tokens=25, cached_tokens=0), engine="llama.cpp")]).losses == ()


def test_b05_a_nonce_at_the_head_is_pointed_at() -> None:
    texts = [f"nonce={nonce} You are helpful. " + "x" * 500 for nonce in ("fa690", "36ee5")]
    first_body, second_body = (encode({"messages": [{"role": "system", "content": text}, U1]}) for text in texts)
    before = Observation(usage=Usage(prompt_tokens=600, completion_tokens=1), body=first_body, engine="llama.cpp")
    found = judge(before, Observation(usage=Usage(prompt_tokens=600, cached_tokens=0), body=second_body, engine="llama.cpp"))
    assert (found.cause, found.location, found.evidence["culprit"]) == ("system_changed", "messages[0].content", "nonce")
    assert found.evidence["byte"] == first_body.index(b"fa690")
    assert found.evidence["was"].startswith("fa690")
    assert found.evidence["now"].startswith("36ee5")


def test_b09_reasoning_that_a_template_drops_is_the_templates() -> None:
    call = {"role": "assistant", "content": "", "reasoning_content": "I think."}
    think = ("messages[2].reasoning_content", "I think." * 8)
    before = view(*HEAD, ("template", "]:"), think, ("template", "]["), ("messages[3].content", "12"), ("template", "]:"))
    now = view(*HEAD, ("template", "]:"), ("messages[4].content", "Done."), ("template", "]["), ("messages[5].content", "More."))
    shared = len(view(*HEAD)) + 2
    previous = Observation(
        usage=Usage(prompt_tokens=len(before), completion_tokens=6), body=body(U1, call), tokens=before, engine="llama.cpp"
    )
    found = judge(
        previous,
        Observation(
            usage=Usage(prompt_tokens=len(now), cached_tokens=shared), body=body(U1, call, A1, U2), tokens=now, engine="llama.cpp"
        ),
    )
    assert (found.cause, found.fixable_by, found.location) == ("template_rewrote", "template", "messages[2].reasoning_content")
    assert found.evidence["token"] == shared


def test_b10_another_sessions_request_is_blamed_only_where_its_log_is_known() -> None:
    plain = {"after": None, "tokens": None}
    before, now = first(**plain), second(9, before=None, tokens=None)
    between = replace(other(), server=None)
    known = diagnose([before, between, now]).losses[-1].diagnosis
    assert (known.cause, known.certainty, known.location) == ("slot_taken", "suspected", "session b, request 7")
    (alone,) = diagnose([before, now]).losses
    assert (alone.diagnosis.cause, alone.diagnosis.certainty) == ("unexplained", "unexplained")
    elsewhere = replace(between, server="http://other")
    assert diagnose([before, elsewhere, now]).losses[-1].diagnosis.cause == "unexplained"


def test_one_event_is_one_row_until_a_healthy_read() -> None:
    grown = first(tokens=None, after=None)
    lost = second(0, tokens=None, before=None)
    again = replace(lost, request=3)
    healthy = replace(lost, request=4, usage=Usage(prompt_tokens=len(AFTER), cached_tokens=len(AFTER) - 1, completion_tokens=1))
    found = diagnose([grown, lost, again, healthy, replace(lost, request=5)])
    assert [loss.observation.request for loss in found.losses] == [2, 3, 5]
    assert [loss.observation.request for loss in found.events] == [2, 5]


def test_coverage_is_said() -> None:
    found = diagnose([first(), second(10, before=counters(101, 400)), Observation(usage=Usage(prompt_tokens=5))])
    assert found.coverage == (2 / 3, 2 / 3, 1.0)
    assert diagnose([]).coverage == (None, None, None)
    assert "slot_taken 183 tokens" in repr(found)
    assert "slot_taken" in found._repr_html_()


@pytest.mark.parametrize("time", ["2026-11-30T07:31:05", "yesterday", ""])
def test_a_time_that_is_no_moment_is_named(time: str) -> None:
    usages = Usage(prompt_tokens=3000), Usage(prompt_tokens=3300, cached_tokens=0)
    requests = [Observation(usage=usage, engine="openai", time=time) for usage in usages]
    with pytest.raises(InvalidConfig, match=r"Observation\.time"):
        diagnose(requests)
