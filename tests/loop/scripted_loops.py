"""Helpers of the loop's tests: loops that print nothing, scripted servers, and responses for them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from loopkit.contract.neutralise import DEFAULT
from loopkit.encoding import encode
from loopkit.loop.loop import Loop
from loopkit.loop.opening import resume, start
from loopkit.server.client import Server
from loopkit.server.detection import Detected
from loopkit.server.transport.connection import Wire
from loopkit.session.verify import verify
from tests.server.scripted import Relay, Scripted, Step, sse, text

OPTIONS = {"temperature": 0, "seed": 1, "max_tokens": 64}


def quiet(loop: Loop) -> Loop:
    loop.on_event = None
    return loop


def begin(server: Server, home: Path, id: str = "s", **more: Any) -> Loop:
    """Start a session with a short system prompt and no memory, which prints nothing."""
    arguments = {"system": "Be brief.", "memory": "", "options": OPTIONS, **more}
    return quiet(start(server, home=home, id=id, **arguments))


@contextlib.contextmanager
def scripted(*answers: Sequence[Step], context_size: int | None = None) -> Iterator[tuple[Server, Scripted]]:
    """Yield a server that gives these responses to chat completions and has no other endpoint."""
    found = Detected("llama.cpp", None, None, context_size)
    with Scripted(answers, only="/chat/completions") as script, Server(Wire(script.url, timeout=30), found) as server:
        server._tags = DEFAULT
        yield server, script


@contextlib.contextmanager
def relayed(server: Server) -> Iterator[tuple[Server, Relay]]:
    """Yield the real server behind a relay that keeps the requests."""
    assert server._child is not None
    found = Detected("llama.cpp", server.build, server.model)
    with Relay(server.url) as relay, Server(Wire(relay.url, api_key=server._child.key, timeout=30), found) as through:
        through._tags = server.tags()
        yield through, relay


def done(prompt: int, cached: int | None, written: int, content: str = "Done.", finish: str = "stop") -> list[Step]:
    """Return a streamed response with usage."""
    usage: dict[str, object] = {"prompt_tokens": prompt, "completion_tokens": written}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    end = json.dumps({"id": "r1", "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return sse(text(content), end, json.dumps({"choices": [], "usage": usage}), "[DONE]")


def calling(*calls: tuple[str | None, str, str], prompt: int = 40, written: int = 9, finish: str = "tool_calls") -> list[Step]:
    """Return a streamed response with tool calls: (id, name, arguments) each."""
    made = [
        {
            "index": index,
            **({} if id is None else {"id": id}),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for index, (id, name, arguments) in enumerate(calls)
    ]
    delta = encode({"choices": [{"index": 0, "delta": {"role": "assistant", "content": None, "tool_calls": made}}]}).decode()
    end = json.dumps({"id": "r1", "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    usage = json.dumps({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": written}})
    return sse(delta, end, usage, "[DONE]")


def messages(body: bytes) -> list[dict[str, Any]]:
    """Return the messages of a request body."""
    return list(json.loads(body)["messages"])


def reasoned(*thoughts: str, then: Sequence[Step] = ()) -> list[Step]:
    """Return a streamed response that starts with reasoning, one event per piece."""
    events = [json.dumps({"choices": [{"index": 0, "delta": {"reasoning_content": each}}]}) for each in thoughts]
    return [*sse(*events), *then]


def log(loop: Loop) -> bytes:
    """Return the bytes of the current epoch's log."""
    return (loop.session.dir / f"{loop.session.epoch}.jsonl").read_bytes()


def reopen(loop: Loop, **more: Any) -> Loop:
    """Close a loop, verify its log, and resume the session from disk."""
    loop.close()
    verification = verify(loop.session.dir)
    assert verification.ok, [str(fault) for fault in verification.faults]
    return quiet(resume(loop.server, loop.session.id, home=loop.session.home, tools=loop.tools, **more))


def ctrl_c() -> None:
    """Send SIGINT to this process."""
    os.kill(os.getpid(), signal.SIGINT)


def threads_of_ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(("loopkit", "tool"))]
