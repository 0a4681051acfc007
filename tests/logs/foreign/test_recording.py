"""Recordings of real clients on the real server, loaded: conversations told apart, losses and their causes to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import openai
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import loopkit as lk
from loopkit import record
from loopkit.encoding import decode
from loopkit.errors import LogError, TornLog
from loopkit.server.client import Server
from loopkit.server.opening import serve

SYSTEM = {"role": "system", "content": "You answer in one word. " * 20}
SAID = b'{"choices":[{"message":{"content":"Done."},"finish_reason":"stop"}],"usage":{"prompt_tokens":9}}'


class Talk:
    """A conversation of an agent that is not loopkit's."""

    def __init__(self, client: openai.OpenAI, name: str) -> None:
        self._client, self._name = client, name
        self.messages: list[Any] = [{**SYSTEM, "content": f"{name}: {SYSTEM['content']}"}]

    def ask(self, *, stream: bool = False) -> None:
        self.messages.append({"role": "user", "content": f"Question {len(self.messages)} of {self._name}."})
        if not stream:
            answer = self._client.chat.completions.create(model="tiny", messages=self.messages)
            text = answer.choices[0].message.content
        else:
            chunks = self._client.chat.completions.create(model="tiny", messages=self.messages, stream=True)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        self.messages.append({"role": "assistant", "content": text})


def client(server: Server, proxy: record.Proxy) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=server.api_key, max_retries=0)


@pytest.mark.server
def test_two_interleaved_conversations_and_an_edit_of_an_early_message(tmp_path: Path) -> None:
    with serve("tiny", slots=2) as server, record.proxy(server.url, tmp_path) as proxy, client(server, proxy) as http:
        a, b = Talk(http, "a"), Talk(http, "b")
        for number in range(4):
            a.ask(stream=number % 2 == 0)
            b.ask()
        b.messages[3]["content"] = b.messages[3]["content"].replace("Question", "Questiom")
        b.ask(stream=True)
        a.ask()
    logs = lk.load(tmp_path)
    assert logs.sessions["source"].tolist() == ["recorded"] * 2
    assert logs.sessions["engine"].tolist() == ["llama.cpp"] * 2
    assert logs.sessions["requests"].tolist() == logs.sessions["turns"].tolist() == [5, 5]
    ours, other = logs.sessions["session"]
    usage = logs.usage.set_index("session")
    assert usage.loc[ours, "lost_tokens"].tolist() == [0] * 5
    assert usage.loc[ours, "cached_tokens"].tolist()[1:] == usage.loc[ours, "expected_tokens"].tolist()[1:]
    assert usage.loc[ours, "expected_exact"].all()
    (loss,) = logs.cache_loss.to_dict("records")
    assert (loss["session"], loss["request"], loss["cause"], loss["certainty"]) == (
        other,
        5,
        "history_changed",
        "confirmed",
    )
    assert (loss["fixable_by"], loss["location"]) == ("client", "messages[3].content")
    evidence = decode(loss["evidence"])
    (part,) = (part for part in logs.parts if part.session == other)
    assert part.requests is not None
    bodies = [b"" if seen is None or seen.body is None else seen.body for seen in part.requests()]
    assert bodies[3][: evidence["previous_byte"] + 2].endswith(b"Question ")
    assert bodies[4][: evidence["byte"] + 2].endswith(b"Questiom ")
    messages = lk.load(tmp_path, content=True).messages
    assert messages[messages["session"] == ours]["content"].tolist() == [each["content"] for each in a.messages[:-1]]


@pytest.mark.server
def test_a_conversation_that_grows_evenly_is_not_taken_for_blocks(tiny: Server, tmp_path: Path) -> None:
    messages: list[Any] = [
        {"role": "system", "content": "You know the sky over the southern hemisphere, its stars and its nights."}
    ]
    with record.proxy(tiny.url, tmp_path) as proxy, client(tiny, proxy) as http:
        for number in range(4):
            messages.append({"role": "user", "content": f"Star {number} rises."})
            answer = http.chat.completions.create(model="tiny", messages=messages)
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})
    usage = lk.load(tmp_path).usage
    assert usage["cached_tokens"].tolist()[1:] == usage["expected_tokens"].tolist()[1:] == [120, 160, 200]


@pytest.mark.server
def test_a_clock_in_the_system_prompt_is_named(tiny: Server, tmp_path: Path) -> None:
    with record.proxy(tiny.url, tmp_path) as proxy, client(tiny, proxy) as http:
        talk = Talk(http, "a")
        for minute in range(3):
            talk.messages[0]["content"] = f"It is 07:3{minute}. " + SYSTEM["content"]
            talk.ask()
    logs = lk.load(tmp_path)
    assert logs.sessions["requests"].tolist() == [3]
    assert logs.cache_loss["cause"].tolist() == ["system_changed"] * 2
    assert [decode(each)["culprit"] for each in logs.cache_loss["evidence"]] == ["time"] * 2


