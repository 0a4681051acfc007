"""Writer of the sample logs of requests, gateways, spans and traces in ``data/foreign``. Run it in the root, without arguments.

Each log covers the difficulties of one dialect. The tables of correct numbers beside them were written by hand.
"""

from __future__ import annotations

import gzip
from typing import Any

import msgspec

from data.foreign.make_agents import HERE, Lines, time, write
from loopkit.encoding import encode

START = 1796029200
"9:00, in seconds since 1970."

Message = dict[str, Any]


def say(role: str, text: str | None, **members: Any) -> Message:
    """Return a message."""
    return {"role": role, "content": text, **members}


def answer(id: str, counts: tuple[int, int | None, int], text: str = "Well.", **members: Any) -> dict[str, Any]:
    """Return a response of chat completions. Counts: prompt, cached, completion."""
    prompt, cached, completion = counts
    details = None if cached is None else {"cached_tokens": cached}
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": details}
    choice = {"index": 0, "message": say("assistant", text), "finish_reason": "stop"}
    return {"id": id, "object": "chat.completion", "model": "gpt-5.2", "choices": [choice], "usage": usage, **members}


def chunks(id: str, counts: tuple[int, int | None, int]) -> list[dict[str, Any]]:
    """Return the same response as stream chunks. The last has the counts and no choice."""
    whole = answer(id, counts)
    finish = {"index": 0, "delta": {}, "finish_reason": "stop"}
    text = {"index": 0, "delta": {"content": "Well."}, "finish_reason": None}
    steps: list[dict[str, Any]] = [{"choices": [text], "usage": None}, {"choices": [finish], "usage": None}]
    return [{"id": id, "model": "gpt-5.2", **step} for step in [*steps, {"choices": [], "usage": whole["usage"]}]]


def openai() -> None:
    """Write the logs of bodies."""
    # two interleaved conversations; a repeated line, an error, a stream, a body as a string, a changed early message
    a = [say("system", "You are A."), say("user", "One.")]
    b = [say("system", "You are B."), say("user", "Other.")]
    lines: Lines = []

    def row(body: Any, response: Any, seconds: float) -> None:
        lines.append({"timestamp": time(seconds), "provider": "openai", "request": body, "response": response})

    row({"model": "gpt-5.2", "messages": list(a)}, answer("c1", (2000, 0, 50)), 0)
    row({"model": "gpt-5.2", "messages": list(b)}, answer("c2", (1500, 0, 20)), 1)
    a += [say("assistant", "Well."), say("user", "Two.")]
    row({"model": "gpt-5.2", "messages": list(a)}, answer("c3", (2300, 1920, 50)), 10)
    lines.append(lines[-1])
    b += [say("assistant", "Well."), say("user", "More.")]
    row({"model": "gpt-5.2", "messages": list(b), "stream": True}, chunks("c4", (1700, 1408, 20)), 11)
    row({"model": "gpt-5.2", "messages": list(b)}, {"error": {"message": "Rate limit reached", "code": 429}}, 12)
    calls = [{"id": "t1", "type": "function", "function": {"name": "ls", "arguments": '{"path":"."}'}}]
    a = [say("system", "You are a."), *a[1:], say("assistant", "Well."), say("user", "Three.")]
    row({"model": "gpt-5.2", "messages": list(a)}, answer("c5", (2500, 0, 50)), 20)
    b += [say("assistant", "Well."), say("user", "Most.")]
    row(encode({"model": "gpt-5.2", "messages": list(b)}).decode(), answer("c6", (1900, None, 20)), 21)
    lines.append({"note": "a line of another kind"})
    a += [say("assistant", None, tool_calls=calls), say("tool", "a file", tool_call_id="t1", name="ls")]
    row({"model": "gpt-5.2", "messages": list(a)}, answer("c7", (2700, 2432, 50)), 30)
    write("openai/requests.jsonl", lines)

    # kvlint: bodies with members that the log added, without counts
    c = [say("user", "One.")]
    lines = [{"request_id": "r1", "session_id": "k", "timestamp": time(0), "model": "m", "messages": list(c)}]
    c += [say("assistant", "Well."), say("user", "Two.")]
    lines.append({"request_id": "r2", "session_id": "k", "timestamp": time(9), "model": "m", "messages": list(c)})
    write("openai/bodies.jsonl", lines)

    # promptcachelint: input_tokens excludes cached tokens for all providers; times are seconds since 1970
    lines = []
    d = [say("user", "One.")]
    counts = [(10, 0, 5000, 20), (12, 5000, 300, 20), (8, 0, 5400, 20)]
    for number, (uncached, read, written, output) in enumerate(counts, 1):
        body = {"model": "claude-opus-4-8", "max_tokens": 100, "system": "Be brief.", "messages": list(d)}
        usage: dict[str, Any] = {"input_tokens": uncached, "cache_read": read, "cache_write": written, "output_tokens": output}
        head = {"provider": "anthropic", "body": body, "id": f"r{number}", "at": START + (0, 60, 460)[number - 1] + 0.5}
        more = {"session_id": "p", "session_explicit": True, "stream": False, "url": "/v1/messages", "response_id": None}
        lines.append({**head, "model": "claude-opus-4-8", "usage": usage, **more, "note": None})
        d += [say("assistant", "Well."), say("user", f"And {number}?")]
    body = {"model": "gpt-5.2", "messages": [say("user", "Hi.")]}
    usage = {"input_tokens": 200, "cache_read": 1024, "cache_write": None, "output_tokens": 5}
    lines.append({"provider": "openai", "body": body, "id": "r4", "at": START + 500, "model": "gpt-5.2", "usage": usage})
    write("openai/uncached.jsonl", lines)


