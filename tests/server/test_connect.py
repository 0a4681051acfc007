"""Addresses, keys, and what a server says of itself when one connects."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from loopkit.errors import InvalidConfig, ServerRefused, ServerUnreachable
from loopkit.server.client import Server
from loopkit.server.opening import connect
from loopkit.server.transport.address import Address
from tests.server.scripted import HANG, NO_ADDRESSES, Scripted, Step, answer, make_request

KEY = "sk-do-not-show-me"


@pytest.mark.parametrize(
    ("url", "root", "api"),
    [
        ("http://h:8080", "http://h:8080", "http://h:8080/v1"),
        ("http://h:8080/", "http://h:8080", "http://h:8080/v1"),
        ("http://h:8080/v1", "http://h:8080", "http://h:8080/v1"),
        ("http://h:8080/v1/", "http://h:8080", "http://h:8080/v1"),
        ("https://h/api/v1/chat/completions", "https://h/api", "https://h/api/v1"),
        ("https://h/api/paas/v4", "https://h/api/paas", "https://h/api/paas/v4"),
        ("https://ann:pw@h/x", "https://h/x", "https://h/x/v1"),
        ("http://[::1]:80/v1", "http://[::1]", "http://[::1]/v1"),
    ],
)
def test_addresses(url: str, root: str, api: str) -> None:
    address = Address.of(url)
    assert (address.root, address.api) == (root, api)


@pytest.mark.parametrize(
    "url", [*NO_ADDRESSES, "", "host:8080", "ftp://host", "http://", f"http://host?key={KEY}", f"{KEY}://host", "http://h:x"]
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        connect(url)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("key", ["", " ", f"{KEY}\n", "schlüssel"])
def test_a_key_that_no_header_can_hold(key: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        connect("http://127.0.0.1:9", api_key=key)
    assert KEY not in str(caught.value)


def test_user_and_password_of_the_url_are_sent_and_never_shown() -> None:
    replies = [answer("{}", 404), answer("{}", 404), answer('{"error":"no hunter2 here"}', 403)]
    with Scripted(replies) as scripted, connect(scripted.url.replace("http://", "http://ann:hunter2@")) as server:
        with pytest.raises(ServerRefused) as caught:
            server.complete(make_request())
        shown = [str(caught.value), repr(caught.value), repr(server), server._repr_html_(), server.url]
    assert all(each.headers["authorization"] == "Basic YW5uOmh1bnRlcjI=" for each in scripted.requests)
    assert not [each for each in shown if "hunter2" in each]


LLAMA_MODELS = '{"data":[{"id":"/models/foo.gguf","owned_by":"llamacpp"}]}'
LLAMA_PROPS = '{"default_generation_settings":{"n_ctx":8192},"total_slots":4,"build_info":"b1","model_alias":"foo"}'


@pytest.mark.parametrize(
    ("replies", "model", "found"),
    [
        pytest.param(
            [answer(LLAMA_MODELS), answer(LLAMA_PROPS)], None, ("llama.cpp", "b1", "/models/foo.gguf", 8192, 4), id="llama.cpp"
        ),
        pytest.param(
            [answer(LLAMA_MODELS), answer("", 401)], None, ("llama.cpp", None, "/models/foo.gguf", None, None), id="props-refused"
        ),
        pytest.param([answer("", 404), answer(LLAMA_PROPS)], None, ("llama.cpp", "b1", "foo", 8192, 4), id="models-refused"),
        pytest.param(
            [answer('{"data":[{"id":"m","owned_by":"vllm","max_model_len":4096}]}'), answer('{"version":"0.33.0"}')],
            None,
            ("vllm", "0.33.0", "m", 4096, None),
            id="vllm",
        ),
        pytest.param(
            [answer('{"data":[{"id":"a","owned_by":"library"},{"id":"b","owned_by":"library"}]}'), answer('{"version":"0.12"}')],
            "b",
            ("ollama", "0.12", "b", None, None),
            id="ollama-of-several",
        ),
        pytest.param(
            [answer('{"data":[{"id":"m"}]}'), answer("<html>", kind="text/html")],
            None,
            (None, None, "m", None, None),
            id="unknown",
        ),
        pytest.param(
            [answer("", 403), answer("{}", 400), answer("", 404)], "m", (None, None, "m", None, None), id="list-refused"
        ),
        pytest.param([answer('["odd"]'), answer('{"default_generation_settings":7}')], None, (None,) * 5, id="odd"),
    ],
)
def test_what_is_there(replies: list[list[Step]], model: str | None, found: tuple[Any, ...]) -> None:
    with Scripted(replies) as scripted, connect(scripted.url, model=model, api_key=KEY) as server:
        assert (server.engine, server.build, server.model, server.context_size, server.slot_count) == found
        assert (server.embedded, server.unified, server.take_slot()) == (False, None, None)
        assert ("cache_prompt" in server.default_options()) == (server.engine == "llama.cpp")
        assert server.default_options().get("model") == server.model
        assert server.facts().context_size == server.context_size
        for shown in (repr(server), server._repr_html_()):
            assert len(repr(server)) <= 110
            assert not [secret for secret in (KEY, scripted.url.rpartition(":")[2], "/models") if secret in shown]


@pytest.mark.parametrize(
    ("key", "then"),
    [(None, "The request had no key. Pass one as `api_key=`"), (KEY, "Check that `api_key=` is the right key")],
    ids=["none", "wrong"],
)
@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("first", [[], [answer(LLAMA_MODELS)]], ids=["models", "props"])
def test_a_server_that_needs_another_key_is_refused_at_once(
    first: list[list[Step]], status: int, key: str | None, then: str
) -> None:
    replies = [*first, *[answer(f'{{"error":"no {KEY} here"}}', status)] * 2]
    with Scripted(replies) as scripted, pytest.raises(ServerRefused) as caught:
        connect(scripted.url, api_key=key)
    assert str(caught.value).startswith(f"{scripted.url}: HTTP {status}: ")
    assert str(caught.value).endswith(then)
    assert key is None or key not in repr(caught.value)
    assert [request.line.split()[1] for request in scripted.requests][-1] == "/v1/chat/completions"


@pytest.mark.server
@pytest.mark.parametrize(("key", "then"), [(None, "had no key. Pass one as `api_key=`"), (KEY, "is the right key")])
def test_the_embedded_server_needs_its_key(key: str | None, then: str, tiny: Server) -> None:
    with pytest.raises(ServerRefused, match=f"HTTP 401: .*{then}$"):
        connect(tiny.url, api_key=key)


def test_several_models_and_none_asked_for() -> None:
    with Scripted([answer('{"data":[{"id":"a"},{"id":"b"}]}')]) as scripted, pytest.raises(InvalidConfig, match="2 models: a, b"):
        connect(scripted.url)


def test_connecting_to_nothing() -> None:
    with socket.socket() as silent:  # bound, never listening: it refuses
        silent.bind(("127.0.0.1", 0))
        with pytest.raises(ServerUnreachable, match="Check that the server is running"):
            connect(f"http://127.0.0.1:{silent.getsockname()[1]}")


def test_questions_that_are_not_answered_in_time_are_left_open() -> None:
    with Scripted([[HANG], [HANG]]) as scripted, connect(scripted.url, model="m", timeout=0.2) as server:
        assert (server.engine, server.model) == (None, "m")
