"""The client against the real embedded server, with the tiny model: one byte is one token, and it answers ``Done.``"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from loopkit.contract.baseline import Baseline
from loopkit.contract.messages import FunctionSchema, ToolSchema
from loopkit.contract.records import LogRecord, ServerFacts, User
from loopkit.contract.request import Request, RequestEncoder
from loopkit.encoding import decode
from loopkit.errors import ContextExceeded, InvalidConfig, ServerRefused, ServerUnreachable
from loopkit.server import llama_api
from loopkit.server.client import Server
from loopkit.server.completion.assembly import Completion
from loopkit.server.completion.deltas import Delta, Progress, TextDelta, ToolCallDelta
from loopkit.server.detection import Detected
from loopkit.server.opening import connect, serve
from loopkit.server.transport.connection import Wire
from tests.server.scripted import Relay

pytestmark = pytest.mark.server

TIME = "2026-11-30T07:31:05.000000Z"
LOOK = ToolSchema(function=FunctionSchema(name="look", parameters={"type": "object", "properties": {}}))


def user(content: str) -> User:
    return User(time=TIME, content=content)


def encoder_for(server: Server, *tools: ToolSchema, slot: int | None = None, **options: Any) -> RequestEncoder:
    return RequestEncoder(Baseline("Be brief.", tools), {**server.default_options(), **options}, slot)


def single(server: Server, content: str, *tools: ToolSchema, slot: int | None = None, **options: Any) -> Request:
    return encoder_for(server, *tools, slot=slot, **options).request([], user(content))


@pytest.fixture
def slot(tiny: Server) -> Iterator[int]:
    taken = tiny.take_slot()
    assert taken is not None
    tiny.erase_slot(taken)
    yield taken
    tiny.release_slot(taken)


def test_it_answers_streamed_and_whole(tiny: Server) -> None:
    deltas: list[Delta] = []
    streamed = tiny.complete(single(tiny, "Hello."), deltas.append)
    assert (streamed.content, streamed.finish_reason) == ("Done.", "stop")
    assert "".join(each.text for each in deltas if isinstance(each, TextDelta)) == "Done."
    progress = [each for each in deltas if isinstance(each, Progress)]
    assert progress[-1].processed == progress[-1].total == streamed.usage.prompt_tokens
    whole = tiny.complete(single(tiny, "Hello.", stream=False, stream_options=None, return_progress=False))
    assert (whole.content, whole.finish_reason) == ("Done.", "stop")
    for each in (streamed, whole):
        assert each.response_id is not None
        assert each.usage_fault is None
        assert each.usage.completion_tokens == 6  # five bytes and the end
        assert each.usage.cached_tokens is not None
        assert each.usage.prompt_ms is not None


def test_it_calls_a_tool_streamed_and_whole_alike(tiny: Server) -> None:
    deltas: list[Delta] = []
    streamed = tiny.complete(single(tiny, "Anything there?", LOOK), deltas.append)
    whole = tiny.complete(single(tiny, "Anything there?", LOOK, stream=False, stream_options=None, return_progress=False))
    for each in (streamed, whole):
        assert each.finish_reason == "tool_calls"
        (call,) = each.assistant(TIME).calls()
        assert call.function.name == "look"
        assert decode(call.function.arguments) == {}
    pieces = [each for each in deltas if isinstance(each, ToolCallDelta)]
    assert pieces[0].name == "look"
    assert decode("".join(each.arguments for each in pieces)) == {}

    def members(completion: Completion) -> list[str]:
        (call,) = decode(bytes(completion.tool_calls or b""))
        return sorted(call)

    assert members(streamed) == members(whole) == ["function", "id", "type"]


def test_the_socket_gets_the_bytes_that_were_hashed(tiny: Server) -> None:
    assert tiny._child is not None
    encoder = encoder_for(tiny)
    records: list[LogRecord] = []
    with Relay(tiny.url) as relay, Server(Wire(relay.url, api_key=tiny._child.key, timeout=30), Detected("llama.cpp")) as server:
        for content in ("One é\u2028\U0001f600.", "Two.", "x" * 1500):
            records.append(user(content))
            request = encoder.request(records)
            records.append(server.complete(request).assistant(TIME))
            encoder.sent(request)
            assert hashlib.sha256(relay.requests[-1].body).hexdigest() == request.sha256


def test_a_grown_conversation_is_cached_but_for_the_last_token(tiny: Server, slot: int) -> None:
    encoder = encoder_for(tiny, slot=slot)
    records: list[LogRecord] = []
    before: Completion | None = None
    for number in range(4):
        records.append(user(f"Turn {number}, and some more text of it."))
        completion = tiny.complete(encoder.request(records))
        records.append(completion.assistant(TIME))
        usage = completion.usage
        if before is None:
            assert usage.cached_tokens == 0
        else:
            last = before.usage
            assert last.prompt_tokens is not None
            assert last.completion_tokens is not None
            assert usage.cached_tokens == last.prompt_tokens + last.completion_tokens - 1
        before = completion
    assert re.fullmatch(r"[\d,]+ of [\d,]+", dict(tiny._card().facts)["cached"])  # the repr may be cut
    held = next(each.tokens for each in tiny.slots() if each.id == slot)
    assert held == (usage.prompt_tokens or 0) + (usage.completion_tokens or 0) - 1


def test_a_context_that_is_exceeded(tiny: Server) -> None:
    with pytest.raises(ContextExceeded) as caught:
        tiny.complete(single(tiny, "x" * 5000))
    assert caught.value.context_size == tiny.context_size == 4096
    assert (caught.value.prompt_tokens or 0) > 5000


def test_a_history_that_the_server_cannot_take_is_refused_once(tiny: Server) -> None:
    with pytest.raises(ServerRefused, match="HTTP 400") as caught:
        tiny.complete(single(tiny, "Hi.", logit_bias="nonsense", temperature="hot"))
    assert caught.value.attempts == 1


def test_the_server_sees_that_the_client_hung_up(tiny: Server) -> None:
    def interrupt(delta: Delta) -> None:
        if isinstance(delta, TextDelta):
            raise KeyboardInterrupt

    before = tiny.metrics()["tokens_predicted_total"]
    limit = 3900
    with pytest.raises(KeyboardInterrupt):
        tiny.complete(single(tiny, "Go on.", ignore_eos=True, max_tokens=limit), interrupt)
    end = time.monotonic() + 30
    while any(each.busy for each in tiny.slots()) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(each.busy for each in tiny.slots())
    assert tiny.metrics()["tokens_predicted_total"] - before < limit
    assert tiny.complete(single(tiny, "Hello.")).content == "Done."


def test_slots_are_given_out_least_recently_used_first() -> None:
    with serve("tiny", slots=2, context=512) as server:
        assert [server.take_slot(), server.take_slot(), server.take_slot()] == [0, 1, None]
        server.release_slot(1)
        server.release_slot(0)
        server.release_slot(0)
        server.release_slot(None)
        server.release_slot(7)
        assert [server.take_slot(), server.take_slot(), server.take_slot()] == [1, 0, None]
        server.release_slot(0)
        assert [server.take_slot(1), server.take_slot(0), server.take_slot(0)] == [None, 0, None]
        assert (server.slot_count, server.context_size, server.unified, server.embedded) == (2, 512, False, True)


def test_a_slot_is_saved_erased_and_restored(tiny: Server, slot: int) -> None:
    completion = tiny.complete(single(tiny, "Keep this.", slot=slot))
    held = (completion.usage.prompt_tokens or 0) + (completion.usage.completion_tokens or 0) - 1
    assert tiny.save_slot(slot, "kept.bin") == held
    assert tiny.erase_slot(slot) == held
    assert tiny.restore_slot(slot, "kept.bin") == held
    assert tiny.slot_dir is not None
    assert (tiny.slot_dir / "kept.bin").is_file()
    with pytest.raises(InvalidConfig):
        tiny.save_slot(slot, "../out.bin")


def test_rendered_tokens_are_as_many_as_the_server_counts(tiny: Server) -> None:
    request = single(tiny, "How many?")
    tokens = llama_api.tokenize(tiny.wire, llama_api.apply_template(tiny.wire, request.body))
    assert len(tokens) == tiny.complete(request).usage.prompt_tokens


def test_metrics_and_props(tiny: Server) -> None:
    tiny.complete(single(tiny, "Count this."))
    counters = tiny.metrics()
    assert counters["prompt_tokens_total"] > 0
    assert counters["prompt_tokens_cached_total"] >= 0
    assert tiny.props()["total_slots"] == tiny.slot_count


def test_what_it_shows_of_itself(tiny: Server) -> None:
    assert tiny._child is not None
    assert tiny.facts() == ServerFacts(engine="llama.cpp", build=tiny._child.build, model="tiny", context_size=4096)
    secrets = (tiny._child.key, tiny.url.rpartition(":")[2], str(tiny._child.slot_dir), ".gguf")
    for shown in (repr(tiny), tiny._repr_html_(), repr(vars(tiny)), repr(vars(tiny.wire))):
        assert tiny._child.key not in shown
    for shown in (repr(tiny), tiny._repr_html_()):
        assert "2 slots × 4,096 tokens" in shown
        assert not [secret for secret in secrets if secret in shown]
    assert len(repr(tiny)) <= 110


def test_connecting_to_it_as_any_other_server(tiny: Server) -> None:
    with connect(tiny.url + "/v1", api_key=tiny.api_key) as server:
        assert (server.engine, server.context_size, server.slot_count) == ("llama.cpp", 4096, 2)
        assert (server.embedded, server.take_slot(), server.api_key) == (False, None, None)
        assert server.complete(single(server, "Hello.")).content == "Done."
        assert server.model == "tiny"  # its name, no path
        assert "/" not in repr(server)


def test_an_embedded_server_that_died_says_so_at_once() -> None:
    with serve("tiny", context=512) as server:
        assert server._child is not None
        server._child.close()
        with pytest.raises(ServerUnreachable, match="process has ended") as caught:
            server.complete(single(server, "Hello."))
        assert caught.value.attempts == 1


def test_a_unified_server_gives_no_slots_out() -> None:
    with serve("tiny", kv_unified=True) as server:
        assert (server.unified, server.take_slot()) == (True, None)
        assert {row.check: row.state for row in server.doctor().rows}["slots"] == "harmful"
