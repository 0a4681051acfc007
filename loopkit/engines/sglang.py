"""SGLang. Facts from its source and from a real server on a CPU, version 0.5.23, December 2026."""

from __future__ import annotations

from typing import ClassVar

from loopkit.engines.rules.own_server import OwnServer

__all__ = ["SGLang"]


class SGLang(OwnServer):
    """SGLang: a radix tree that all requests share, with pages (blocks) of tokens.

    The last prompt token is always processed. The formula ``cached = floor(min(common prefix, prompt - 1) / page) * page`` was
    true for 200 of 200 requests to the real server. The tree keeps the prompt and the completion. If the completion reached the
    length limit, its last token is not kept. With ``--strip-thinking-cache``, the tree keeps only the prompt. By default, the
    least recently used leaves are evicted first.

    A page has 1 token, or 64 or 128 with some attention backends; ``/server_info`` reports the size as ``page_size``. Expected
    tokens do not take the page size into account yet. The bounds of the base class `OwnServer` apply.

    The usage has ``prompt_tokens_details.cached_tokens`` only if the server runs with ``--enable-cache-report``.
    """

    name: ClassVar[str] = "sglang"
    processes_last_token: ClassVar[bool] = True
    cached_tokens_flag: ClassVar[str] = "--enable-cache-report"
    owned_by: ClassVar[str] = "sglang"
    version_path: ClassVar[str] = "/server_info"
