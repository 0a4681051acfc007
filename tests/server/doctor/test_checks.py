"""The table of checks: on real servers of every memory kind, and on scripted ones that refuse, or say what no other would."""

from __future__ import annotations

import html
import re
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from loopkit.encoding import decode, encode
from loopkit.errors import ServerRefused
from loopkit.server.client import Server
from loopkit.server.doctor.checks import Check, Doctor
from loopkit.server.doctor.probes import THOUGHT_BEFORE, THOUGHT_IN_ROUND, USUAL
from loopkit.server.embedded.templates import tiny_template
from loopkit.server.opening import connect, serve
from tests.server.scripted import HANG, Scripted, Step, answer, read_request

KEY = "sk-do-not-show-me"
CHECKS = ["cached counts", "reasoning kept", "tool arguments", "slots", "host cache", "memory kind", "context per slot"]


def table(server: Server) -> dict[str, Check]:
    doctor = server.doctor()
    assert [row.check for row in doctor.rows] == CHECKS
    for row in doctor.rows:
        assert row.seen, row.check
        assert row.then or row.state in ("ok", "unknown"), row.check
    return {row.check: row for row in doctor.rows}


def states(server: Server) -> list[str]:
    return [row.state for row in table(server).values()]


class Engine(Scripted):
    """A llama-server by its paths: each says what a test wrote, or refuses. A list of lists is said one after the other."""

    def __init__(self, **paths: Any) -> None:
        super().__init__([])
        self.paths = paths

    def handle(self, connection: socket.socket) -> None:
        if (request := read_request(connection)) is None:
            return
        self.requests.append(request)
        said = self.paths.get(request.line.split()[1].rpartition("/")[2].replace("-", "_"))
        if isinstance(said, list) and said and isinstance(said[0], list):
            said = said.pop(0)
        said = said(request.body) if callable(said) else said
        for step in answer("", 404) if said is None else answer(encode(said)):
            assert isinstance(step, bytes)
            connection.sendall(step)


PROPS = {"default_generation_settings": {"n_ctx": 8192}, "total_slots": 4, "build_info": "b1"}
MODELS = {"data": [{"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx_train": 8192}}]}


def usage(prompt: int = 40, cached: int | None = None, **more: Any) -> dict[str, Any]:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    choice = {"index": 0, "message": {"role": "assistant", "content": "y"}, "finish_reason": "length"}
    return {"choices": [choice], "usage": {"prompt_tokens": prompt, "completion_tokens": 1, **details, **more}}


def slots(*held: int | None) -> list[dict[str, Any]]:
    """Slots by what they hold; None was never used."""
    return [
        {"id": number, "is_processing": False} | ({} if tokens is None else {"id_task": number, "n_prompt_tokens": tokens})
        for number, tokens in enumerate(held)
    ]


@pytest.mark.server
def test_the_embedded_server_is_well(tiny: Server) -> None:
    assert states(tiny) == ["ok", "missing", "ok", "ok", "ok", "ok", "ok"]
    rows = table(tiny)
    assert rows["host cache"].seen.startswith("256 MiB, for")
    assert rows["cached counts"].seen.endswith(", then 57 of 58 tokens cached")
    assert rows["slots"].seen == "2, each with its own KV buffer"
    assert rows["memory kind"].seen.startswith("dense")
    assert rows["context per slot"].seen == "4,096 tokens"


@pytest.mark.server
def test_it_takes_no_slot_of_an_open_session(tiny: Server) -> None:
    taken = [slot for _ in range(tiny.slot_count or 0) if (slot := tiny.take_slot()) is not None]
    try:
        assert table(tiny)["cached counts"][1:] == (
            "unknown",
            "every slot is in use by an open session",
            "Close a session and try again",
        )
    finally:
        for slot in taken:
            tiny.release_slot(slot)
    assert table(tiny)["cached counts"].state == "ok"
    again = [tiny.take_slot() for _ in taken]
    for slot in again:
        tiny.release_slot(slot)
    assert sorted(map(str, again)) == sorted(map(str, taken))


