"""``loopkit serve``: the embedded server for other programs, until Ctrl-C.

The key is printed once and stands in one file, mode 0600, in the user's runtime directory; the file goes when the server ends.
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
from loopkit.server.embedded.models import resolve
from loopkit.server.embedded.process import start_child

__all__ = ["serve_until_stopped"]


def serve_until_stopped(model: str, *, slots: int, context: int) -> int:
    """Run the embedded server in front until SIGINT or SIGTERM.

    Parameters
    ----------
    model : str
        ``"smollm2"``, ``"tiny"`` or the path of a GGUF file.
    slots, context : int
        Conversations kept at once, and tokens for each.

    Returns
    -------
    int
        The exit status: 0.

    Raises
    ------
    ServerNotStarted
        When the server ends by itself.
    """
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    child = start_child(resolve(model), slots=slots, context=context)
    try:
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
        warnings.simplefilter("ignore")  # without XDG_RUNTIME_DIR it says that it takes a temporary directory: fine
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
