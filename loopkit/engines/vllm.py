"""vLLM. Facts from its source (kv_cache_manager) and from a real server on a CPU, version 0.32, December 2026."""

from __future__ import annotations

from typing import ClassVar

from loopkit.engines.rules.own_server import OwnServer

__all__ = ["VLLM"]


class VLLM(OwnServer):
    """vLLM: whole blocks of tokens, found by a hash of each block and all blocks before it.

    The last prompt token is always processed. A block has 16 tokens by default on a GPU and 128 on a CPU; ``--block-size`` sets
    another size. ``/metrics`` reports the size as ``vllm:cache_config_info{block_size=…}``. Expected tokens do not take the
    reported size into account yet. Completions of hybrid models and of models with a sliding window are not kept.
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
