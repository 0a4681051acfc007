"""Writer of the sample logs of agents in ``data/foreign/{claude_code,pi,codex}``. Run it in the root, without arguments.

Each log covers one difficulty. The tables of correct numbers beside them were written by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loopkit.encoding import encode

HERE = Path(__file__).parent
Lines = list[dict[str, Any]]


def time(seconds: float) -> str:
    """Return the timestamp of so many seconds after 9:00."""
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    return f"2026-11-30T{9 + whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}.{milliseconds:03}Z"


def write(name: str, lines: Lines) -> None:
    """Write a log."""
    path = HERE / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(encode(line) + b"\n" for line in lines))


class Claude:
    """Lines of a transcript. Each follows the line before, or the line ``on``. Ids are ``<session>-<number>``."""

    def __init__(self, session: str, **common: Any) -> None:
        self.session, self.common = session, {"isSidechain": False, "sessionId": session, "version": "2.1.296", **common}
        self.lines: Lines = []

    def line(self, kind: str, seconds: float, on: int | None = -1, **members: Any) -> int:
        number = len(self.lines) + 1
        parent = number - 1 if on == -1 else on
        ids = {"parentUuid": f"{self.session}-{parent}" if parent else None, "uuid": f"{self.session}-{number}"}
        self.lines.append({**ids, **self.common, "type": kind, "timestamp": time(seconds), **members})
        return number

    def ask(self, text: str, seconds: float, on: int | None = -1, **members: Any) -> int:
        """Add a person's message."""
        return self.line("user", seconds, on, message={"role": "user", "content": text}, **members)

    def result(self, call: str, text: str, seconds: float, on: int | None = -1) -> int:
        block = {"tool_use_id": call, "type": "tool_result", "content": [{"type": "text", "text": text}]}
        return self.line("user", seconds, on, message={"role": "user", "content": [block]}, toolUseResult={"stdout": text})

    def answer(self, id: str, counts: tuple[int | None, ...], seconds: float, on: int | None = -1, **facts: Any) -> int:
        """Add a line of a response. Counts: input, read from the cache, written to it, output."""
        uncached, read, written, output = counts
        hour = facts.pop("hour", False)
        id = f"{self.common['sessionId']}-{id}"
        usage: dict[str, Any] = {
            "input_tokens": uncached,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": read,
            "cache_creation": {
                "ephemeral_5m_input_tokens": 0 if hour else written,
                "ephemeral_1h_input_tokens": written if hour else 0,
            },
            "output_tokens": output,
            "service_tier": "standard",
        }
        message = {"id": id, "type": "message", "role": "assistant", "model": facts.pop("model", "claude-opus-4-8")}
        message |= {
            "content": [facts.pop("block", {"type": "text", "text": "Well."})],
            "stop_reason": facts.pop("stop", "end_turn"),
        }
        message |= {"usage": facts.pop("usage", usage)} | facts.pop("message", {})
        request = facts.pop("request", f"req-{id}")
        return self.line(
            "assistant", seconds, on, message=message, **({} if request is None else {"requestId": request}), **facts
        )


def tool(call: str, name: str = "Bash") -> dict[str, Any]:
    """Return a content block of a tool call."""
    return {"type": "tool_use", "id": call, "name": name, "input": {"command": "ls"}}


