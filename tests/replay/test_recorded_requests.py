"""Requests of other logs, sent again: whose cache each goes on from, and what a server needs changed in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from loopkit import record, replay
from loopkit.cache.prefixes.prompt_parts import Prompt
from loopkit.encoding import sha256
from loopkit.errors import InvalidConfig, LogError
from loopkit.logs.loading import load
from loopkit.replay.recorded_requests import recorded, survey
from loopkit.replay.variants import EditableRequest, variant_of
from loopkit.server.client import Server
from loopkit.server.detection import Detected
from loopkit.server.opening import serve
from loopkit.server.transport.connection import Wire
from tests.loop.scripted_loops import begin, done, scripted

SYSTEM = "Answer in one word. " * 20


def body(*said: str, **members: Any) -> bytes:
    """As another client writes it: messages first, spaces behind commas, escapes."""
    messages = [{"role": "system", "content": SYSTEM}]
    messages += [{"role": "assistant" if at % 2 else "user", "content": text} for at, text in enumerate(said)]
    return json.dumps({"messages": messages, "model": "other/large", "temperature": 0.10, **members}).encode()


def server(engine: str | None, model: str | None) -> Server:
    return Server(Wire("http://127.0.0.1:9", timeout=30), Detected(engine, None, model))


def adapted(sent: bytes, to: Server) -> bytes:
    (one,) = recorded([Prompt(body=sent)], to)
    assert one.request.size == len(one.request.body)
    assert one.request.sha256 == sha256(one.request.body)
    return one.request.body


def test_a_body_is_changed_only_where_the_server_could_not_take_it() -> None:
    plain = body("Hé.", max_tokens=7, id_slot=1)
    assert adapted(plain, server("llama.cpp", "tiny")) == plain
    assert adapted(plain, server("vllm", None)) == plain.replace(b', "id_slot": 1', b"")
    assert adapted(plain, server("vllm", "m")) == plain.replace(b', "id_slot": 1', b"").replace(b'"other/large"', b'"m"')
    streamed = body("Hé.", stream=True, stream_options={"include_usage": False, "x": 1})
    given = b'{"include_usage": false, "x": 1}'
    assert adapted(streamed, server("llama.cpp", "tiny")) == streamed.replace(given, b'{"include_usage":true,"x":1}')
    reporting = body("Hé.", stream=True, stream_options={"include_usage": True})
    assert adapted(reporting, server("llama.cpp", "tiny")) == reporting
    for odd in (b"[1]", b"{", b'{"n":1,"n":2}'):
        assert adapted(odd, server("llama.cpp", "tiny")) == odd
    for options in ("x", [1], 5, None):
        streamed = body("Hé.", stream=True, stream_options=options)
        wanted = streamed if options is not None else streamed.replace(b"null", b'{"include_usage":true}')
        assert adapted(streamed, server("llama.cpp", "tiny")) == wanted


def test_a_variant_that_fails_at_the_last_request_sends_none() -> None:
    def late(sent: EditableRequest) -> EditableRequest:
        if sent.number == 3:
            raise RuntimeError("too late")
        return sent._replace(members={**sent.members, "seed": b"1"})

    prompts = [Prompt(body=body("Hé."))] * 3
    with pytest.raises(RuntimeError, match="too late"):
        survey(list(prompts), server("llama.cpp", "tiny"), [variant_of(late)])


def test_what_cannot_be_sent_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="request 2 has no body"):
        list(recorded([Prompt(body=b"{}"), Prompt(tokens=[1])], server(None, None)))
    for other in (body("Hé."), None, "runs/sessions/a"):
        with pytest.raises(InvalidConfig, match=r"requests: item 1 is (a bytes|None|a str)"):
            list(recorded([other], server(None, None)))  # type: ignore[list-item]
    with pytest.raises(LogError, match="counts without bodies"):
        replay.run([], server("llama.cpp", "tiny"))


@pytest.mark.server
def test_what_holds_requests_and_is_none_says_how_to_give_them(tmp_path: Path) -> None:
    with scripted(done(40, 0, 3)) as (server, script), begin(server, tmp_path) as loop:
        loop.ask("One.")
        wrong: list[tuple[Any, str]] = [
            (str(tmp_path), "requests: expected requests; got a str. Give a session, such as loop.session, or"),
            (tmp_path, "Path. Give a session"),
            (loop, "requests: expected requests; got a Loop"),
            (None, "requests: expected requests; got None"),
        ]
        for given, said in wrong:
            with pytest.raises(InvalidConfig) as of_run:
                replay.run(given, server)
            with pytest.raises(InvalidConfig) as of_compare:
                replay.compare(given, server, "live_system")
            assert said in str(of_run.value) == str(of_compare.value)
        several: Any = ["clock_in_system"]
        with pytest.raises(
            InvalidConfig, match=r"^variant: expected a variant; got a list\. Give a name or a function; `compare`"
        ):
            replay.run(loop.session, server, several)
        for variants in (5, [several], None):
            with pytest.raises(InvalidConfig, match=r"^variants?: expected (a variant|variants); got (an int|a list|None)"):
                replay.compare(loop.session, server, variants)  # type: ignore[arg-type]
        assert len(script.requests) == 1


def test_what_a_server_takes_and_is_no_json_by_the_letter_is_replayed(tiny: Server, tmp_path: Path) -> None:
    prompts = [Prompt(body="\ufeff".encode() + body("Hé.", max_tokens=2))] * 2
    usage = replay.run(prompts, tiny, home=tmp_path).usage
    assert usage["cached_tokens"].iloc[1] == usage["prompt_tokens"].iloc[1] - 1


@pytest.mark.server
def test_foreign_bodies_are_sent_as_they_are_and_predicted_and_measured_agree(tiny: Server, tmp_path: Path) -> None:
    said = ["One?", "One.", "Two?", "Two.", "Three?"]
    bodies = [body(*said[: 2 * turn + 1], max_tokens=turn + 1, id_slot=1) for turn in range(3)]
    logs = replay.run([Prompt(body=each) for each in bodies], tiny, home=tmp_path)
    usage = logs.usage
    assert usage["request_sha256"].tolist() == [sha256(each) for each in bodies]
    assert usage["completion_tokens"].tolist() == [1, 2, 3]  # each with its own limit
    assert usage["cached_tokens"].tolist() == usage["reusable_tokens"].tolist()  # what was written now is not what follows
    assert usage["expected_tokens"].tolist() == [0, *usage["prompt_tokens"].tolist()[:2]]
    assert usage["expected_exact"].tolist() == [True, False, False]
    assert usage["lost_tokens"].tolist() == [0, 0, 0]
    assert logs.sessions["parent"].isna().all()


@pytest.mark.server
def test_conversations_that_alternate_are_judged_each_by_its_own_last_request(tmp_path: Path) -> None:
    said = ["One?", "One.", "Two?", "Two.", "Three?"]
    with serve("tiny", slots=1, cache_ram_mib=0) as one_slot:
        prompts = [
            Prompt(body=body(*(name + text for text in said[: 2 * turn + 1]), id_slot=0), session=name)
            for turn in range(2)
            for name in ("a", "b")
        ]
        logs = replay.run(prompts, one_slot, home=tmp_path)
        assert logs.usage["shortfall"].tolist()[:2] == ["first_request"] * 2
        assert logs.cache_loss["request"].tolist() == [3, 4]
        assert logs.cache_loss["cause"].tolist() == ["slot_taken"] * 2
        assert logs.cache_loss["location"].tolist() == ["session b, request 2", "session a, request 3"]
        again = replay.run([prompt for prompt in prompts if prompt.session == "a"], one_slot, home=tmp_path)
        assert again.usage["lost_tokens"].tolist() == [0, 0]
        assert again.sessions["parent"].tolist() == ["a"]


@pytest.mark.server
def test_requests_of_a_session_can_be_replayed_without_it(tiny: Server, tmp_path: Path) -> None:
    with begin(tiny, tmp_path, system=SYSTEM) as loop:
        for number in range(3):
            loop.ask(f"Question {number}.")
    logs = replay.run(loop.session.requests(), tiny, home=tmp_path)
    assert logs.usage["lost_tokens"].tolist() == [0, 0, 0]
    assert logs.usage["request_sha256"].tolist() == [request.sha256 for request in loop.session.requests()]
    assert logs.sessions["parent"].tolist() == ["s"]


def test_a_slot_that_could_not_be_emptied_is_said(tmp_path: Path) -> None:
    with scripted(done(40, 0, 3)) as (without_slots, _):
        with pytest.warns(UserWarning, match="find part of its prompt in the cache: slot 1 could not be erased: .*"):
            logs = replay.run([Prompt(body=body("One?", stream=True, id_slot=1))], without_slots, home=tmp_path)
    assert logs.usage["prompt_tokens"].tolist() == [40]


@pytest.mark.server
def test_what_was_recorded_of_another_client_is_replayed_and_asked_for_its_usage(tiny: Server, tmp_path: Path) -> None:
    assert tiny._child is not None
    bodies = [body(*said, max_tokens=6, stream=True) for said in (["One."], ["One.", "Done.", "Two."])]
    headers = {"Authorization": f"Bearer {tiny._child.key}", "Content-Type": "application/json"}
    with httpx.Client(transport=record.transport(tmp_path), headers=headers) as client:
        for each in bodies:
            assert client.post(f"{tiny.url}/v1/chat/completions", content=each).is_success
    usage = replay.run(load(tmp_path).requests(), tiny, home=tmp_path).usage
    asked = b'{"stream_options":{"include_usage":true},'  # for a stream that would report none
    assert usage["request_sha256"].tolist() == [sha256(asked + each[1:]) for each in bodies]
    assert usage["lost_tokens"].tolist() == [0, 0]
    prompt, written = (usage[name].tolist()[0] for name in ("prompt_tokens", "completion_tokens"))
    assert usage["cached_tokens"].tolist()[1] == prompt + written - 1
