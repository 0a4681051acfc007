"""Claude Code transcripts made up for measuring: blocks of one answer as lines of their own, tool results, sub-agents, losses."""

from __future__ import annotations

import datetime
import random
from pathlib import Path
from typing import Any, BinaryIO

from loopkit.encoding import encode

START = datetime.datetime(2026, 11, 2, 9, tzinfo=datetime.UTC)


class Transcript:
    """One file, written line by line."""

    def __init__(self, file: BinaryIO, rng: random.Random, words: list[str], session: str, agent: str | None) -> None:
        self._file, self._rng, self._words = file, rng, words
        self._common: dict[str, Any] = {
            "cwd": "/home/x/project",
            "gitBranch": "main",
            "version": "2.1.296",
            "userType": "external",
        }
        self._common |= {"sessionId": session, "isSidechain": agent is not None}
        self._common |= {} if agent is None else {"agentId": agent}
        self._parent: str | None = None
        self._clock = START + datetime.timedelta(seconds=rng.randrange(2_000_000))
        self._calls = 0
        self._cached = 0

    def text(self, count: int) -> str:
        return " ".join(self._rng.choices(self._words, k=count))

    def wait(self, seconds: float) -> None:
        self._clock += datetime.timedelta(seconds=seconds)

    def line(self, kind: str, **members: Any) -> None:
        uuid = f"{self._rng.getrandbits(128):032x}"
        time = f"{self._clock:%Y-%m-%dT%H:%M:%S}.{self._clock.microsecond // 1000:03}Z"
        head = {"parentUuid": self._parent, **self._common, "type": kind, "uuid": uuid, "timestamp": time}
        self._file.write(encode({**head, **members}) + b"\n")
        self._parent = uuid

    def ask(self) -> None:
        self.line("user", message={"role": "user", "content": self.text(40)})

    def result(self, call: str) -> None:
        text = self.text(self._rng.choice([20, 40, 80, 120]))
        block = {"tool_use_id": call, "type": "tool_result", "content": text}
        self.line("user", message={"role": "user", "content": [block]}, toolUseResult={"stdout": text[:200], "stderr": ""})

    def compact(self) -> None:
        link, self._parent = self._parent, None
        why = {"trigger": "auto", "preTokens": self._cached}
        self.line("system", subtype="compact_boundary", logicalParentUuid=link, compactMetadata=why)
        self.line("user", message={"role": "user", "content": self.text(200)}, isCompactSummary=True)
        self._cached = 0

    def answer(self, *, lost: bool) -> str:
        """One call of the API: one line for each block, all with its usage."""
        rng = self._rng
        self._calls += 1
        self.wait(rng.uniform(2, 9))
        read = 14_000 if lost and self._cached else self._cached
        written = self._cached - read + rng.randint(200, 1500) if self._cached else 15_000
        self._cached = read + written
        call = f"toolu_{rng.getrandbits(96):024x}"
        blocks: list[dict[str, Any]] = [{"type": "tool_use", "id": call, "name": "Bash", "input": {"command": self.text(12)}}]
        if rng.random() < 0.6:
            blocks.insert(0, {"type": "text", "text": self.text(50)})
        if rng.random() < 0.25:
            blocks.insert(0, {"type": "thinking", "thinking": self.text(60), "signature": f"{rng.getrandbits(800):0200x}"})
        ids = {"id": f"msg_{rng.getrandbits(96):024x}", "request": f"req_{rng.getrandbits(96):024x}"}
        output = rng.randint(80, 600)
        for index, block in enumerate(blocks):
            last = index == len(blocks) - 1
            usage = {
                "input_tokens": 3,
                "cache_creation_input_tokens": written,
                "cache_read_input_tokens": read,
                "cache_creation": {"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": 0},
                "output_tokens": output if last else 1,
                "service_tier": "standard",
            }
            message: dict[str, Any] = {
                "id": ids["id"],
                "type": "message",
                "role": "assistant",
                "model": "claude-opus-4-8",
                "content": [block],
            }
            message |= {"stop_reason": "tool_use" if last else None, "stop_sequence": None, "usage": usage}
            self.line("assistant", message=message, requestId=ids["request"])
        return call


def write_transcripts(config: Path, files: int, calls: int) -> int:
    """Write so many transcripts of so many calls below ``<config>/projects``, one in eight a sub-agent's.

    Returns
    -------
    int
        Bytes.
    """
    rng = random.Random(7)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(2000)]
    size = 0
    session = ""
    for number in range(files):
        directory = config / "projects" / f"-home-x-project{number % 12}"
        agent = f"a{number:07x}" if number % 8 == 7 else None
        if agent is None:
            session = f"{rng.getrandbits(128):032x}"
            path = directory / f"{session}.jsonl"
        else:
            path = directory / session / "subagents" / f"agent-{agent}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            made = Transcript(file, rng, words, session, agent)
            for call in range(calls):
                lost = rng.random() < 0.02
                if call % 10 == 0:
                    made.wait(rng.uniform(400, 4000) if lost else rng.uniform(5, 200))
                    made.ask()
                if call and call % 120 == 0:
                    made.compact()
                made.result(made.answer(lost=lost))
            size += file.tell()
    return size