def claude_code() -> None:
    """Write all transcripts."""
    # one line per content block, each with usage; only the last has the final output count; a gateway omits requestId
    log = Claude("lines")
    log.ask("Look.", 0)
    log.answer("m1", (4, 0, 12000, 1), 3, block={"type": "thinking", "thinking": "Hm.", "signature": "x"}, stop=None)
    log.answer("m1", (4, 0, 12000, 1), 4, stop=None)
    first = log.answer("m1", (4, 0, 12000, 97), 5, block=tool("t1"), stop="tool_use")
    log.answer("m1", (4, 0, 12000, 97), 5, block=tool("t2"), stop="tool_use")
    log.result("t1", "one", 6, on=first)
    log.result("t2", "two", 6, on=first + 1)
    log.answer("m2", (5, 12000, 300, 20), 9, request=None, stop=None)
    log.answer("m2", (5, 12000, 300, 40), 10, request=None)
    log.lines.append(log.lines[-1])
    write("claude_code/told_in_lines.jsonl", log.lines)

    # the lines of one response have several request ids and placeholder counts, and the last has the finish reason; a resumed
    # session starts with the same response under another request id
    log = Claude("ids")
    log.ask("One.", 0)
    log.answer("m1", (4, 0, 9000, 1), 3, request="r1", stop=None)
    details: dict[str, Any] = {"output_tokens_details": {"thinking_tokens": 30}}
    usage = {"input_tokens": 4, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 9000, "output_tokens": 97}
    log.answer("m1", (4, 0, 9000, 97), 4, request=None, stop="end_turn", usage={**usage, **details})
    log.answer("m1", (4, 0, 9000, 97), 5, request="rX", stop="tool_use", block=tool("t1"))
    log.result("t1", "one", 6)
    log.answer("m2", (6, 9000, 400, 20), 9, request="r2")
    write("claude_code/request_ids/first.jsonl", log.lines)
    log.lines = [{**line, "sessionId": "again", **({"requestId": "r9"} if "requestId" in line else {})} for line in log.lines]
    log.common["sessionId"] = "again"
    log.ask("Two.", 20)
    log.answer("m3", (5, 9400, 300, 30), 23, request="r3", stop=None)
    log.answer("m3", (5, 9400, 300, 45), 24, request=None)
    write("claude_code/request_ids/second.jsonl", log.lines)

    # a sub-agent in its own file, which repeats its parent's response under another request id
    log = Claude("main")
    log.ask("Search.", 0)
    log.answer("p1", (4, 0, 12000, 50), 3, block=tool("t1", "Task"), stop="tool_use")
    log.result("t1", "found", 60)
    log.answer("p2", (4, 12000, 500, 30), 63)
    write("claude_code/sub_agents/main.jsonl", log.lines)
    agent = Claude("main", isSidechain=True, agentId="a1")
    agent.session = "agent"
    agent.answer("p1", (4, 0, 12000, 50), 3, request="req-other", on=None, block=tool("t1", "Task"), stop="tool_use")
    agent.ask("Find it.", 5, on=None)
    agent.answer("s1", (3, 0, 5000, 20), 8, block=tool("t9"), stop="tool_use")
    agent.result("t9", "here", 9)
    agent.answer("s2", (3, 5000, 200, 10), 12)
    write("claude_code/sub_agents/main/subagents/agent-a1.jsonl", agent.lines)

    # old versions write the side chain into the main file, between the main requests
    log = Claude("side")
    log.ask("Search.", 0)
    asked = log.answer("q1", (4, 0, 12000, 50), 3, block=tool("t1", "Task"), stop="tool_use")
    side = {"isSidechain": True}
    log.ask("Find it.", 4, on=None, **side)
    log.answer("q1", (4, 0, 12000, 50), 4, request="req-again", **side)
    log.answer("s1", (3, 12000, 300, 20), 7, block=tool("t9"), stop="tool_use", **side)
    log.result("t1", "found", 9, on=asked)
    log.answer("q2", (4, 12000, 500, 30), 12)
    write("claude_code/side_chain.jsonl", log.lines)

    # a person returns to the first response and asks something else
    log = Claude("tree")
    log.ask("One.", 0)
    fork = log.answer("m1", (3, 0, 10000, 50), 3)
    log.ask("Two.", 10)
    log.answer("m2", (3, 10000, 2000, 50), 13)
    log.ask("Two, but otherwise.", 30, on=fork)
    log.answer("m3", (3, 10000, 100, 50), 33)
    log.ask("And then?", 40)
    log.answer("m4", (3, 10100, 60, 50), 43)
    write("claude_code/branches.jsonl", log.lines)

    # two compactions: one within a turn, with a boundary line; one by a version that writes only the summary
    log = Claude("packed")
    log.ask("Work.", 0)
    log.answer("m1", (3, 0, 90000, 50), 3, block=tool("t1"), stop="tool_use")
    last = log.result("t1", "done", 4)
    log.line(
        "system", 9, None, subtype="compact_boundary", logicalParentUuid=f"packed-{last}", compactMetadata={"trigger": "auto"}
    )
    log.ask("A summary.", 9, isCompactSummary=True)
    log.answer("m2", (3, 14000, 2000, 50), 12, block=tool("t2"), stop="tool_use")
    log.result("t2", "done", 13)
    log.answer("m3", (3, 16000, 300, 50), 16)
    log.ask("Another summary.", 20, isCompactSummary=True)
    log.ask("Go on.", 30)
    log.answer("m4", (3, 14000, 900, 50), 33)
    write("claude_code/compacted.jsonl", log.lines)

    # the second file starts with the history of the first, under its own session id
    log = Claude("first")
    log.ask("One.", 0)
    log.answer("m1", (3, 0, 10000, 50), 3)
    log.ask("Two.", 10)
    log.answer("m2", (3, 10000, 2000, 50), 13)
    write("claude_code/resumed/first.jsonl", log.lines)
    log.lines = [{**line, "sessionId": "second"} for line in log.lines]
    log.common["sessionId"] = "second"
    log.ask("Three.", 5000)
    log.answer("m3", (3, 0, 12500, 50), 5003)
    write("claude_code/resumed/second.jsonl", log.lines)

    # lines out of order, and a clock that was set back by an hour
    log = Claude("mixed")
    log.ask("One.", 4000)
    log.answer("m1", (3, 0, 10000, 50), 4003, block=tool("t1"), stop="tool_use")
    log.result("t1", "done", 410)
    log.answer("m2", (3, 0, 10500, 50), 413)
    log.ask("Two.", 420)
    log.answer("m3", (3, 10500, 90, 50), 423)
    log.lines = [log.lines[at] for at in (3, 0, 5, 2, 1, 4)]
    write("claude_code/out_of_order.jsonl", log.lines)

    # synthetic responses; counts that are null or absent, which does not mean 0
    log = Claude("nulls")
    log.ask("One.", 0)
    log.answer("e1", (0, 0, 0, 0), 1, model="<synthetic>", isApiErrorMessage=True)
    log.answer("m1", (3, 0, 10000, 50), 3)
    log.ask("Two.", 10)
    log.answer("m2", (900, None, None, 40), 13, usage={"input_tokens": 900, "cache_read_input_tokens": None, "output_tokens": 40})
    log.ask("Three.", 20)
    log.answer("m3", (3, 10000, 500, 30), 23, usage=None)
    log.ask("Four.", 30)
    log.answer("m4", (3, 10000, 700, 30), 33)
    write("claude_code/nulls.jsonl", log.lines)

    # what was lost, and why: idle for longer than the cache is kept, another model, what the provider says, a shorter prompt
    log = Claude("lost")
    log.ask("One.", 0)
    log.answer("m1", (3, 0, 20000, 50), 3)
    log.ask("Two.", 403)
    log.answer("m2", (3, 0, 20400, 50), 406)
    log.ask("Three.", 410)
    log.answer("m3", (3, 20400, 100, 50), 413, hour=True)
    log.ask("Four.", 2413)
    log.answer("m4", (3, 20500, 100, 50), 2416, hour=True)
    log.ask("Five.", 6100)
    log.answer("m5", (3, 0, 20700, 50), 6103)
    log.ask("Six.", 6110)
    log.answer("m6", (3, 0, 20800, 50), 6113, model="claude-haiku-4-5")
    log.ask("Seven.", 6120)
    reason = {"type": "tools_changed", "cache_missed_input_tokens": 20801}
    diagnostics = {"diagnostics": {"cache_miss_reason": reason}}
    log.answer("m7", (3, 0, 20900, 50), 6123, model="claude-haiku-4-5", message=diagnostics)
    log.ask("Eight.", 6130)
    log.answer("m8", (3, 9000, 8000, 50), 6133, model="claude-haiku-4-5")
    log.ask("Nine.", 6140)
    log.answer("m9", (3, 9000, 9000, 50), 6143, model="claude-haiku-4-5")
    write("claude_code/lost.jsonl", log.lines)

    # a damaged file
    log = Claude("hurt")
    log.ask("One.", 0)
    log.answer("m1", (3, 0, 10000, 50), 3)
    log.line("mood", 4, colour="blue")
    log.ask("Two.", 10)
    log.answer("m2", (3, 10000, 200, 50), 13)
    log.ask("Three.", 20)
    log.answer("m3", (3, 10200, 200, 50), 23)
    log.ask("Four.", 30)
    log.answer("m4", (3, 10400, 200, 50), 33)
    lines = [encode(line) + b"\r\n" for line in log.lines]
    lines[5] = b"\0" * 200 + b"\r\n"  # "Three." is gone
    lines.insert(8, b"\r\n")
    lines.insert(1, b'{"type":"summary","summary":"\xb2","leafUuid":"hurt-1"}\r\n')
    lines.insert(1, b'{"type":"summary","summary":"Work","leafUuid":"hurt-1"}\r\n')
    (HERE / "claude_code" / "damaged.jsonl").write_bytes(b"\xef\xbb\xbf" + b"".join(lines) + lines[-1][:200])