def otel() -> None:
    """Write the spans."""

    def value(one: Any) -> dict[str, Any]:
        if isinstance(one, list):
            return {"arrayValue": {"values": [value(each) for each in one]}}
        return {"intValue": str(one)} if isinstance(one, int) else {"stringValue": one}

    def span(id: str, parent: str | None, seconds: float, counts: tuple[int, ...] = (), **about: Any) -> dict[str, Any]:
        names = ("input_tokens", "output_tokens", "cache_read.input_tokens", "cache_creation.input_tokens")
        about = {"gen_ai." + name.replace("__", "."): each for name, each in about.items()}
        about |= {f"gen_ai.usage.{name}": count for name, count in zip(names, counts, strict=False)}
        made = [{"key": name, "value": value(each)} for name, each in about.items()]
        times = {
            "startTimeUnixNano": f"{round((START + seconds) * 1e9)}",
            "endTimeUnixNano": f"{round((START + seconds + 2) * 1e9)}",
        }
        return {
            "traceId": "7" * 32,
            "spanId": id * 8,
            "parentSpanId": (parent or "") * 8,
            "name": id,
            **times,
            "attributes": made,
        }

    def export(*spans: dict[str, Any]) -> dict[str, Any]:
        return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {"name": "x"}, "spans": list(spans)}]}]}

    # two exports: an agent's span with sums, spans in order of their ends, a sub-agent, a tool, a repeated span, an error
    chat: dict[str, Any] = {"operation__name": "chat", "provider__name": "openai", "conversation__id": "c"}
    chat |= {"agent__name": "helper", "response__model": "gpt-5.2", "response__finish_reasons": ["stop"]}
    first = span("11", "aa", 0, (2000, 50, 0), **chat)
    second = span("22", "aa", 10, (2300, 50, 1920), **chat)
    agent = span("aa", None, 0, (4300, 100, 1920), **{**chat, "operation__name": "invoke_agent"})
    tool = span("ee", "aa", 5, operation__name="execute_tool", tool__name="search")
    inner = span("33", "ee", 6, (1200, 20), **{**chat, "agent__name": "searcher"})
    failed = {**span("99", "aa", 8, **chat), "status": {"code": 2, "message": "429"}}
    third = span("44", "bb", 60, (2500, 50, 0), **{**chat, "response__model": "gpt-5.2-mini"})
    write("otel/export.jsonl", [export(second, inner, tool, failed, first), export(agent, first, third)])

    # flat spans over several lines, without a conversation name; the last excludes cached tokens, against the conventions
    texts = []
    for number, counts in enumerate([(5010, 20, 0, 5000), (5312, 20, 5000, 300), (12, 20, 5312, 0)], 1):
        names = ("input_tokens", "output_tokens", "cache_read.input_tokens", "cache_creation.input_tokens")
        about: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.system": "anthropic",
            "gen_ai.request.model": "claude-opus-4-8",
        }
        about |= {f"gen_ai.usage.{name}": count for name, count in zip(names, counts, strict=True)}
        context = {"trace_id": "0x" + "5" * 32, "span_id": f"0x{number:016x}", "trace_state": "[]"}
        times = {"start_time": time(10 * number), "end_time": time(10 * number + 3)}
        flat = {"name": "chat", "context": context, "kind": "SpanKind.CLIENT", "parent_id": "0x1234", **times}
        texts.append(msgspec.json.format(encode({**flat, "status": {"status_code": "UNSET"}, "attributes": about}), indent=4))
    (HERE / "otel" / "console.json").write_bytes(b"\n".join(texts) + b"\n")


