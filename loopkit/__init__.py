"""loopkit: run, resume and study LLM agent loops whose prompt cache stays warm.

Six functions and a few modules cover daily work::

    import loopkit as lk

    server = lk.serve()                                   # or lk.connect("http://gpu-box:8080")
    loop = lk.start(server, system="Be brief.", home="runs")
    loop.ask("What is a prefix cache?")                   # streams the response; returns a Turn
    loop = lk.resume(server, loop.session.id, home="runs")
    logs = lk.load("runs")                                # logs.usage, logs.cache_loss … are DataFrames
    lk.plot.prefix_reuse(logs)
    lk.widgets.ChatPanel(loop)                            # the same in a notebook panel

Names are loaded on first use, so ``import loopkit`` is fast: pandas, matplotlib, httpx and pydantic are imported only when
needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loopkit import cache, engines, errors, logs, loop, memory, plot, record, replay, sweep, types, widgets
    from loopkit.config import Config
    from loopkit.contract.baseline import Baseline
    from loopkit.contract.neutralise import Tags
    from loopkit.errors import LoopkitError
    from loopkit.logs.collection import Logs
    from loopkit.logs.loading import load
    from loopkit.loop.events import Turn
    from loopkit.loop.limits import Limits
    from loopkit.loop.loop import Loop
    from loopkit.loop.opening import resume, start
    from loopkit.loop.tools.registry import Registry
    from loopkit.loop.tools.schemas import JsonTool
    from loopkit.server.client import Server
    from loopkit.server.opening import connect, serve
    from loopkit.session.session import Session
    from loopkit.session.verify import verify

__version__ = "0.1.0"

__all__ = [
    "Baseline",
    "Config",
    "JsonTool",
    "Limits",
    "Logs",
    "Loop",
    "LoopkitError",
    "Registry",
    "Server",
    "Session",
    "Tags",
    "Turn",
    "cache",
    "connect",
    "engines",
    "errors",
    "load",
    "logs",
    "loop",
    "memory",
    "plot",
    "record",
    "replay",
    "resume",
    "serve",
    "start",
    "sweep",
    "types",
    "verify",
    "widgets",
]

_HOMES = {
    "Baseline": "contract.baseline",
    "Config": "config",
    "JsonTool": "loop.tools.schemas",
    "Limits": "loop.limits",
    "Logs": "logs.collection",
    "Loop": "loop.loop",
    "LoopkitError": "errors",
    "Registry": "loop.tools.registry",
    "Server": "server.client",
    "Session": "session.session",
    "Tags": "contract.neutralise",
    "Turn": "loop.events",
    "connect": "server.opening",
    "load": "logs.loading",
    "resume": "loop.opening",
    "serve": "server.opening",
    "start": "loop.opening",
    "verify": "session.verify",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'loopkit' has no attribute {name!r}")
    if name in _HOMES:
        value = getattr(importlib.import_module(f"loopkit.{_HOMES[name]}"), name)
    else:
        value = importlib.import_module(f"loopkit.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