class Pi:
    """Entries of a session. Each follows the entry before, or the entry ``on``."""

    def __init__(self, session: str, **header: Any) -> None:
        first = {"type": "session", "version": 3, "id": session, "timestamp": time(0), "cwd": "/home/x/project", **header}
        self.lines: Lines = [first]
        self.linked = header.get("version") != 1

    def line(self, type: str, seconds: float, on: int | None = -1, **members: Any) -> int:
        number = len(self.lines)
        parent = number - 1 if on == -1 else on
        ids = {"id": f"{number:08x}", "parentId": f"{parent:08x}" if parent else None} if self.linked else {}
        self.lines.append({"type": type, **ids, "timestamp": time(seconds), **members})
        return number

    def ask(self, text: str, seconds: float, on: int | None = -1) -> int:
        """Add a person's message."""
        return self.line("message", seconds, on, message={"role": "user", "content": [{"type": "text", "text": text}]})

    def result(self, call: str, text: str, seconds: float) -> int:
        content = [{"type": "text", "text": text}]
        message = {"role": "toolResult", "toolCallId": call, "toolName": "bash", "content": content, "isError": False}
        return self.line("message", seconds, message=message)

    def answer(self, counts: tuple[int | None, ...], seconds: float, on: int | None = -1, **facts: Any) -> int:
        """Add a response. Counts: input, read from the cache, written to it, output."""
        uncached, read, written, output = counts
        usage = {"input": uncached, "output": output, "cacheRead": read, "cacheWrite": written, "totalTokens": 0}
        usage |= facts.pop("usage", {})
        blocks = facts.pop("blocks", [{"type": "text", "text": "Well."}])
        model = {"api": "anthropic-messages", "provider": "anthropic", "model": "claude-opus-4-8"} | facts.pop("model", {})
        message = {"role": "assistant", "content": blocks, **model, "usage": usage, "stopReason": "stop", **facts}
        return self.line("message", seconds, on, message=message)


