"""Request logs with bodies: what is sent stays byte for byte what it was, and causes name the byte."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import loopkit as lk
from loopkit.errors import TornLog
from loopkit.logs.foreign.formats import openai_log, recognise
from loopkit.logs.foreign.log_file import first_member_names
from loopkit.logs.foreign.logged_exchanges import response_facts
from loopkit.logs.foreign.text_source import TextLine, TextSource

HERE = Path(__file__).parents[3] / "data" / "foreign" / "openai"


def written(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def row(body: bytes, prompt: int, cached: int, **members: Any) -> bytes:
    usage = {"prompt_tokens": prompt, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": cached}}
    response = {"choices": [{"finish_reason": "stop"}], "usage": usage, "timings": {}, **members}
    return b'{"body":%b,"response":%b}' % (body, json.dumps(response).encode())


def test_a_cause_names_the_byte_that_differs() -> None:
    logs = lk.load(HERE / "requests.jsonl", errors="report")
    [loss] = logs.cache_loss.to_dict("records")
    evidence = json.loads(loss["evidence"])
    assert (loss["cause"], loss["certainty"], loss["fixable_by"]) == ("system_changed", "confirmed", "client")
    assert loss["location"] == "messages[0].content"
    assert (evidence["was"][0], evidence["now"][0]) == ("A", "a")
    bodies = [request.body for request in logs.requests() if request.session == "requests.1"]
    assert bodies[2] is not None
    assert bodies[2][evidence["byte"] :].startswith(b'a."}')


def test_a_line_told_twice_is_one_request_and_the_same_id_with_another_body_two(tmp_path: Path) -> None:
    first, second = (b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % text for text in (b"Hi", b"Ho"))
    path = written(tmp_path / "x.jsonl", *(row(body, 9, 0, id="chatcmpl-0") for body in (first, first, second)))
    assert lk.load(path).usage["prompt_tokens"].tolist() == [9, 9]


def test_bytes_of_a_body_are_those_of_the_file(tmp_path: Path) -> None:
    body = b'{ "model" : "m",\t"seed":1.10, "messages": [ {"role":"user","content":"\\u00e9 \xc3\xa9"} ] }'
    path = written(tmp_path / "x.jsonl", body, b'{"body":%b,"model":"m"}' % body)
    seen = [request.body for request in lk.load(path).requests()]
    assert seen == [body, body]
    text = json.dumps({"request": body.decode(), "model": "m"}).encode()
    assert [request.body for request in lk.load(written(tmp_path / "y.jsonl", text)).requests()] == [body]


def test_what_a_log_added_is_no_part_of_the_body() -> None:
    bodies = [json.loads(request.body or b"") for request in lk.load(HERE / "bodies.jsonl").requests()]
    assert [list(body) for body in bodies] == [["model", "messages"]] * 2
    usage = lk.load(HERE / "bodies.jsonl").usage
    assert usage["cached_tokens"].isna().all()
    assert usage["lost_tokens"].isna().all()


def test_counts_that_leave_the_cached_ones_out_are_added_up() -> None:
    logs = lk.load(HERE / "uncached.jsonl")
    assert logs.usage["prompt_tokens"].tolist() == [5010, 5312, 5408, 1224]
    assert logs.usage["time"].dt.strftime("%H:%M:%S.%f")[1] == "09:01:00.500000"
    assert json.loads(logs.cache_loss["evidence"][0])["idle_seconds"] == 400


@pytest.mark.parametrize(
    "data",
    [
        b'[\n{"model":"m","messages":[]},\n{"model":"n",\n"messages":[]}\n]\n',
        b'[{"model":"m","messages":[]},{"model":"n","messages":[]}]',
        b'\xef\xbb\xbf{\n  "model": "m",\n  "messages": []\n}\r\n\n{\n  "model": "n",\n  "messages": []\n}\n',
    ],
)
def test_an_array_or_values_over_several_lines_are_read_too(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    source = TextSource(path, errors="raise")
    assert [json.loads(line.data)["model"] for line in source.json_values()] == ["m", "n"]
    assert [data[line.offset :].startswith(line.data) for line in source.json_values()] == [True, True]
    logs = lk.load(path)
    assert logs.usage["model"].tolist() == ["m", "n"]
    assert [json.loads(request.body or b"")["model"] for request in logs.requests()] == ["m", "n"]


def test_a_document_that_is_cut_off_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'{\n "model": "m",\n "messages": []\n}\n{\n "model": "n",\n "messages": [')
    with pytest.raises(TornLog, match=r"x\.json:5: "):
        lk.load(path)
    assert lk.load(path, errors="report").usage["model"].tolist() == ["m"]


@pytest.mark.parametrize(
    ("head", "known"),
    [
        (b'{"model":"m","input":"Hi"}', True),
        (b'{"request":{"messages":[{"role":"us', True),
        (b'{"request":"{\\"messages\\":[]}","response":null}', True),
        (b'{"request":"/index.html","status":200}', False),
        (b'{"messages":[{"role":"user"}]}', False),
        (b'{"text":"\\"model\\": \\"messages\\""}', False),
        (b"not JSON", False),
    ],
)
def test_a_log_is_known_by_its_members(head: bytes, known: bool) -> None:
    assert openai_log.recognises(head) is known


def test_only_the_members_of_the_first_object_count() -> None:
    assert first_member_names(b' [ {"a\\"b": {"c": 1}, "d": "}"}, {"e": 1}]') == {'a\\"b', "d"}


@pytest.mark.parametrize(
    ("response", "provider", "engine"),
    [
        (b'{"timings":{"cache_n":1,"prompt_n":2}}', None, "llama.cpp"),
        (b'{"system_fingerprint":"fp_44709d6fcb"}', None, "openai"),
        (b'{"usage":{"input_tokens":1,"cache_read_input_tokens":2}}', None, "anthropic"),
        (b'{"usage":{"prompt_tokens":1}}', None, None),
        (b"{}", "Azure", "openai"),
        (b"{}", "somebody", None),
        (b"no JSON", None, None),
    ],
)
def test_the_engine_is_what_the_log_names_or_the_answer_shows(response: bytes, provider: str | None, engine: str | None) -> None:
    facts = response_facts(TextSource(Path("x"), errors="raise"), TextLine(b"", 1, 0), response, provider=provider)
    assert facts is not None
    assert facts["engine"] == engine


@pytest.mark.parametrize(
    ("response", "finish"),
    [
        (b'{"choices":[{"finish_reason":"stop"}]}', "stop"),
        (b'{"stop_reason":"end_turn"}', "end_turn"),
        (b'{"content":"x","stop":true,"stop_type":"eos"}', "eos"),
        (b'{"object":"response","status":"completed"}', "completed"),
        (b'{"object":"response","status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}}', "max_output_tokens"),
        (b"{}", None),
    ],
)
def test_why_the_model_stopped_is_told_in_each_api_s_own_member(response: bytes, finish: str | None) -> None:
    facts = response_facts(TextSource(Path("x"), errors="raise"), TextLine(b"", 1, 0), response)
    assert facts is not None
    assert facts.get("finish_reason") == finish


def test_counts_that_do_not_add_up_are_said_and_not_taken_over(tmp_path: Path) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}'
    logs = lk.load(written(tmp_path / "x.jsonl", row(body, 5, 20)))
    assert logs.usage["cached_tokens"].isna().all()
    ((kind, line),) = logs.problems[["kind", "line"]].values.tolist()
    assert (kind, line) == ("impossible_reuse", 1)


def test_no_session_of_ours_is_taken_for_one(tmp_path: Path) -> None:
    golden = Path(__file__).parents[3] / "data" / "golden"
    for path in golden.rglob("*.jsonl"):
        found = recognise(path)
        assert found is None or found.NAME == "recorded", path


@pytest.mark.parametrize("sample", ["openai/requests.jsonl", "openai/uncached.jsonl", "litellm/spend.jsonl"])
def test_a_gzipped_log_gives_the_same_bodies_and_losses(sample: str, tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain" / "log.jsonl", tmp_path / "packed" / "log.jsonl"
    for path, data in (
        (plain, (HERE.parent / sample).read_bytes()),
        (packed, gzip.compress((HERE.parent / sample).read_bytes())),
    ):
        path.parent.mkdir()
        path.write_bytes(data)
    one, other = lk.load(plain), lk.load(packed)
    assert one.cache_loss.equals(other.cache_loss)
    assert [getattr(each, "body", None) for each in one.requests()] == [getattr(each, "body", None) for each in other.requests()]
