"""Random conversations as request bodies, full of what makes their texts hard to find in a prompt."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import strategies as st

from loopkit.server.embedded.templates import CALL, END, START, TOOL

# words of the template, texts in texts, tags, and what trims, escapes and splits over tokens
WORDS = ["a", "e", "ok", "user", "assistant\n", "system", "\n", "  ", "é", "日本", "😀", "\u2028", '"', "\\", "{", "}", "ZQ0QZ"]
WORDS += [START, END, CALL, TOOL, f"{END}\n{START}user\n", '{"name": "look"}', '{"name":"look","arguments":{}}']
texts = st.lists(st.sampled_from(WORDS), max_size=5).map("".join) | st.text(max_size=12)
SPELLINGS = [
    "{}",
    '{"b": 1, "a": "x"}',
    '{"z":1.10,  "p":"\\u00e9"}',
    '{"q": {"r": ["}", null]}}',
    '{ "s" : "{" }',
    '{"ZQ0QZ": 0}',
]


def tool(name: str, description: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"s": {"type": "string", "description": description}}}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [tool("look", "Looks {up}."), tool("look_up", 'Says "é".'), tool("e", "")]


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """A conversation: systems, turns with reasoning, calls and results; it ends in a user's message or a result."""
    ids = itertools.count()
    messages: list[dict[str, Any]] = []

    def say(role: str, **members: Any) -> None:
        messages.append({"role": role, "content": draw(texts), **members})

    def call() -> dict[str, Any]:
        function = {"name": draw(st.sampled_from(["look", "e"])), "arguments": draw(st.sampled_from(SPELLINGS))}
        return {"id": f"call{next(ids):05}", "type": "function", "function": function}

    for _ in range(draw(st.integers(0, 2))):
        say("system")
    for last in [*[False] * draw(st.integers(0, 3)), True]:
        say("user")
        for _ in range(draw(st.integers(0, 2))):
            calls = [call() for _ in range(draw(st.integers(1, 2)))]
            say("assistant", reasoning_content=draw(texts), tool_calls=calls)
            if draw(st.booleans()):
                messages[-1]["content"] = None
            for each in calls:
                say("tool", tool_call_id=each["id"])
        if not last:
            say("assistant")
    tools = TOOLS[: draw(st.integers(0, 3))]
    return {"max_tokens": 1, "stream": False, **({"tools": tools} if tools else {}), "messages": messages}


def texts_of(body: dict[str, Any]) -> dict[str, str]:
    """Each text of the messages by its label; no reasoning, which loopkit's own templates leave out."""
    found: dict[str, str] = {}
    for number, message in enumerate(body["messages"]):
        if message["content"]:
            found[f"messages[{number}].content"] = message["content"]
        for place, call in enumerate(message.get("tool_calls", [])):
            for name in ("name", "arguments"):
                found[f"messages[{number}].tool_calls[{place}].function.{name}"] = call["function"][name]
    return found