def pi() -> None:
    """Write all sessions."""
    # a branch from the first response; types that no frame contains are in between
    log = Pi("tree")
    log.line("model_change", 0, provider="anthropic", modelId="claude-opus-4-8")
    log.ask("One.", 0)
    call = {"type": "toolCall", "id": "c1", "name": "bash", "arguments": {"command": "ls"}}
    log.answer((3, 0, 8000, 50), 3, blocks=[{"type": "text", "text": "I look."}, call], stopReason="toolUse")
    log.result("c1", "a file", 4)
    fork = log.answer((3, 8000, 200, 50), 7)
    log.ask("Two.", 10)
    log.answer((3, 8200, 400, 50), 13)
    log.line("branch_summary", 19, fork, fromId="00000007", summary="Two was tried.")
    log.line("mood", 19, colour="blue")
    log.ask("Three.", 20)
    log.answer((3, 8200, 90, 50), 23)
    write("pi/branches.jsonl", log.lines)

    # a compaction, whose request has a prompt of its own; a request that only keeps the cache warm
    log = Pi("packed")
    log.ask("One.", 0)
    log.answer((3, 0, 50000, 50), 3)
    log.line("usage", 250, kind="cache_warm", usage={"input": 3, "cacheRead": 50000, "cacheWrite": 0, "output": 1})
    log.ask("Two.", 400)
    log.answer((3, 50000, 300, 50), 403)
    paid = {"input": 51000, "cacheRead": 0, "cacheWrite": 0, "output": 700}
    facts: dict[str, Any] = {"summary": "One and two.", "firstKeptEntryId": "00000004", "tokensBefore": 50353}
    log.line("compaction", 420, **facts, usage=paid)
    log.ask("Three.", 430)
    log.answer((3, 9000, 1500, 50), 433)
    log.ask("Four.", 440)
    log.answer((3, 10500, 100, 50), 443)
    write("pi/compacted.jsonl", log.lines)

    # a failed response and its retry; a cancelled response; counts that are null
    log = Pi("retried")
    log.ask("One.", 0)
    log.answer((0, 0, 0, 0), 2, stopReason="error", errorMessage="overloaded")
    log.answer((3, 0, 8000, 50), 9)
    log.ask("Two.", 20)
    log.answer((3, 8000, 300, 7), 22, stopReason="aborted")
    log.ask("Three.", 30)
    log.answer((500, None, None, 40), 33)
    log.ask("Four.", 40)
    log.answer((3, 8300, 600, 40), 43)
    write("pi/retried.jsonl", log.lines)

    # version 1, a list without ids; a cache with a TTL of one hour
    log = Pi("list", version=1)
    log.ask("One.", 0)
    log.answer((3, 0, 8000, 50), 3, usage={"cacheWrite1h": 8000})
    log.ask("Two.", 2003)
    log.answer((3, 0, 8200, 50), 2006)
    log.ask("Three.", 6003)
    log.answer((3, 0, 8300, 50), 6006)
    write("pi/version_1.jsonl", log.lines)

    # a fork starts with copies of its parent's entries
    log = Pi("parent")
    log.ask("One.", 0)
    log.answer((3, 0, 8000, 50), 3)
    log.ask("Two.", 10)
    log.answer((3, 8000, 300, 50), 13)
    write("pi/forked/2026-11-30T09-00-00-000Z_parent.jsonl", log.lines)
    log.lines[0] = {
        **log.lines[0],
        "id": "child",
        "parentSession": "/home/x/.pi/agent/sessions/2026-11-30T09-00-00-000Z_parent.jsonl",
    }
    log.ask("Two, again.", 50, on=2)
    log.answer((3, 8000, 350, 50), 53)
    write("pi/forked/2026-11-30T09-00-40-000Z_child.jsonl", log.lines)


