"""vLLM. Facts from its source (kv_cache_manager) and from a real server on a CPU, version 0.32, December 2026."""

from __future__ import annotations

from typing import ClassVar

from loopkit.engines.rules.own_server import OwnServer

__all__ = ["VLLM"]


class VLLM(OwnServer):
    """vLLM: whole blocks of tokens, kept by a hash chain. The last prompt token is always processed.

    The block is 16 tokens by default on a GPU and 128 on a CPU; ``--block-size`` sets it. ``/metrics`` reports it as
    ``vllm:cache_config_info{block_size=…}``. Expectations do not use the reported block yet. Completions of hybrid models and
    of models with a sliding window are not kept.
    """

    name: ClassVar[str] = "vllm"
    block: ClassVar[int] = 16
    exact: ClassVar[bool] = True
    processes_last_token: ClassVar[bool] = True
    prompt_tokens_from = "tokenize-chat"
    cached_tokens_flag: ClassVar[str] = "--enable-prompt-tokens-details"
    owned_by: ClassVar[str] = "vllm"
    version_path: ClassVar[str] = "/version"
    log_names: ClassVar[frozenset[str]] = frozenset(["vllm", "hosted_vllm"])
