"""llama.cpp's server (llama-server). Facts from its source of October 2026 (commit 0c1e570), tested against the real server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from loopkit.engines.evidence.diagnosis import Diagnosis, FixableBy
from loopkit.engines.evidence.observation import Observation
from loopkit.engines.rules import llama_slots
from loopkit.engines.rules.own_server import OwnServer

__all__ = ["LlamaCpp"]


class LlamaCpp(OwnServer):
    """llama.cpp: slots that keep every token of a conversation, and a host cache in main memory for idle conversations.

    A slot keeps the prompt and the completion without its last sampled token (upstream's test_slot_save.py: 84 = 21 + 64 - 1).
    At least one prompt token is always processed (server-context.cpp, ``TAG_PROMPT_LOGITS``). Models with sliding-window or
    recurrent memory can only continue from checkpoints. The diagnosis rules are in `loopkit.engines.rules.llama_slots`.
    """

    name: ClassVar[str] = "llama.cpp"
    block: ClassVar[int] = 1
    exact: ClassVar[bool] = True
    processes_last_token: ClassVar[bool] = True
    keeps_completions: ClassVar[bool] = True
    has_slots: ClassVar[bool] = True
    prompt_tokens_from = "apply-template"
    any_model_name: ClassVar[bool] = True
    body_members: ClassVar[Mapping[str, Any]] = {"cache_prompt": True, "return_progress": True}
    owned_by: ClassVar[str] = "llamacpp"
    server_header: ClassVar[str] = "llama.cpp"
    log_names: ClassVar[frozenset[str]] = frozenset(["llama.cpp", "llamacpp", "llama_cpp"])
    verdicts: ClassVar[Mapping[str, tuple[str, FixableBy]]] = {"no_checkpoint": ("no_checkpoint", "server")}

    def wrote_response(self, response: Mapping[str, Any]) -> bool:
        return isinstance(response.get("timings"), dict) and bool(response["timings"])

    def diagnose(
        self, previous: Observation, now: Observation, between: Sequence[Observation], reusable: int
    ) -> Diagnosis | None:
        found = super().diagnose(previous, now, between, reusable)
        return found or llama_slots.not_cut_back(previous, now, {"slot": previous.used_slot})
