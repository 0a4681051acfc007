"""Names of providers in other tools' logs: every adapter knows the same names, and case does not matter."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import loopkit as lk
from loopkit.logs.foreign.entries import RequestEntry
from loopkit.logs.foreign.formats import inspect_eval
from loopkit.logs.foreign.formats import pi as pi_sessions
from loopkit.logs.foreign.logged_exchanges import response_facts
from loopkit.logs.foreign.text_source import TextLine, TextSource

TIME = "2026-11-30T07:31:05Z"
NAMES = {
    "anthropic": "anthropic",
    "Anthropic": "anthropic",
    "openai-codex": "openai",
    "azure": "openai",
    "AZURE-openai-responses": "openai",
    "google": "gemini",
    "google-vertex": "gemini",
    "gcp.vertex_ai": "gemini",
    "DeepSeek": "deepseek",
    "hosted_vllm": "vllm",
    "llama.cpp": "llama.cpp",
    "acme": None,
}


def engine_of(path: Path, *lines: dict[str, Any]) -> Any:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    [engine] = lk.load(path).sessions["engine"].astype(object).where(lambda found: found.notna(), None).tolist()
    return engine


def pi(folder: Path, name: str, **more: int) -> Any:
    usage = {"input": 100, "cacheRead": 0, "output": 1, **more}
    message = {"role": "assistant", "content": [], "provider": name, "model": "m", "usage": usage, "timestamp": 1775448000100}
    begin = {"type": "session", "version": 3, "id": "s", "timestamp": TIME, "cwd": "."}
    return engine_of(
        folder / "x.jsonl", begin, {"type": "message", "id": "1", "parentId": None, "timestamp": TIME, "message": message}
    )


def codex(folder: Path, name: str | None) -> Any:
    counts = {"input_tokens": 100, "cached_input_tokens": 0, "output_tokens": 1}
    info = {"total_token_usage": counts, "last_token_usage": counts}
    return engine_of(
        folder / "x.jsonl",
        {"timestamp": TIME, "type": "session_meta", "payload": {"id": "c", "model_provider": name}},
        {"timestamp": TIME, "type": "event_msg", "payload": {"type": "token_count", "info": info}},
    )


def otel(folder: Path, name: str) -> Any:
    span = {
        "traceId": "t",
        "spanId": "a",
        "name": "chat",
        "startTimeUnixNano": "1",
        "endTimeUnixNano": "2",
        "attributes": [
            {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
            {"key": "gen_ai.provider.name", "value": {"stringValue": name}},
            {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "100"}},
        ],
    }
    return engine_of(folder / "x.jsonl", {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})


def inspect(folder: Path, name: str) -> Any:
    output = SimpleNamespace(usage=None, error=None, response_id=None, choices=[])
    at = SimpleNamespace(isoformat=lambda: TIME)
    event = SimpleNamespace(
        cache=None,
        pending=None,
        error=None,
        call=None,
        span_id="s",
        uuid="u",
        output=output,
        timestamp=at,
        completed=at,
        model=f"{name}/m",
    )
    source = TextSource(folder / "x.eval", errors="raise")
    [exchange] = inspect_eval._exchange(source, SimpleNamespace(id=1, epoch=1), event)
    return exchange.facts["engine"]


def bodies(folder: Path, name: str) -> Any:
    facts = response_facts(TextSource(folder / "x", errors="raise"), TextLine(b"", 1, 0), b"{}", provider=name)
    assert facts is not None
    return facts["engine"]


@pytest.mark.parametrize("adapter", [pi, codex, otel, inspect, bodies])
@pytest.mark.parametrize("name", NAMES)
def test_each_adapter_knows_the_name(adapter: Callable[[Path, str], Any], name: str, tmp_path: Path) -> None:
    assert adapter(tmp_path, name) == NAMES[name]


@pytest.mark.parametrize(
    ("name", "usage", "seconds"),
    [
        ("anthropic", {"cacheWrite": 90}, 300.0),
        ("Anthropic", {"cacheWrite": 90, "cacheWrite1h": 90}, 3600.0),
        ("anthropic", {"cacheWrite": 0}, None),
        ("openai", {"cacheWrite": 90}, None),
        ("acme", {"cacheWrite": 90}, None),
    ],
)
def test_a_write_is_kept_as_long_as_its_provider_keeps_it(
    name: str, usage: dict[str, int], seconds: float | None, tmp_path: Path
) -> None:
    pi(tmp_path, name, **usage)
    found = pi_sessions.entries(TextSource(tmp_path / "x.jsonl", errors="raise"), texts=False)
    assert [each.kept_seconds for each in found if isinstance(each, RequestEntry)] == [seconds]


def test_codex_names_only_other_providers(tmp_path: Path) -> None:
    assert codex(tmp_path, None) == "openai"


@pytest.mark.parametrize("order", [1, -1])
def test_timings_beside_usage_in_anthropics_form_are_llama_cpps(order: int) -> None:
    """llama-server answers ``/v1/messages`` too."""
    response = {
        "usage": {"input_tokens": 3, "cache_read_input_tokens": 90, "output_tokens": 1},
        "timings": {"cache_n": 90, "prompt_n": 3, "predicted_n": 1},
    }
    text = json.dumps(dict(list(response.items())[::order])).encode()
    facts = response_facts(TextSource(Path("x"), errors="raise"), TextLine(b"", 1, 0), text)
    assert facts is not None
    assert facts["engine"] == "llama.cpp"
    assert facts["usage"].prompt_tokens == 93
    assert facts["usage"].cached_tokens == 90