@pytest.mark.server
@pytest.mark.parametrize(
    ("model", "parameters", "check", "state", "seen"),
    [
        ("tiny", {"template": tiny_template(reserialise=True)}, "tool arguments", "harmful", '{"zqb":"one","zqa":2}'),
        ("tiny", {"cache_ram_mib": 0}, "host cache", "missing", "0 MiB"),
        ("tiny", {"cache_ram_mib": -1}, "host cache", "ok", "unlimited"),
        ("tiny-swa", {}, "memory kind", "harmful", "sliding window: of 58"),
        ("tiny-swa", {"swa_full": True}, "memory kind", "ok", "dense, or a sliding window that is kept whole"),
        ("tiny-hybrid", {}, "memory kind", "ok", "hybrid or recurrent: of 58"),
        ("tiny", {"template": "{% for m in messages %}{{ m.content }}{% endfor %}"}, "tool arguments", "missing", "leaves out"),
    ],
)
def test_what_a_server_is_started_with_is_seen(model: str, parameters: dict[str, Any], check: str, state: str, seen: str) -> None:
    with serve(model, slots=1, **parameters) as server:
        row = table(server)[check]
    assert row.state == state
    assert seen in row.seen


@pytest.mark.server
def test_one_kv_buffer_is_seen_when_a_slot_was_emptied() -> None:
    with serve("tiny", slots=4, kv_unified=True) as embedded:
        assert embedded._child is not None
        with connect(embedded.url, api_key=embedded._child.key) as server:
            messages = [{"role": "system", "content": "No relation."}, {"role": "user", "content": "Hello."}]  # so another slot
            body = {"messages": messages, "max_tokens": 1}
            server.wire.ask(f"{server.wire.api}/chat/completions", encode(body))
            assert table(server)["slots"].state == "harmful"  # that slot was emptied for the check's own request
            assert table(server)["host cache"].state == "ok"


@pytest.mark.parametrize("status", [404, 429, 500, 503])
def test_a_server_that_refuses_everything_is_unknown(status: int) -> None:
    refusal = answer(f'{{"error":"no {KEY} here"}}', status)
    with Scripted([refusal] * 20) as scripted, connect(scripted.url, model="m", api_key=KEY) as server:
        doctor = server.doctor()
        assert {row.state for row in doctor.rows} == {"unknown"}
        assert f"HTTP {status} on /chat/completions" in str(doctor)
        assert "key" not in str(doctor)
        for shown in (str(doctor), repr(doctor), doctor._repr_html_()):
            assert KEY not in shown
        assert len(scripted.requests) <= 10  # nothing was tried again


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(
    ("key", "then"), [(KEY, "Check that `api_key=` is the right key"), (None, "had no key. Pass one as `api_key=`")]
)
def test_a_key_that_is_missing_or_wrong_is_one_error_and_no_table(status: int, key: str | None, then: str) -> None:
    refusal, absent = answer(f'{{"error":"no {KEY} here"}}', status), answer("", 404)
    with Scripted([absent, absent, *[refusal] * 20]) as scripted, connect(scripted.url, model="m", api_key=key) as server:
        with pytest.raises(ServerRefused) as caught:
            server.doctor()
        assert str(caught.value).startswith(f"{scripted.url}: HTTP {status}: ")
        assert str(caught.value).endswith(then)
        assert key is None or key not in str(caught.value)


@pytest.mark.parametrize(("key", "then"), [(KEY, "The key does not give access to it. Pass another key"), (None, "Pass a key")])
def test_a_path_that_wants_another_key_is_unknown(key: str | None, then: str) -> None:
    class Guarded(Engine):
        def handle(self, connection: socket.socket) -> None:
            if (request := read_request(connection)) is not None:
                asked = "completions" in request.line
                for step in answer(encode(usage(cached=0))) if asked else answer("", 403):
                    assert isinstance(step, bytes)
                    connection.sendall(step)

    with Guarded() as scripted, connect(scripted.url, model="m", api_key=key) as server:
        assert table(server)["slots"][1:] == ("unknown", "HTTP 403 on /props", then)


