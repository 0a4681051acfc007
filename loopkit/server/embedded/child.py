"""The embedded server's own process: llama.cpp behind a loopback port, and a thread that watches the parent.

Run by ``loopkit.server.embedded.process`` as a file, so that it imports nothing but the standard library and ``xllamacpp``.
Standard input brings one JSON line (the key in it: argv and the environment can be read by others); the pipe whose
number is the only
argument takes one JSON line back: ``{"address": …}``, or ``{"invalid": [member, why]}``. No line means that the start failed, and
the log says why.

It ends when standard input ends, or when the parent's pidfd turns readable: a process that the parent forked may hold the
pipe open for ever. Not by ``prctl(PR_SET_PDEATHSIG)``, which fires when the *thread* that started the child ends.
"""

from __future__ import annotations

import difflib
import enum
import json
import os
import select
import shutil
import sys
import threading
from typing import Any, NoReturn

# What loopkit decides: who may reach the server, what it may touch, and what `serve` has an argument for.
_OWN = {
    "model": "is the first argument",
    "n_ctx": "is context=, and counts per slot",
    "n_parallel": "is slots=",
    "chat_template": "is template=",
    "cpuparams": "is n_threads=",
    "cpuparams_batch": "is n_threads=",
    "slot_save_path": "is slot_dir=",
}
_CLOSED = (
    "api_",
    "cors_",
    "endpoint_",
    "hostnames",
    "mcp_",
    "media_path",
    "port",
    "public_path",
    "reuse_port",
    "server_",
    "ssl_",
    "ui",
)


class _InvalidError(Exception):
    """A parameter that llama.cpp has not, or not so."""


def _leave(private: str | None) -> NoReturn:
    """End this process, and remove what is private to it: a parent that was killed could not."""
    if private is not None:
        shutil.rmtree(private, ignore_errors=True)
    os._exit(0)


def _watch(parent: int, private: str | None) -> None:
    """End this process when the parent ends or lets go of standard input."""
    watched = [0]
    if hasattr(os, "pidfd_open"):
        try:
            watched.append(os.pidfd_open(parent))
        except ProcessLookupError:
            _leave(private)
        except OSError:
            pass  # a sandbox without pidfd: the end of standard input is what is left
    if os.getppid() != parent:
        _leave(private)  # it was gone before we looked, and its number may be another's by now
    while True:
        ready, _, _ = select.select(watched, [], [])
        # os.read, not sys.stdin: the buffered reader aborts the interpreter when a failed start ends it
        if ready != [0] or not os.read(0, 4096):
            _leave(private)


def _convert(current: Any, value: Any) -> Any:
    """The value as the type that stands there now."""
    if isinstance(current, enum.Enum):
        names = [member.name for member in type(current)]
        if value not in names:
            raise _InvalidError(f"{value!r} is none of {', '.join(names)}")
        return type(current)[value]
    if isinstance(current, float) and type(value) is int:
        return float(value)
    if type(value) is not type(current):
        raise _InvalidError(f"{value!r} is {type(value).__name__}, and llama.cpp takes {type(current).__name__} here")
    return value


def _set(params: Any, name: str, value: Any) -> None:
    """Set one of llama.cpp's own parameters, or say why not."""
    if name in _OWN:
        raise _InvalidError(f"this parameter {_OWN[name]}")
    if name.startswith(_CLOSED):
        raise _InvalidError("loopkit sets this one itself: the embedded server is for this process alone")
    if name == "n_threads":
        for cpu in (params.cpuparams, params.cpuparams_batch):
            cpu.n_threads = _convert(cpu.n_threads, value)
        return
    plain = (bool, int, float, str, list, dict, enum.Enum)
    known = [each for each in dir(params) if not each.startswith(("_", *_CLOSED)) and isinstance(getattr(params, each), plain)]
    known = [each for each in known if each not in _OWN] + ["n_threads"]
    if name not in known:
        near = difflib.get_close_matches(name, [*known, "slots", "context", "template", "slot_dir"], 3, 0.5)
        raise _InvalidError("llama.cpp has no such parameter" + (f"; the nearest: {', '.join(near)}" if near else ""))
    try:
        setattr(params, name, _convert(getattr(params, name), value))
    except (TypeError, ValueError, OverflowError) as error:
        raise _InvalidError(f"llama.cpp does not take {value!r}: {error}") from error


def _serve(config: dict[str, Any]) -> Any:
    """Start the server that the configuration describes; it listens when this returns."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = config["model"]
    params.model_alias = {config["name"]}  # what clients are told, and what is logged: no path of this machine
    params.chat_template = config["template"]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [config["key"]]
    # A web page open in the same browser can neither use it (the key) nor read from it (no allowed origin).
    params.cors_origins = ""
    params.cors_origins_explicit = True
    params.cors_credentials = False
    params.ui = False
    params.endpoint_slots = params.endpoint_props = params.endpoint_metrics = True
    params.slot_save_path = config["slot_dir"]
    params.n_parallel = config["slots"]
    params.n_ctx = config["slots"] * config["context"]
    params.kv_unified = False
    params.warmup = False
    params.verbosity = 2  # warnings: at 3 the log grows by a kilobyte a request
    # llama.cpp's threads spin: as many as there are cores, on a loaded machine, run ten to forty times slower.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = max(1, cores - 1)
    for name, value in config["llama"].items():
        try:
            _set(params, name, value)
        except _InvalidError as error:
            return {"invalid": [name, str(error)]}, None
    server = xllamacpp.Server(params)
    return {"address": server.listening_address}, server


def main() -> None:
    """Read the configuration, serve, answer, and stay until the parent is gone."""
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        config = json.loads(stdin.readline())  # noqa: TID251  # loopkit.encoding would bring msgspec into this process
    watcher = threading.Thread(target=_watch, args=(config["parent"], config["private"]), daemon=True)
    watcher.start()
    answer, server = _serve(config)
    with open(int(sys.argv[1]), "wb") as pipe:
        pipe.write(json.dumps(answer).encode() + b"\n")  # noqa: TID251  # as above
    if server is not None:
        watcher.join()


if __name__ == "__main__":
    main()
