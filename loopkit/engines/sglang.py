"""SGLang. Facts from its source and from a real server on a CPU, version 0.5.23, December 2026."""

from __future__ import annotations

from typing import ClassVar

from loopkit.engines.rules.own_server import OwnServer

__all__ = ["SGLang"]


class SGLang(OwnServer):
    """SGLang: a radix tree of pages, shared by all requests. The last prompt token is always processed.

    ``cached = floor(min(common prefix, prompt - 1) / page) * page`` held in 200 of 200 requests to the real server. The tree
    keeps the prompt and the completion, less the last token if the length limit ended it. ``--strip-thinking-cache`` keeps the
    prompt alone. A page is 1 token, or 64 or 128 with some attention backends; ``/server_info`` reports it as ``page_size``. By
    default, the least recently used leaves are evicted first. Expectations do not use the page yet: the base's bounds apply.

    The usage has ``prompt_tokens_details.cached_tokens`` only with ``--enable-cache-report``.
    """

    name: ClassVar[str] = "sglang"
    processes_last_token: ClassVar[bool] = True
    cached_tokens_flag: ClassVar[str] = "--enable-cache-report"
    owned_by: ClassVar[str] = "sglang"
    version_path: ClassVar[str] = "/server_info"