@pytest.mark.parametrize("reply", [[HANG], [], answer("<html>", kind="text/html"), answer("[1]"), answer('"x"')])
def test_a_server_that_answers_nonsense_or_nothing_is_unknown(reply: list[Step], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopkit.server.doctor.probes.PATIENCE", 0.05)
    with (
        Scripted([answer("", 404), answer("", 404), *[reply] * 20]) as scripted,
        connect(scripted.url, model="m", timeout=0.05) as server,
    ):
        assert set(states(server)) == {"unknown"}


def test_a_question_is_waited_for_less_long_than_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopkit.server.doctor.probes.PATIENCE", 0.05)
    done = threading.Event()

    def late(_: bytes) -> Any:
        done.wait(5)
        return PROPS

    with Engine(models=MODELS, props=PROPS) as engine, connect(engine.url) as server:
        engine.paths["props"] = late
        assert table(server)["slots"][1:3] == ("unknown", "no answer on /props in time")
        done.set()


def test_a_server_that_is_gone_is_unknown() -> None:
    with Scripted([answer("", 404), answer("", 404)]) as scripted:
        server = connect(scripted.url, model="m")
    with server:
        rows = table(server)
    assert {row.state for row in rows.values()} == {"unknown"}
    assert rows["slots"][2:] == ("no connection", "Check that the server is running")


@pytest.mark.parametrize(
    ("before", "after", "trained", "count", "state"),
    [
        pytest.param(None, None, 8192, 4, "harmful", id="each-has-the-whole-context"),
        pytest.param(None, None, 32768, 4, "unknown", id="each-has-a-part"),
        pytest.param(None, None, None, 4, "unknown", id="nothing-said"),
        pytest.param(slots(90, None, None, None), slots(0, 41, None, None), 32768, 4, "harmful", id="emptied"),
        pytest.param(slots(90, None, None, None), slots(90, 41, None, None), 8192, 4, "ok", id="kept"),
        pytest.param(slots(None, None), slots(41, None), 32768, 2, "unknown", id="never-used"),
        pytest.param(slots(90), slots(41), 8192, 1, "ok", id="one"),
    ],
)
def test_slots_by_their_signs(before: Any, after: Any, trained: int | None, count: int, state: str) -> None:
    models = {"data": [{"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx_train": trained}}]}
    listed = None if before is None else [before, after]
    with (
        Engine(props={**PROPS, "total_slots": count}, models=models, slots=listed) as engine,
        connect(engine.url) as server,
    ):
        row = table(server)["slots"]
    assert row.state == state
    assert ("Do not pin" in row.then) == (state != "ok")


def test_a_slot_that_was_used_in_between_or_is_busy_is_no_sign() -> None:
    held = slots(90, 90)
    used = [held[0] | {"n_prompt_tokens": 0, "id_task": 9}, held[1] | {"n_prompt_tokens": 0, "is_processing": True}]
    models = {"data": [{"id": "m", "owned_by": "llamacpp"}]}
    with Engine(props=PROPS, models=models, slots=[held, used]) as engine, connect(engine.url) as server:
        assert table(server)["slots"].state == "unknown"


@pytest.mark.parametrize(
    ("owner", "first", "again", "state", "said"),
    [
        pytest.param("vllm", usage(), usage(), "missing", "--enable-prompt-tokens-details (vllm)", id="vllm"),
        pytest.param("sglang", usage(prompt_tokens_details=None), usage(), "missing", "--enable-cache-report", id="sglang"),
        pytest.param("library", usage(), usage(), "missing", "times to the first token", id="ollama"),
        pytest.param("?", usage(), usage(), "missing", "(vllm) or --enable-cache-report (sglang)", id="unknown"),
        pytest.param("vllm", usage(), usage(cached=32), "ok", "not reported, then 32 of 40", id="omitted-where-0"),
        pytest.param("vllm", usage(cached=0), usage(cached=32), "ok", "0, then 32 of 40", id="reported"),
        pytest.param("?", usage(cached=0), usage(cached=0), "unknown", "prompts of about 1,024 tokens", id="never-taken"),
    ],
)
def test_cached_counts(owner: str, first: Any, again: Any, state: str, said: str) -> None:
    models = {"data": [{"id": "m", "owned_by": owner}]}
    replies = iter([first, again])
    with Engine(models=models, completions=lambda _: next(replies)) as engine, connect(engine.url) as server:
        row = table(server)["cached counts"]
        sent = [each.body for each in engine.requests if each.line.startswith("POST /v1/chat/completions")]
    assert row.state == state
    assert said in f"{row.seen} {row.then}"
    assert sent[0] == sent[1]
    assert len(sent) == 2
    body = decode(sent[0])
    assert (body["model"], body["max_tokens"], "id_slot" in body) == ("m", 1, False)


