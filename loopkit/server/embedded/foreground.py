"""``loopkit serve``: an embedded server for other programs, until Ctrl-C.

The API key is printed once, and written to a file in the user's runtime directory that only this user can read. The file is
removed when the server ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from loopkit.errors import ServerNotStarted
from loopkit.server import llama_api
from loopkit.server.embedded.models import resolve
from loopkit.server.embedded.process import start_child, warn_of_shorter_context
from loopkit.server.transport.connection import Wire

__all__ = ["serve_until_stopped"]


def serve_until_stopped(model: str, *, slots: int, context: int) -> int:
    """Run an embedded server until this process receives SIGINT or SIGTERM.

    Parameters
    ----------
    model : str
        ``"smollm2"``, ``"tiny"`` or the path of a GGUF file.
    slots : int
        Number of conversations that keep their cache at the same time.
    context : int
        Tokens per slot.

    Returns
    -------
    int
        The exit status: 0.

    Raises
    ------
    ServerNotStarted
        The server's process ended without such a signal.
    """
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    file = resolve(model)
    child = start_child(file, slots=slots, context=context)
    try:
        wire = Wire(child.url, api_key=child.key)
        with contextlib.closing(wire):
            warn_of_shorter_context(file.name, asked=context, actual=llama_api.props(wire).context_size)
        with _key_file(child.pid, child.key) as path:
            print(f"url   {child.url}\nkey   {child.key}\nfile  {path}\nCtrl-C ends the server and removes the file.", flush=True)
            while not stop.wait(0.5):
                if not child.alive():
                    raise ServerNotStarted("its process ended", child.log_tail())
    finally:
        child.close()
    return 0


@contextlib.contextmanager
def _key_file(pid: int, key: str) -> Iterator[Path]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without XDG_RUNTIME_DIR, platformdirs warns and uses a temporary directory
        folder = Path(platformdirs.user_runtime_dir("loopkit"))
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"serve-{pid}.key"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(key + "\n")
        yield path
    finally:
        path.unlink(missing_ok=True)
