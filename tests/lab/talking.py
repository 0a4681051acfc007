"""Random conversations on a real server, recorded request by request."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from loopkit.cache.losses.watch import Watch
from loopkit.contract.json_position import first_difference
from loopkit.contract.request import Request
from loopkit.encoding import encode
from loopkit.engines.evidence.observation import Observation
from loopkit.ids import Timestamp
from loopkit.server.client import Server

WORDS = [
    "river",
    "stone",
    "été",
    "日本",
    "12.50",
    "the",
    "of",
    "and",
    "a",
    "lamp",
    "(see)",
    "😀",
    "north",
    "green",
    "slow",
    "x = 1",
]
Message = dict[str, Any]


@dataclass(frozen=True)
class Truth:
    """What was done to a request."""

    causes: tuple[str, ...]
    "The one; two where two things were done at once, in any order."
    where: str | None = None
    "The beginning of what the evidence has to point at."
    byte: int | None = None
    "The first byte that was changed."


@dataclass
class Lab:
    """One experiment: what was recorded, and, apart from it, what was done."""

    random: random.Random
    seen: list[Observation] = field(default_factory=list)
    truth: dict[tuple[str, int, int], Truth] = field(default_factory=dict)
    undisturbed: set[tuple[str, int, int]] = field(default_factory=set)

    def text(self, least: int = 3, most: int = 30) -> str:
        return " ".join(self.random.choices(WORDS, k=self.random.randint(least, most)))

    def tool(self, name: str) -> Message:
        properties = {each: {"type": "string", "description": self.text(1, 5)} for each in ("place", "day")}
        parameters = {"type": "object", "properties": properties, "required": ["place"]}
        return {"type": "function", "function": {"name": name, "description": self.text(2, 9), "parameters": parameters}}


class Talk:
    """A conversation; every change to it is the caller's."""

    def __init__(self, lab: Lab, server: Server, name: str, *, slot: int | None = 0, tools: int = 0, size: int = 40) -> None:
        self.lab, self.name, self.slot = lab, name, slot
        self.options: dict[str, Any] = {"temperature": 0, "max_tokens": 60}
        self.tools = [lab.tool(each) for each in ("look_up", "weather", "count_all")[:tools]]
        self.messages: list[Message] = [{"role": "system", "content": lab.text(size // 2, size)}]
        self.epoch = self.request = 0
        self.body = b""
        self.move(server)

    def move(self, server: Server) -> None:
        """Go on with another server."""
        self.server, self._watch = server, Watch(server)

    def branch(self, name: str) -> Talk:
        """Another conversation, that begins as this one."""
        other = copy.copy(self)
        other.name, other.request, other.messages = name, 0, copy.deepcopy(self.messages)
        other.body, other._watch = b"", Watch(self.server)
        return other

    def send(
        self,
        truth: Truth | None = None,
        *,
        restored: int | None = None,
        first: Callable[[], object] | None = None,
        then: Callable[[], object] | None = None,
    ) -> None:
        """Send what there is, and take the answer in; without a truth nothing was done to it.

        What is done ``first`` comes between the server's counts and the request, and ``then`` between the answer and the counts.
        """
        before, slot = self.body, {} if self.slot is None else {"id_slot": self.slot}
        tools = {"tools": self.tools} if self.tools else {}
        self.body = encode({**self.options, **slot, **tools, "messages": self.messages})
        self.request += 1
        watch = self._watch
        watch.sending()
        began = time.monotonic()
        if first is not None:
            first()
        completion = self.server.complete(Request.of(self.body), first_call=100 * self.request)
        elapsed, now, place = (time.monotonic() - began) * 1000, Timestamp.now(), len(self.lab.seen)
        if then is not None:
            then()
        watch.answered()
        view = self.server.tokens(self.body)
        assert view is not None
        self.lab.seen.insert(
            place,
            Observation(
                usage=completion.usage,
                session=self.name,
                epoch=self.epoch,
                request=self.request,
                time=now,
                elapsed_ms=elapsed,
                slot=self.slot,
                body=self.body,
                tokens=view.checked(completion.usage.prompt_tokens),
                engine=self.server.engine,
                build=self.server.build,
                model=self.server.model,
                server="lab",
                context_size=self.server.context_size,
                before=watch._before,
                after=watch._after,
                restored=restored,
            ),
        )
        key = (self.name, self.epoch, self.request)
        if truth is None:
            self.lab.undisturbed.add(key)
        else:
            changed = first_difference(before, self.body) if truth.byte == 0 else None
            self.lab.truth[key] = Truth(truth.causes, truth.where, changed)
        said = completion.assistant(now)
        calls = said.calls()
        message: Message = {"role": "assistant", "content": completion.text}
        if calls:
            function = [{"name": call.function.name, "arguments": call.function.arguments} for call in calls]
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": each} for call, each in zip(calls, function, strict=True)
            ]
        self.messages.append(message)
        self.messages += [{"role": "tool", "tool_call_id": call.id, "content": self.lab.text(2, 12)} for call in calls]

    def ask(self, truth: Truth | None = None, *, call: bool = False, restored: int | None = None) -> None:
        """A user's message, and the answer; with ``call`` one that makes the model call a tool, and the answer to its result."""
        self.messages.append({"role": "user", "content": self.lab.text() + ("?" if call else ".")})
        self.send(truth, restored=restored)
        if self.messages[-1]["role"] == "tool":
            self.send()

    def some(self, least: int = 2, most: int = 4) -> Talk:
        """A few turns in which nothing is done."""
        for _ in range(self.lab.random.randint(least, most)):
            self.ask(call=bool(self.tools) and self.lab.random.random() < 0.5)
        return self
