"""SGLang. Facts from its source, version 0.5.23."""

from __future__ import annotations

from typing import ClassVar

from loopkit.engines.rules.own_server import OwnServer

__all__ = ["SGLang"]


class SGLang(OwnServer):
    """SGLang: a radix tree of pages. The last prompt token is always processed."""

    name: ClassVar[str] = "sglang"
    processes_last_token: ClassVar[bool] = True
    cached_tokens_flag: ClassVar[str] = "--enable-cache-report"
    owned_by: ClassVar[str] = "sglang"
    version_path: ClassVar[str] = "/server_info"
