"""A log of OpenAI-style requests made up for measuring: interleaved conversations, each body whole, some broken."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from loopkit.contract.json_position import first_difference
from loopkit.encoding import encode

LETTERS = "abcdefghijklmnopqrstuvwxyz"
START = 1_796_029_200


class Talk:
    """A conversation, and what its server would count."""

    def __init__(self, rng: random.Random, words: list[str], name: str) -> None:
        self._rng, self._words, self._name = rng, words, name
        self._tools = [self._tool(number) for number in range(12)]
        self._messages: list[dict[str, Any]] = [{"role": "system", "content": f"{name}: {self._text(640)}"}]
        self._before = b""

    def _text(self, count: int) -> str:
        return " ".join(self._rng.choices(self._words, k=count))

    def _tool(self, number: int) -> dict[str, Any]:
        members = {word: {"type": "string", "description": self._text(12)} for word in self._rng.sample(self._words, 4)}
        schema = {"type": "object", "properties": members, "required": list(members)}
        function = {"name": f"tool_{number}", "description": self._text(30), "parameters": schema}
        return {"type": "function", "function": function}

    def row(self, number: int, *, broken: bool) -> bytes:
        """A line: the next request of this conversation and its answer."""
        rng, messages = self._rng, self._messages
        calls = [message for message in messages if message["role"] == "assistant"]
        if calls:
            result = {
                "role": "tool",
                "tool_call_id": calls[-1]["tool_calls"][0]["id"],
                "content": self._text(rng.randint(60, 250)),
            }
            messages.append(result)
        if not calls or rng.random() < 0.2:
            messages.append({"role": "user", "content": self._text(40)})
        if broken and calls:
            how = rng.randrange(3)
            if how == 0:
                messages[0] = {"role": "system", "content": messages[0]["content"] + " " + self._text(1)}
            elif how == 1:
                self._tools.append(self._tools.pop(0))
            else:
                at = rng.randrange(1, len(messages) // 2 + 1)
                messages[at] = {**messages[at], "content": f"{messages[at]['content'] or ''} {self._text(1)}"}
        body = encode({"model": "gpt-5.2", "tools": self._tools, "messages": messages, "temperature": 0})
        shared = first_difference(self._before, body)
        self._before = body[:-1].rpartition(b"]")[0]  # what another request can begin with
        prompt, cached = len(body) // 4, shared // 4 // 128 * 128
        made: dict[str, Any] = {"id": f"call_{rng.getrandbits(96):024x}", "type": "function"}
        made |= {"function": {"name": "tool_1", "arguments": encode({"path": self._text(3)}).decode()}}
        answer = {"role": "assistant", "content": self._text(30), "tool_calls": [made]}
        messages.append(answer)
        usage = {"prompt_tokens": prompt, "completion_tokens": 90, "prompt_tokens_details": {"cached_tokens": cached}}
        response: dict[str, Any] = {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion",
            "model": "gpt-5.2",
            "system_fingerprint": "fp_1",
        }
        response |= {"choices": [{"index": 0, "message": answer, "finish_reason": "tool_calls"}], "usage": usage}
        head = encode({"session_id": self._name, "timestamp": START + 4 * number, "provider": "openai"})
        return head[:-1] + b',"body":' + body + b',"response":' + encode(response) + b"}\n"


def write_bodies(path: Path, talks: int, requests: int) -> tuple[int, int]:
    """Write so many conversations of so many requests, in turn; returns the bytes, and how many requests are broken."""
    rng = random.Random(11)
    words = ["".join(rng.choices(LETTERS, k=rng.randint(2, 9))) for _ in range(2000)]
    made = [Talk(rng, words, f"s{number}") for number in range(talks)]
    count = 0
    with path.open("wb") as file:
        for turn in range(requests):
            for place, talk in enumerate(made):
                broken = turn > 4 and rng.random() < 0.03
                count += broken
                file.write(talk.row(turn * talks + place, broken=broken))
        return file.tell(), count
