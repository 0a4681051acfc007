"""Every cause from made evidence; field reports B01, B02, B05, B09, B10 and B20 among them."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest

from loopkit import engines
from loopkit.cache.losses.expected import estimated_block, expect
from loopkit.cache.losses.findings import diagnose
from loopkit.cache.losses.judge import judge
from loopkit.contract.records import Usage
from loopkit.encoding import encode
from loopkit.engines.evidence.observation import Counters, Observation
from loopkit.engines.evidence.tokens import Run, TokenView
from loopkit.errors import InvalidConfig

U1, A1, U2 = ({"role": role, "content": text} for role, text in (("user", "Hi."), ("assistant", "Done."), ("user", "More.")))
SYSTEM = {"role": "system", "content": "Be brief."}


def body(*messages: Any, **members: Any) -> bytes:
    return encode({**members, "messages": [SYSTEM, *messages]})


def view(*parts: tuple[str, str]) -> TokenView:
    """A prompt of one-byte tokens, given as labels and texts."""
    text = "".join(each for _, each in parts)
    runs, at = [], 0
    for label, each in parts:
        runs.append(Run(label, at, at + len(each.encode())))
        at += len(each.encode())
    return TokenView(array("i", list(text.encode())), text, array("i", range(at + 1)), tuple(runs), exact=True)


HEAD = (("template", "["), ("messages[0].content", "Be brief." * 20), ("template", "]["), ("messages[1].content", "Hi."))
BEFORE = view(*HEAD, ("template", "]:"))
AFTER = view(
    *HEAD,
    ("template", "]:"),
    ("messages[2].content", "Done."),
    ("template", "]["),
    ("messages[3].content", "More."),
    ("template", "]:"),
)
WRITTEN = 6  # "Done." and its end
KEPT = len(BEFORE) + WRITTEN - 1


def counters(
    held: int | None, total: int, *, build: str | None = "b1", host: int | None = 0, other: int | None = None
) -> Counters:
    return Counters(slots=(held, other), read=total, cached=0, written=0, build=build, host_cache_mib=host)


def first(**more: Any) -> Observation:
    usage = Usage(prompt_tokens=len(BEFORE), cached_tokens=0, completion_tokens=WRITTEN)
    known: dict[str, Any] = {"tokens": BEFORE, "after": counters(KEPT, 300), **more}
    return Observation(usage=usage, session="a", request=1, slot=0, body=body(U1), engine="llama.cpp", **known)


def second(cached: int, **more: Any) -> Observation:
    usage = Usage(prompt_tokens=len(AFTER), cached_tokens=cached, completion_tokens=WRITTEN)
    known: dict[str, Any] = {
        "body": body(U1, A1, U2),
        "tokens": AFTER,
        "before": counters(KEPT, 300),
        "engine": "llama.cpp",
        **more,
    }
    return Observation(usage=usage, session="a", request=2, slot=0, **known)


def other(tokens: TokenView | None = None, **more: Any) -> Observation:
    size = 100 if tokens is None else len(tokens)
    usage = Usage(prompt_tokens=size, cached_tokens=0, completion_tokens=1)
    return Observation(usage=usage, session="b", request=7, tokens=tokens, **{"slot": 0, **more})


def changed(**members: Any) -> Observation:
    """The second request, where the first one's bytes are not what it begins with."""
    return second(10, body=body(U1, A1, U2, **members), tokens=None)


ELSEWHERE = view(("template", "["), ("messages[0].content", "Something else." * 9))
SHARES_HALF = view(*HEAD[:3], ("messages[1].content", "Quite another question."))

TABLE: list[tuple[str, Observation, Observation, list[Observation], tuple[str, str, str | None, str | None]]] = [
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
        "too little was written to say that it is not kept",
        replace(first(after=None, tokens=None), engine="vllm", usage=Usage(prompt_tokens=4100, completion_tokens=31)),
        replace(second(0, before=None, engine="vllm", tokens=None), usage=Usage(prompt_tokens=5000, cached_tokens=4096)),
        [],
        ("unexplained", "unexplained", None, None),
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
        "all used that was put back, where another had the slot: the host cache is not looked at",
        first(),
        second(40, before=counters(40, 900, host=64), restored=40),
        [other(ELSEWHERE)],
        ("slot_taken", "confirmed", "server", "session b, request 7"),
    ),
    (
        "all used that was put back, and nothing else is known",
        first(after=None),
        second(40, before=counters(40, 900), restored=40),
        [],
        ("unexplained", "unexplained", "server", None),
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
    (
        "fewer tokens than the prompt has",
        first(),
        second(3, tokens=view(*HEAD, ("template", "]:Done.][More.]:" + "x" * 300))),
        [],
        ("server_truncated", "confirmed", "server", "prompt"),
    ),
    (
        "an engine that keeps prompts alone",
        replace(first(after=None, tokens=None), engine="vllm", usage=Usage(prompt_tokens=4100, completion_tokens=700)),
        replace(second(0, before=None, engine="vllm", tokens=None), usage=Usage(prompt_tokens=5000, cached_tokens=4096)),
        [],
        ("generation_not_cached", "suspected", "server", "completion"),
    ),
]


@pytest.mark.parametrize(("name", "previous", "now", "between", "wanted"), TABLE, ids=[row[0] for row in TABLE])
def test_table(
    name: str,
    previous: Observation,
    now: Observation,
    between: list[Observation],
    wanted: tuple[str, str, str | None, str | None],
) -> None:
    found = judge(previous, now, between)
    assert (found.cause, found.certainty, found.fixable_by) == wanted[:3], found.evidence
    assert wanted[3] is None or str(found.location).startswith(wanted[3])
    assert encode(found.evidence), "evidence is plain JSON"


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