class Codex:
    """Lines of a rollout, and the running totals."""

    def __init__(self, session: str, **meta: Any) -> None:
        self.lines: Lines = []
        self.total = dict.fromkeys(("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens"), 0)
        facts = {"id": session, "timestamp": time(0), "cwd": "/home/x", "originator": "codex_cli_rs", "model_provider": "openai"}
        self.line("session_meta", 0, **facts, **meta)

    def line(self, envelope: str, seconds: float, **payload: Any) -> None:
        self.lines.append({"timestamp": time(seconds), "type": envelope, "payload": payload})

    def context(self, seconds: float, model: str = "gpt-5.5") -> None:
        self.line("turn_context", seconds, cwd="/home/x", model=model, effort="medium")

    def ask(self, text: str, seconds: float) -> None:
        self.line("response_item", seconds, type="message", role="user", content=[{"type": "input_text", "text": text}])
        self.line("event_msg", seconds, type="user_message", message=text)

    def tool(self, call: str, text: str, seconds: float) -> None:
        self.line("response_item", seconds, type="function_call", name="shell", arguments='{"command":["ls"]}', call_id=call)
        self.line("response_item", seconds + 1, type="function_call_output", call_id=call, output=text)

    def counted(self, counts: tuple[int, int, int, int], seconds: float, *, last: bool = True, add: bool = True) -> None:
        """Add a usage line. Counts: input, cached part of it, output, reasoning part of it."""
        now = dict(zip(self.total, counts))
        if add:
            self.total = {name: value + now[name] for name, value in self.total.items()}
        info: dict[str, Any] = {"total_token_usage": {**self.total, "total_tokens": 0}, "model_context_window": 272000}
        info |= {"last_token_usage": {**now, "total_tokens": 0}} if last else {}
        self.line("event_msg", seconds, type="token_count", info=info, rate_limits=None)

    def say(self, text: str, seconds: float) -> None:
        self.line("response_item", seconds, type="message", role="assistant", content=[{"type": "output_text", "text": text}])


