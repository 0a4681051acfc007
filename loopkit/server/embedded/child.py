"""The program of the embedded server's child process: llama.cpp on a loopback port, and a thread that watches the parent.

``loopkit.server.embedded.process`` runs this file, which imports only the standard library and ``xllamacpp``.

- Input: the first line of standard input is the configuration as JSON. The API key is passed there, because other users of the
  machine may read command-line arguments and environments.
- Output: the only argument is the file descriptor of a pipe. This program writes one JSON line to the pipe, either
  ``{"address": …}`` or ``{"invalid": [parameter, why]}``. If the start fails otherwise, it writes no line, and the log contains
  the cause.

The process ends when standard input ends, or when the parent's pidfd (a file descriptor that refers to a process) shows that the
parent has ended. The pidfd is needed because a fork of the parent may keep standard input open. ``prctl(PR_SET_PDEATHSIG)``
would not do: its signal is sent when the *thread* that started the child ends.
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

# Parameters of llama.cpp that are arguments of `serve`, with the rest of the error message.
_ARGUMENTS = {
    "model": "is the first argument",
    "n_ctx": "is context=, and counts per slot",
    "n_parallel": "is slots=",
    "chat_template": "is template=",
    "cpuparams": "is n_threads=",
    "cpuparams_batch": "is n_threads=",
    "slot_save_path": "is slot_dir=",
}
# Prefixes of parameters that only loopkit sets, because they give access to the server, to files or to tools.
_RESERVED = (
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
    """Raised for a parameter that is unknown, set only by loopkit, or of the wrong type."""


def _exit(private: str | None) -> NoReturn:
    """Remove the private slot directory, because a killed parent cannot remove it, and end this process."""
    if private is not None:
        shutil.rmtree(private, ignore_errors=True)
    os._exit(0)


def _watch(parent: int, private: str | None) -> None:
    """End this process when the parent ends or closes standard input."""
    watched = [0]
    if hasattr(os, "pidfd_open"):
        try:
            watched.append(os.pidfd_open(parent))
        except ProcessLookupError:
            _exit(private)
        except OSError:
            pass  # a sandbox may forbid pidfd_open; then only the end of standard input is watched
    if os.getppid() != parent:
        _exit(private)  # the parent ended before pidfd_open, so the pidfd may refer to another process with the same number
    while True:
        ready, _, _ = select.select(watched, [], [])
        # Use os.read: if this thread waited in sys.stdin, Python would abort when the main thread ends after a failed start.
        if ready != [0] or not os.read(0, 4096):
            _exit(private)


def _convert(current: Any, value: Any) -> Any:
    """Return `value` converted to the type of `current`, the parameter's present value. Raise `_InvalidError` for other types."""
    if isinstance(current, enum.Enum):
        names = [member.name for member in type(current)]
        if value not in names:
            raise _InvalidError(f"expected one of {', '.join(names)}; got {value!r}")
        return type(current)[value]
    if isinstance(current, float) and type(value) is int:
        return float(value)
    if type(value) is not type(current):
        raise _InvalidError(f"expected {type(current).__name__}; got {type(value).__name__} ({value!r})")
    return value


def _set(params: Any, name: str, value: Any) -> None:
    """Set one parameter of llama.cpp.

    Raises
    ------
    _InvalidError
        The parameter is unknown or set only by loopkit, or its value is invalid.
    """
    if name in _ARGUMENTS:
        raise _InvalidError(f"this parameter {_ARGUMENTS[name]}")
    if name.startswith(_RESERVED):
        raise _InvalidError("loopkit sets this parameter itself, because only this process may use the embedded server")
    if name == "n_threads":
        for cpu in (params.cpuparams, params.cpuparams_batch):
            cpu.n_threads = _convert(cpu.n_threads, value)
        return
    plain = (bool, int, float, str, list, dict, enum.Enum)
    known = [each for each in dir(params) if not each.startswith(("_", *_RESERVED)) and isinstance(getattr(params, each), plain)]
    known = [each for each in known if each not in _ARGUMENTS] + ["n_threads"]
    if name not in known:
        near = difflib.get_close_matches(name, [*known, "slots", "context", "template", "slot_dir"], 3, 0.5)
        raise _InvalidError("llama.cpp has no such parameter" + (f". The nearest names: {', '.join(near)}" if near else ""))
    try:
        setattr(params, name, _convert(getattr(params, name), value))
    except (TypeError, ValueError, OverflowError) as error:
        raise _InvalidError(f"llama.cpp rejects {value!r}: {error}") from error


def _serve(config: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Start the configured server. Return the reply for the parent, and the server (None if a parameter is invalid)."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = config["model"]
    params.model_alias = {config["name"]}  # the model's name in responses and logs, so that they do not contain a path
    params.chat_template = config["template"]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [config["key"]]
    # Web pages in the user's browser must not use the server: they have no API key, and no origin is allowed.
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
    params.verbosity = 2  # warnings and errors; level 3 would log 1 kB for each request
    # llama.cpp's threads wait in busy loops. With one on every core of a busy machine, the server is 10 to 40 times slower.
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
    """Read the configuration, start the server, reply to the parent, and run until the parent ends."""
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        config = json.loads(stdin.readline())  # noqa: TID251  # loopkit.encoding imports msgspec
    watcher = threading.Thread(target=_watch, args=(config["parent"], config["private"]), daemon=True)
    watcher.start()
    reply, server = _serve(config)
    with open(int(sys.argv[1]), "wb") as pipe:
        pipe.write(json.dumps(reply).encode() + b"\n")  # noqa: TID251  # loopkit.encoding imports msgspec
    if server is not None:
        watcher.join()


if __name__ == "__main__":
    main()
