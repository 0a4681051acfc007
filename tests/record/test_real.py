"""Real clients against the real embedded server, through the proxy and through the transport."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from loopkit import record
from loopkit.contract.recording import RecordedRequest
from loopkit.encoding import decode
from loopkit.server.client import Server
from loopkit.server.opening import serve
from tests.record.socket_peers import recorded

pytestmark = pytest.mark.server
ASKED: list[Any] = [{"role": "user", "content": "Hi."}]


def key(server: Server) -> str:
    assert server._child is not None
    return server._child.key


class Way:
    """How a client's requests come by: where it sends them, its HTTP client, and what was recorded in the end."""

    def __init__(self, url: str, http: Any, close: Callable[[], None], path: Callable[[], Path]) -> None:
        self.url, self.http, self._close, self._path = url, http, close, path

    def recorded(self) -> list[RecordedRequest]:
        self._close()
        return recorded(self._path())


@contextmanager
def through(way: str, server: Server, home: Path) -> Iterator[Way]:
    if way == "proxy":
        with record.proxy(server.url, home) as proxy, httpx2.Client() as http:
            yield Way(proxy.url, http, proxy.close, lambda: proxy.path)
    else:
        transport = record.transport(home)
        with httpx2.Client(transport=transport) as http:
            yield Way(server.url, http, transport.close, lambda: transport.path)


@pytest.mark.parametrize("way", ["proxy", "transport"])
def test_chat_completions_of_the_openai_client(way: str, tiny: Server, tmp_path: Path) -> None:
    with through(way, tiny, tmp_path) as here:
        client = openai.OpenAI(base_url=f"{here.url}/v1", api_key=key(tiny), http_client=here.http)
        whole = client.chat.completions.create(model="tiny", messages=ASKED)
        stream = client.chat.completions.create(model="tiny", messages=ASKED, stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        bare = list(client.chat.completions.create(model="tiny", messages=ASKED, stream=True))
        assert client.models.list().data[0].id == "tiny"
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "a" * 5000}])
        first, second, third, fourth = here.recorded()
    assert whole.usage is not None
    assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (whole.usage.prompt_tokens, 6)
    assert (first.response_id, first.finish_reason, first.model, first.engine) == (whole.id, "stop", "tiny", "llama.cpp")
    assert decode(first.body) == {"model": "tiny", "messages": ASKED}
    assert first.usage.ttft_ms is None
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert second.usage.cached_tokens == usage.prompt_tokens_details.cached_tokens == 22
    assert second.usage.ttft_ms is not None
    assert (third.response_id, third.usage.prompt_tokens) == (bare[0].id, 23)  # from the timings, which come unasked
    assert [each.ended for each in (first, second, third, fourth)] == ["whole", "whole", "whole", "failed"]
    assert (fourth.status, fourth.usage.prompt_tokens, fourth.answered) == (400, None, False)
    assert all(key(tiny).encode() not in file.read_bytes() for file in tmp_path.rglob("*.jsonl"))


@pytest.mark.parametrize("way", ["proxy", "transport"])
def test_messages_of_the_anthropic_client(way: str, tiny: Server, tmp_path: Path) -> None:
    with through(way, tiny, tmp_path) as here:
        client = anthropic.Anthropic(base_url=here.url, api_key=key(tiny), http_client=here.http)
        whole = client.messages.create(model="tiny", max_tokens=20, messages=ASKED)
        with client.messages.stream(model="tiny", max_tokens=20, messages=ASKED) as stream:
            final = stream.get_final_message()
        first, second = here.recorded()
    for told, one in ((whole, first), (final, second)):
        assert (one.path, one.ended, one.finish_reason) == ("/v1/messages", "whole", "end_turn")
        assert one.response_id == told.id
        assert one.usage.prompt_tokens == told.usage.input_tokens + (told.usage.cache_read_input_tokens or 0) == 23
        assert (one.usage.cached_tokens, one.usage.completion_tokens) == (told.usage.cache_read_input_tokens, 6)
    assert second.usage.ttft_ms is not None


@pytest.mark.parametrize("way", ["proxy", "transport"])
def test_responses_of_the_openai_client(way: str, tiny: Server, tmp_path: Path) -> None:
    with through(way, tiny, tmp_path) as here:
        client = openai.OpenAI(base_url=f"{here.url}/v1", api_key=key(tiny), http_client=here.http)
        whole = client.responses.create(model="tiny", input=[{"role": "user", "content": "Hi."}])
        list(client.responses.create(model="tiny", input=[{"role": "user", "content": "Hi."}], stream=True))
        first, second = here.recorded()
    assert (first.response_id, first.usage.prompt_tokens, first.finish_reason) == (whole.id, 23, "completed")
    assert (second.usage.prompt_tokens, second.usage.cached_tokens, second.ended) == (23, 22, "whole")
    assert (second.finish_reason, (second.response_id or "")[:5]) == ("completed", "resp_")
    assert second.usage.ttft_ms is not None