def codex() -> None:
    """Write all rollouts."""
    # running totals, each repeated; events without counts
    log = Codex("totals")
    log.context(0)
    log.ask("One.", 0)
    log.line("event_msg", 1, type="token_count", info=None, rate_limits={})
    log.line("response_item", 3, type="reasoning", summary=[], encrypted_content="x")
    log.tool("c1", "a file", 3)
    log.counted((9000, 0, 120, 64), 3)
    log.counted((9000, 0, 120, 64), 4, add=False)
    log.say("Well.", 8)
    log.counted((9400, 8960, 80, 0), 8)
    log.counted((9400, 8960, 80, 0), 8, add=False)
    log.line("mood", 9, colour="blue")
    log.ask("Two.", 20)
    log.counted((9400, 8960, 80, 0), 20, add=False)
    log.say("Well.", 24)
    log.counted((9600, 0, 50, 0), 24)
    write("codex/totals.jsonl", log.lines)

    # an older version with totals only
    log = Codex("sums")
    log.context(0)
    log.ask("One.", 0)
    log.counted((9000, 0, 120, 64), 3, last=False)
    log.counted((9400, 8960, 80, 0), 8, last=False)
    log.counted((9400, 8960, 80, 0), 8, last=False, add=False)
    log.counted((9600, 9344, 70, 0), 12, last=False)
    write("codex/totals_only.jsonl", log.lines)

    # a fork's file repeats its parent's lines in its first second
    log = Codex("old")
    log.context(0)
    log.ask("One.", 0)
    log.counted((20000, 0, 120, 64), 3)
    log.ask("Two.", 10)
    log.counted((20500, 19968, 80, 0), 14)
    write("codex/forked/rollout-2026-11-30T09-00-00-old.jsonl", log.lines)
    parent_lines = log.lines
    log = Codex("new", forked_from_id="old")
    log.lines[0]["timestamp"] = time(100)
    log.lines += [{**line, "timestamp": time(100.2)} for line in parent_lines]
    log.total = {"input_tokens": 40500, "cached_input_tokens": 19968, "output_tokens": 200, "reasoning_output_tokens": 64}
    log.ask("Three.", 110)
    log.counted((20700, 20352, 60, 0), 114)
    write("codex/forked/rollout-2026-11-30T09-01-40-new.jsonl", log.lines)

    # a compaction; another model; totals that restart
    log = Codex("packed")
    log.context(0)
    log.ask("One.", 0)
    log.counted((200000, 0, 500, 0), 30)
    log.line("compacted", 40, message="", replacement_history=[], window_number=2)
    log.counted((12000, 1920, 100, 0), 50)
    log.context(60, model="gpt-5.5-mini")
    log.ask("Two.", 60)
    log.counted((12300, 0, 100, 0), 65)
    log.total = dict.fromkeys(log.total, 0)
    log.ask("Three.", 70)
    log.counted((12500, 12160, 100, 0), 75)
    log.counted((100, 12160, 100, 0), 80)
    write("codex/compacted.jsonl", log.lines)


if __name__ == "__main__":
    claude_code()
    pi()
    codex()
