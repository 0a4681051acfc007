"""One request to a real embedded server, and its counts."""

from __future__ import annotations

from typing import Any

import httpx

from loopkit.server.embedded.process import Child


def client(child: Child) -> httpx.Client:
    return httpx.Client(base_url=child.url, headers={"Authorization": f"Bearer {child.key}"}, timeout=60)


def tool(name: str, required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {**required, **optional}, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": parameters}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


class Answer:
    """The message and the counts of one request."""

    def __init__(self, http: httpx.Client, messages: list[dict[str, Any]], **more: Any) -> None:
        response = http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 300, **more})
        assert response.status_code == 200, response.text
        body = response.json()
        self.message: dict[str, Any] = body["choices"][0]["message"]
        self.prompt: int = body["usage"]["prompt_tokens"]
        self.completion: int = body["usage"]["completion_tokens"]
        self.cached: int = body["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.calls = [(call["function"]["name"], call["function"]["arguments"]) for call in self.message.get("tool_calls", [])]


STRING = {"type": "string"}
NOW_IN = tool("now_in", {"place": STRING})