@pytest.mark.parametrize(
    ("render", "reasoning", "arguments"),
    [
        pytest.param(lambda body: body, "ok", "ok", id="all"),
        pytest.param(lambda body: body.replace(THOUGHT_BEFORE, ""), "harmful", "ok", id="reasoning-of-the-newest-turn"),
        pytest.param(
            lambda body: body.replace(THOUGHT_BEFORE, "").replace(THOUGHT_IN_ROUND, ""), "missing", "ok", id="no-reasoning"
        ),
        pytest.param(lambda body: "One.", "missing", "missing", id="nothing"),
        pytest.param(lambda body: body.replace("zqb", "zqa"), "ok", "missing", id="not-both-keys"),
        pytest.param(lambda body: body + '{"zqa": 2, "zqb": "one"}', "ok", "ok", id="as-is-somewhere"),
        pytest.param(lambda _: "zqa zqb" + '{"zqa": 2, "zqb": "one"}', "missing", "harmful", id="sorted"),
        pytest.param(lambda _: "[zqb]one[zqa]2", "missing", "unknown", id="a-form-of-its-own"),
    ],
)
def test_what_a_template_keeps(render: Callable[[str], str], reasoning: str, arguments: str) -> None:
    def rendered(body: bytes) -> dict[str, str]:
        return {"prompt": render(body.decode())}

    with Engine(apply_template=rendered) as engine, connect(engine.url, model="m") as server:
        rows = table(server)
    assert (rows["reasoning kept"].state, rows["tool arguments"].state) == (reasoning, arguments)


def test_a_tag_among_rendered_arguments_is_not_shown_raw() -> None:
    tag = "<" + "|end|" + ">"

    def rendered(body: bytes) -> dict[str, str]:
        return {"prompt": f'{{"zqa": 2, {tag} "zqb": "one"}}'}

    with Engine(apply_template=rendered) as engine, connect(engine.url, model="m") as server:
        assert tag not in str(server.doctor())
        assert USUAL in str(server.doctor())


@pytest.mark.parametrize("read", [2, 3, 9, 40])
def test_another_count_says_nothing_of_the_memory(read: int) -> None:
    with Engine(models=MODELS, props=PROPS, completions=usage(cached=40 - read)) as engine, connect(engine.url) as server:
        assert table(server)["memory kind"].state == "unknown"


def test_the_kind_of_memory_is_llama_cpps_own_rule() -> None:
    models = {"data": [{"id": "m", "owned_by": "vllm"}]}
    with Engine(models=models, completions=usage(cached=36)) as engine, connect(engine.url) as server:
        assert table(server)["memory kind"].state == "unknown"


def test_text_and_html_show_the_same_rows() -> None:
    doctor = Doctor((Check("slots", "harmful", "4 <b>", "Do not pin"), Check("memory kind", "ok", "dense")))
    assert repr(doctor) == "Doctor: harmful slots, ok memory kind"
    shown = doctor._repr_html_()
    assert "<b>" not in shown
    assert re.findall("<th>(.*?)</th><td>(.*?)</td>", html.unescape(shown)) == [
        ("slots", "harmful: 4 <b>. Do not pin"),
        ("memory kind", "ok: dense"),
    ]
    for row in doctor.rows:
        assert all(part in str(doctor) for part in row)
    many = Doctor(tuple(Check(check, "unknown", "no connection") for check in CHECKS))
    assert len(repr(many)) <= 110