def test_plain_httpx_and_asyncio_have_one_transport(tiny: Server, tmp_path: Path) -> None:
    headers = {"Authorization": f"Bearer {key(tiny)}"}
    body = {"prompt": "Hi", "n_predict": 3}

    async def ask(transport: record.Transport) -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{tiny.url}/v1", api_key=key(tiny), http_client=httpx2.AsyncClient(transport=transport)
        ) as client:
            await client.chat.completions.create(model="tiny", messages=ASKED)
            async for _ in await client.chat.completions.create(model="tiny", messages=ASKED, stream=True):
                pass
            async with await client.chat.completions.create(
                model="tiny", messages=ASKED, stream=True, max_tokens=2000, extra_body={"ignore_eos": True}
            ) as stream:
                async for _ in stream:
                    break

    with httpx.Client(transport=record.transport(tmp_path / "a", httpx.HTTPTransport(retries=1)), headers=headers) as client:
        assert client.post(f"{tiny.url}/completion", json=body).json()["tokens_predicted"] == 3
        (log,) = (tmp_path / "a" / "recordings").iterdir()  # it is there once the answer is
        (one,) = recorded(log)
        assert (one.usage.completion_tokens, one.usage.ttft_ms, one.finish_reason) == (3, None, "limit")
    transport = record.transport(tmp_path / "b")
    asyncio.run(ask(transport))
    assert [each.ended for each in recorded(transport.path)] == ["whole", "whole", "hung_up"]
    assert repr(transport) == "<Transport: 3 requests recorded>"


def test_what_the_transport_inside_raises_comes_out_and_is_recorded(tmp_path: Path) -> None:
    class Broken(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            raise httpx.ReadTimeout("too slow", request=request)

    transport = record.transport(tmp_path, Broken())
    with httpx.Client(transport=transport) as client, pytest.raises(httpx.ReadTimeout):
        client.post("http://host/v1/chat/completions", json={"messages": []})
    (one,) = recorded(transport.path)
    assert (one.status, one.ended, one.usage.prompt_tokens) == (None, "cut", None)


@pytest.mark.parametrize("way", ["proxy", "transport"])
def test_a_hang_up_stops_the_slot(way: str, tmp_path: Path) -> None:
    with serve("tiny", slots=1, context=32_768) as server, through(way, server, tmp_path) as here:
        client = openai.OpenAI(base_url=f"{here.url}/v1", api_key=key(server), http_client=here.http)
        endless = client.chat.completions.create(
            model="tiny", messages=ASKED, stream=True, max_tokens=90_000, extra_body={"ignore_eos": True}
        )
        next(iter(endless))
        endless.close()
        latest = time.monotonic() + 30
        while server.slots()[0].busy:
            assert time.monotonic() < latest
        assert server.metrics()["tokens_predicted_total"] < 80_000
        (one,) = here.recorded()
    assert (one.ended, one.finish_reason, one.answered) == ("hung_up", None, False)


def test_a_hang_up_of_asyncio_stops_the_slot(tmp_path: Path) -> None:
    async def leave() -> None:
        http = httpx2.AsyncClient(transport=record.transport(tmp_path))
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key(server), http_client=http) as client:
            async with await client.chat.completions.create(
                model="tiny", messages=ASKED, stream=True, max_tokens=90_000, extra_body={"ignore_eos": True}
            ) as endless:
                async for _ in endless:
                    break
            latest = time.monotonic() + 30
            while server.slots()[0].busy:  # with the client still open
                assert time.monotonic() < latest

    with serve("tiny", slots=1, context=32_768) as server:
        asyncio.run(leave())
        assert server.metrics()["tokens_predicted_total"] < 80_000


def start(url: str, home: Path) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "loopkit.cli", "record", "--url", url, "--home", str(home)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    assert process.stdout is not None
    said = dict(process.stdout.readline().split(maxsplit=1) for _ in range(3))
    return process, said["url"].strip()


def test_a_proxy_killed_in_mid_stream_leaves_a_sound_recording(tiny: Server, tmp_path: Path) -> None:
    process, url = start(tiny.url, tmp_path)
    with process, openai.OpenAI(base_url=f"{url}/v1", api_key=key(tiny), max_retries=0) as client:
        for _ in range(3):
            client.chat.completions.create(model="tiny", messages=ASKED)
        stream = client.chat.completions.create(
            model="tiny", messages=ASKED, stream=True, max_tokens=4000, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        (log,) = (tmp_path / "recordings").iterdir()
        latest = time.monotonic() + 30
        while log.read_bytes().count(b"\n") < 3:  # a line is written when its answer has passed
            assert time.monotonic() < latest
        process.kill()
        with pytest.raises((openai.APIError, httpx2.TransportError)):
            list(stream)
    assert [each.request for each in recorded(log)] == [1, 2, 3]


def test_the_command_ends_with_a_signal_and_says_what_it_did(tiny: Server, tmp_path: Path) -> None:
    process, url = start(tiny.url, tmp_path)
    with process, openai.OpenAI(base_url=f"{url}/v1", api_key=key(tiny)) as client:
        client.chat.completions.create(model="tiny", messages=ASKED)
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert out.splitlines()[-1] == f"Proxy {url}: server {tiny.url}, recorded 1"
    assert key(tiny) not in out
