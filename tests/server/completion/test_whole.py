"""Answers that come at once, not as a stream."""

from __future__ import annotations

import pytest
from msgspec import Raw

from loopkit.contract.messages import Extra
from loopkit.errors import ContextExceeded, StreamCut
from loopkit.server.completion.assembly import parse_completion

URL = "http://host"


def test_a_whole_answer() -> None:
    body = b"""{"id":"r1","model":"m","system_fingerprint":"b1","choices":[{"index":0,"finish_reason":"tool_calls","message":{
      "role":"assistant","content":null,"refusal":null,"tool_calls":[
        {"index": 5, "id":"x","type":"function","function":{"name":"f","arguments":"{\\"n\\": 1.10}"}},
        {"id":"x","type":"function","function":{"name":"f","arguments":{"n": 1.10}}}]}}],"usage":{"prompt_tokens":5}}"""
    completion = parse_completion(body, URL, first_call=3)
    assert (completion.content, completion.finish_reason) == (None, "tool_calls")
    assert (completion.response_id, completion.model, completion.build) == ("r1", "m", "b1")
    assert bytes(completion.tool_calls or b"") == (
        b'[{"index":5,"id":"x","type":"function","function":{"name":"f","arguments":"{\\"n\\": 1.10}"}},'
        b'{"id":"call_4","type":"function","function":{"name":"f","arguments":"{\\"n\\":1.10}"}}]'
    )
    assert completion.extra == Extra(members={"refusal": Raw(b"null")})
    assert completion.usage.prompt_tokens == 5


@pytest.mark.parametrize("form", ["null", "[]"])
def test_no_calls_of_a_whole_answer_stay_as_they_came(form: str) -> None:
    completion = parse_completion(('{"choices":[{"message":{"content":"x","tool_calls":' + form + "}}]}").encode(), URL)
    assert bytes(completion.tool_calls or b"") == form.encode()


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"{}", b'{"choices":[]}', b'{"choices":[{"message":{"content":"\xff"}}]}', b"[DONE]"]
)
def test_a_whole_answer_that_is_none(body: bytes) -> None:
    with pytest.raises(StreamCut):
        parse_completion(body, URL)


@pytest.mark.parametrize("ending", ['"finish_reason":"stop"', '"finish_reason":null', '"index":0'])
@pytest.mark.parametrize("message", ["", '"message":null,', '"delta":null,'])
def test_a_whole_answer_without_a_message_is_none(message: str, ending: str) -> None:
    with pytest.raises(StreamCut, match="it has no message"):
        parse_completion(('{"choices":[{' + message + ending + "}]}").encode(), URL)


@pytest.mark.parametrize("reason", ["", ',"finish_reason":null'])
@pytest.mark.parametrize(
    ("message", "final"),
    [
        ("{}", False),
        ('{"role":"assistant","content":null,"tool_calls":[]}', False),
        ('{"content":"","reasoning_content":null}', False),
        ('{"content":[]}', False),
        ('{"content":" "}', True),
        ('{"content":[{"type":"text","text":"x"}]}', True),
        ('{"content":null,"reasoning_content":"So."}', True),
        ('{"content":"","reasoning":"So."}', True),
        ('{"tool_calls":[{"id":"x","type":"function","function":{"name":"f","arguments":"{}"}}]}', True),
    ],
)
def test_without_a_finish_reason_a_whole_answer_must_say_something(message: str, reason: str, final: bool) -> None:
    body = ('{"choices":[{"message":' + message + reason + "}]}").encode()
    if final:
        assert parse_completion(body, URL).finish_reason is None
    else:
        with pytest.raises(StreamCut, match="without a finish_reason"):
            parse_completion(body, URL)
    assert parse_completion(body.replace(reason.encode() + b"}]}", b',"finish_reason":"stop"}]}'), URL).finish_reason == "stop"


def test_an_error_in_a_whole_200() -> None:
    with pytest.raises(ContextExceeded) as caught:
        parse_completion(b'{"error":{"code":400,"type":"exceed_context_size_error","n_prompt_tokens":14429,"n_ctx":8192}}', URL)
    assert (caught.value.prompt_tokens, caught.value.context_size) == (14429, 8192)