@pytest.mark.server
def test_a_slot_that_another_conversation_took_is_named_with_it(tmp_path: Path) -> None:
    with serve("tiny", slots=1, cache_ram_mib=0) as server, record.proxy(server.url, tmp_path) as proxy:
        with client(server, proxy) as http:
            a, b = Talk(http, "a"), Talk(http, "b")
            for talk in (a, b, a):
                talk.ask()
    logs = lk.load(tmp_path)
    first, other = logs.sessions["session"]
    (loss,) = logs.cache_loss.to_dict("records")
    assert (loss["session"], loss["request"], loss["cause"], loss["certainty"]) == (first, 2, "slot_taken", "suspected")
    assert (loss["fixable_by"], loss["location"]) == ("server", f"session {other}, request 1")


def recording(home: Path, *bodies: Any) -> Path:
    transport = record.transport(home, httpx.MockTransport(lambda _: httpx.Response(200, content=SAID)))
    with httpx.Client(transport=transport) as http:
        for body in bodies:
            http.post("http://host/v1/chat/completions", json=body)
    path: Path = transport.path
    return path


def test_a_torn_tail_is_refused_and_what_stands_before_it_reported(tmp_path: Path) -> None:
    user = {"role": "user", "content": "Hi \u2028 é 😀."}
    path = recording(tmp_path, {"messages": [user]}, {"messages": [user, {"role": "assistant", "content": "D"}, user]})
    whole = path.read_bytes()
    assert len(lk.load(tmp_path).usage) == 2
    for data, line, rows in ((whole[:-9], 2, 1), (whole.replace(b"assistant", b"assistent"), 2, 1), (whole[5:], 1, 0)):
        path.write_bytes(data)
        with pytest.raises((TornLog, LogError), match=rf"{path.name}(:{line})?"):
            lk.load(path)
        logs = lk.load(path, errors="report")
        assert len(logs.usage) == rows
        assert len(logs.problems) >= 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_recording_is_refused_or_read_as_far_as_it_is_sound(data: st.DataObject, tmp_path: Path) -> None:
    user, said = {"role": "user", "content": "Hi é."}, {"role": "assistant", "content": "D"}
    path = recording(tmp_path, {"messages": [user]}, {"messages": [user, said, user]}, {"input": "x"})
    whole = path.read_bytes()
    at = data.draw(st.integers(0, 9_999)) * len(whole) // 10_000  # times in it are of different lengths
    path.write_bytes(whole[:at] + data.draw(st.binary(max_size=3)) + whole[at + data.draw(st.integers(0, 3)) :])
    sound = 3 if path.read_bytes().startswith(whole) else len(path.read_bytes()[:at].split(b"\n")) - 1
    if path.read_bytes() != whole:
        with pytest.raises((TornLog, LogError)):
            lk.load(path)
        assert len(lk.load(path, errors="report").usage) in (sound, 0)
    path.unlink()


def test_requests_without_a_whole_answer_are_counted_and_left_out(tmp_path: Path) -> None:
    answers = iter(
        [httpx.Response(500), httpx.Response(200, content=b'{"error":{"message":"no"}}'), httpx.Response(200, content=SAID)]
    )
    transport = record.transport(tmp_path, httpx.MockTransport(lambda _: next(answers)))
    with httpx.Client(transport=transport) as http:
        for _ in range(3):
            http.post("http://host/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}]})
    logs = lk.load(tmp_path, errors="report")
    assert len(logs.usage) == 1
    assert logs.usage["cached_tokens"].isna().all()
    assert logs.problems[["kind", "why", "affected"]].values.tolist() == [["left_out", "requests without a complete response", 2]]


def test_reuse_of_more_than_the_prompt_is_a_problem_and_no_negative_loss(tmp_path: Path) -> None:
    counts = b'"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":%d}}'
    said = [SAID.replace(b'"usage":{"prompt_tokens":9}', counts % cached) for cached in (8, 50)]
    answers = iter([*said, said[0]])
    transport = record.transport(tmp_path, httpx.MockTransport(lambda _: httpx.Response(200, content=next(answers))))
    with httpx.Client(transport=transport) as http:
        for _ in range(3):
            http.post("http://host/v1/chat/completions", json={"messages": [SYSTEM]})
    logs = lk.load(tmp_path)
    assert logs.usage["cached_tokens"].astype(object).tolist() == [8, pd.NA, 8]
    assert logs.usage["lost_tokens"].fillna(0).tolist() == [0, 0, 0]
    ((kind, line, why),) = logs.problems[["kind", "line", "why"]].values.tolist()
    assert (kind, line) == ("impossible_reuse", 2)
    assert why.startswith("cached tokens 50 are more than the prompt of 9")


def test_messages_of_every_api_have_role_and_text(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    chat = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "r"},
    ]
    messages = [
        {"role": "assistant", "content": [{"type": "text", "text": "t"}, {"type": "tool_use", "name": "f", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "r"}]},
    ]
    items = [
        {"type": "function_call", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "r"},
        7,
    ]
    path = recording(tmp_path, {"messages": chat}, {"messages": messages}, {"input": items})
    found = lk.load(path, content=True).messages[["role", "content"]].values.tolist()
    assert found == [
        *[["system", "s"], ["user", "u"], ["assistant", 'f({"a": 1})'], ["tool", "r"]],
        *[["assistant", 't\nf({"a":1})'], ["tool", "r"]],
        *[["assistant", "f({})"], ["tool", "r"], ["assistant", ""]],
    ]