def hosted(engine: str, cached: int, *, minutes: int = 1, **more: Any) -> tuple[Observation, Observation]:
    """Two requests at a provider, so many minutes apart, whose bodies extend."""
    before = Observation(
        usage=Usage(prompt_tokens=5000, completion_tokens=50), engine=engine, body=body(U1), time="2026-11-30T07:00:00.000000Z"
    )
    time = f"2026-11-30T{7 + minutes // 60:02}:{minutes % 60:02}:00.000000Z"
    known: dict[str, Any] = {"body": body(U1, A1, U2), "time": time, "elapsed_ms": 1000.0, **more}
    return before, Observation(usage=Usage(prompt_tokens=5100, cached_tokens=cached), engine=engine, **known)


@pytest.mark.parametrize(
    ("requests", "wanted"),
    [
        (hosted("anthropic", 0, minutes=10), ("expired", "suspected", "provider")),
        (hosted("anthropic", 0, body=body(U1, *[A1, U2] * 12)), ("lookback", "confirmed", "client")),
        (hosted("openai", 0), ("routed_elsewhere", "suspected", "provider")),
        (hosted("openai", 2048), ("evicted", "suspected", "provider")),
        (hosted("openai", 0, elapsed_ms=90_000.0), ("concurrent_first_write", "suspected", "client")),
    ],
)
def test_providers(requests: tuple[Observation, Observation], wanted: tuple[str, str, str]) -> None:
    assert judge(*requests)[:3] == wanted


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
    for one, other in ((odd, odd), (odd, odd + b" "), (odd, body(U1)), (body(U1), odd)):
        before = Observation(usage=Usage(prompt_tokens=5000, completion_tokens=9), body=one, engine=engine)
        found = diagnose([before, Observation(usage=Usage(prompt_tokens=5100, cached_tokens=0), body=other, engine=engine)])
        assert [loss.cached_tokens for loss in found.losses] == [0]


def test_a_providers_verdict_wins_and_ours_is_kept() -> None:
    for verdict, (cause, mendable) in {word: found for each in engines.ENGINES for word, found in each.verdicts.items()}.items():
        before, now = hosted("anthropic", 0, minutes=1, verdict=verdict)
        found = judge(before, now)
        assert (found.cause, found.certainty, found.fixable_by) == (cause, "confirmed", mendable)
        assert found.evidence["ours"]["cause"] == "routed_elsewhere"
    before, now = hosted("anthropic", 0, body=body({**U1, "content": "Ha."}, A1, U2), verdict="messages_changed")
    found = judge(before, now)
    assert (found.cause, found.location) == ("history_changed", "messages[1].content")
    assert "ours" not in found.evidence
    assert judge(*hosted("anthropic", 0, verdict="unavailable")).cause == "routed_elsewhere"


# field reports


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


def test_b20_a_shortfall_of_a_block_is_no_loss() -> None:
    before, now = Usage(prompt_tokens=8702, cached_tokens=6592), Usage(prompt_tokens=9155, cached_tokens=6592)
    assert expect(before, now, "vllm", block=1648).lost_tokens == 0
    assert expect(before, now, "vllm", block=16).lost_tokens > 0
    assert estimated_block([1648, 6592, 4944]) == 1648


# many requests


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


def test_a_block_is_told_to_diagnose_as_to_expect() -> None:
    usages = Usage(prompt_tokens=1000), Usage(prompt_tokens=1300, cached_tokens=512)
    requests = [Observation(usage=usage, engine="vllm") for usage in usages]
    assert [loss.expected_tokens for loss in diagnose(requests).losses] == [992]
    assert [loss.expected_tokens for loss in diagnose(requests, block=100).losses] == [1000]
    assert not diagnose(requests, block=512).losses, "all of the one block that there is"


@pytest.mark.parametrize("time", ["2026-11-30T07:31:05", "yesterday", ""])
def test_a_time_that_is_no_moment_is_named(time: str) -> None:
    usages = Usage(prompt_tokens=3000), Usage(prompt_tokens=3300, cached_tokens=0)
    requests = [Observation(usage=usage, engine="openai", time=time) for usage in usages]
    with pytest.raises(InvalidConfig, match=r"Observation\.time"):
        diagnose(requests)


def test_an_engine_that_keeps_prompts_alone_is_one_finding_a_session() -> None:
    counts = [(100, 0, 40), (160, 96, 20), (230, 160, 40), (300, 224, 9), (350, 0, 9)]
    usages = [Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=written) for prompt, cached, written in counts]
    requests = [Observation(usage=usage, engine="vllm", session="a", request=at) for at, usage in enumerate(usages, 1)]
    found = diagnose(requests).losses
    assert [(loss.observation.request, loss.diagnosis.cause, loss.lost_tokens) for loss in found] == [
        (2, "generation_not_cached", 32),
        (5, "unexplained", 288),  # of the prompt alone
    ]
    later = expect(usages[1], usages[2], "vllm", completions_kept=False)
    assert later == (160, True, 0, "generation_not_cached")
    assert expect(usages[1], usages[2], "vllm").lost_tokens == 16
    other = [replace(each, session="b") for each in requests[:2]]
    assert [loss.observation.session for loss in diagnose([*requests[:2], *other]).losses] == ["a", "b"]