def traces() -> None:
    """Write the traces."""
    # times in milliseconds; two requests share two blocks; a null length and a hash of more than 64 bits
    lines: Lines = [
        {"timestamp": 0, "input_length": 1300, "output_length": 52, "hash_ids": [0, 1, 2]},
        {"timestamp": 1500, "input_length": 1100, "output_length": None, "hash_ids": [0, 1, 3]},
    ]
    write("mooncake/conversation.jsonl", lines)
    big = HERE / "mooncake" / "conversation.jsonl"
    big.write_bytes(
        big.read_bytes() + b'{"timestamp":2000,"input_length":300,"output_length":7,"hash_ids":[36893488147419103232]}\n'
    )

    # interleaved chats, a retried response, a parent after its child; times in seconds
    def row(chat: int, parent: int, seconds: float, length: int, blocks: list[int]) -> None:
        head = {"chat_id": chat, "parent_chat_id": parent, "timestamp": seconds, "input_length": length, "output_length": 40}
        lines.append({**head, "type": "text", "turn": 1 if parent == -1 else 2, "hash_ids": blocks})

    lines = []
    row(159, -1, 61.114, 40, [1089, 1090, 1091])
    row(160, -1, 62.0, 30, [1089, 2000])
    row(161, 159, 70.5, 90, [1089, 1090, 1092, 1093, 1094, 1095])
    row(162, 159, 71.0, 95, [1089, 1090, 1092, 1093, 1094, 1096])
    row(165, 164, 80.0, 60, [3000, 3001, 3002, 3003])
    row(164, -1, 79.0, 30, [3000, 3004])
    write("bailian/chats.jsonl", lines)
    path = HERE / "bailian" / "chats.jsonl"
    (HERE / "bailian" / "chats.jsonl.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    path.unlink()


def litellm() -> None:
    """Write the rows of gateways."""

    def text(value: Any) -> str:
        return encode(value).decode()

    def counts(prompt: int, cached: int, written: int, completion: int) -> dict[str, Any]:
        details = {"cached_tokens": cached, "cache_creation_tokens": written}
        return {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": details}

    # LiteLLM: counts in the response, in metadata as a string, or in the row; its own cache; rows without a body; a failure
    claude = {"call_type": "acompletion", "custom_llm_provider": "anthropic", "model": "claude-opus-4-8", "session_id": "s"}
    gpt = {"call_type": "acompletion", "custom_llm_provider": "azure", "model": "gpt-5.2", "session_id": "s"}
    a = [say("user", "One.")]
    answered = {"id": "msg_1", "choices": [{"finish_reason": "stop"}], "usage": counts(5010, 0, 5000, 20)}
    times: dict[str, Any] = {"startTime": START + 0.5, "endTime": START + 3.25}
    lines: Lines = [{"id": "r1", **claude, **times, "messages": list(a), "response": answered, "metadata": {}}]
    a += [say("assistant", "Well."), say("user", "Two.")]
    metadata = text({"usage_object": counts(5312, 5000, 300, 20)})
    times = {"startTime": time(60), "endTime": time(63)}
    second = {"id": "r2", **claude, **times, "messages": text(a), "response": "{}", "metadata": metadata, "prompt_tokens": 5312}
    lines.append(second)
    lines.append({**second, "id": "r3", "cache_hit": "True"})
    lines.append({"id": "r4", **gpt, "messages": {}, "response": {}, "prompt_tokens": 3000, "completion_tokens": 9})
    details = {"prompt_tokens_details": {"cached_tokens": 1024}}
    lines.append(
        {"id": "r5", **gpt, "messages": None, "prompt_tokens": 3300, **details, "completion_tokens": 9, "startTime": time(99)}
    )
    lines.append({"id": "r6", **gpt, "session_id": None, "prompt_tokens": 400, "completion_tokens": 5})
    lines.append({"id": "r7", **gpt, "status": "failure", "prompt_tokens": 0, "completion_tokens": 0})
    write("litellm/spend.jsonl", lines)

    # Helicone and Langfuse, in an array over several lines
    b = [say("user", "One.")]
    rows = []
    for number, (prompt, cached) in enumerate([(1500, 0), (1700, 1408)], 1):
        when: dict[str, Any] = {"request_created_at": time(60 * number), "response_created_at": time(60 * number + 2)}
        body, response = text({"model": "gpt-5.2", "messages": b}), text(answer(f"c{number}", (prompt, cached, 20)))
        rows.append({"request_id": f"h{number}", "request_body": body, "response_body": response, "provider": "OPENAI", **when})
        b += [say("assistant", "Well."), say("user", "Two.")]
    usage = {"input": 800, "cache_read_input_tokens": 200, "output": 30, "total": 1030}
    row: dict[str, Any] = {"id": "l1", "sessionId": "z", "input": [say("user", "Hi.")], "usageDetails": usage}
    row["output"] = say("assistant", "Ho.")
    rows.append({**row, "model": "gpt-5.2", "startTime": time(300), "endTime": time(301)})
    path = HERE / "litellm" / "gateways.json"
    path.write_bytes(b"[\n" + b",\n".join(map(encode, rows)) + b"\n]\n")


if __name__ == "__main__":
    litellm()
    openai()
    otel()
    traces()
