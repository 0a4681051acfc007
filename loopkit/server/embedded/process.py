"""`start_child`: start llama.cpp's server in a child process and see that it ends.

llama.cpp runs in a child process, so its crashes and hangs do not affect this one. The child ends with ``Child.close()``, with
its last reference, and with the interpreter. It also watches its parent, and ends if the parent is killed. Its private slot
directory is removed with it. A fork of this process does not end it.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import os
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
import weakref
from pathlib import Path
from typing import IO, Any

from loopkit.encoding import decode, encode
from loopkit.errors import EncodeError, InvalidConfig, ServerNotStarted, describe
from loopkit.server.embedded.models import ModelFile

__all__ = ["Child", "read_template", "start_child", "warn_of_shorter_context"]

START_TIMEOUT = 300.0  # seconds; a model of many gigabytes on a slow disk takes minutes


def _end(process: subprocess.Popen[bytes], log: IO[bytes], remove: Path | None, owner: int) -> None:
    """End the server's process and remove its private files, if this process started it. Safe to call twice."""
    if os.getpid() != owner:
        return
    # SIGKILL, because the server has nothing to save. Closing standard input is not enough: a fork may keep the pipe open.
    process.kill()
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    log.close()
    if remove is not None:
        shutil.rmtree(remove, ignore_errors=True)


class Child:
    """A llama.cpp server in a child process. `start_child` returns one.

    Attributes
    ----------
    url : str
        Base URL, without a final slash. The host is always 127.0.0.1.
    key : str
        Random bearer token. No repr, argument list or environment contains it.
    pid : int
        Process id.
    build : str
        Version of the ``xllamacpp`` wheel.
    slot_dir : pathlib.Path
        Directory of saved slots.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], log: IO[bytes], key: str, build: str, slot_dir: Path, remove: Path | None
    ):
        self.url = ""
        self.key = key
        self.pid = process.pid
        self.build = build
        self.slot_dir = slot_dir
        self._process = process
        self._log = log
        self._ending = (process, log, remove, os.getpid())
        self._finalizer = weakref.finalize(self, _end, *self._ending)

    def __repr__(self) -> str:
        return f"Child({self.url!r}, pid={self.pid}, {'alive' if self.alive() else 'ended'})"

    def _send(self, line: bytes) -> None:
        """Write the configuration to the process."""
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the process has ended already; its log has the cause
            stdin.write(line + b"\n")
            stdin.flush()

    def alive(self) -> bool:
        """Return True while the process runs."""
        return self._process.poll() is None

    def gone(self) -> str | None:
        """Return a message with the last output once the process has ended; None while it runs."""
        return None if self.alive() else f"the embedded process has ended; its last output: {self.log_tail(300).strip()}"

    def log_tail(self, size: int = 4000) -> str:
        """Return the end of the process's output.

        Parameters
        ----------
        size : int
            Bytes to read.

        Returns
        -------
        str
            The text, without the key. Empty after `close`.
        """
        if self._log.closed:
            return ""
        # pread leaves the file position alone, which the child's descriptor shares.
        end = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), size, max(0, end - size))
        return tail.decode("utf-8", "replace").replace(self.key, "…")

    def close(self) -> None:
        """End the process and remove its private files. Safe to call twice."""
        _end(*self._ending)  # called directly, because a finalizer runs only once: an interrupted `close` can be repeated
        self._finalizer.detach()


def read_template(template: str | os.PathLike[str]) -> str:
    """Return the text of a chat template, given the text itself or the path of a file.

    Parameters
    ----------
    template : str or path
        A str with a brace is the text. Anything else is a path.

    Returns
    -------
    str
        The template's text.

    Raises
    ------
    InvalidConfig
        The file cannot be read, or its text has no brace.

    Examples
    --------
    >>> read_template("{{ messages }}")
    '{{ messages }}'
    """
    if isinstance(template, str) and "{" in template:
        return template
    try:
        text = Path(template).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = f"{os.fspath(template)!r} has no brace and cannot be read as a file: {describe(error)}"
        raise InvalidConfig("template", why, "Pass the text of a Jinja template, or the path of a file with one") from error
    if "{" not in text:
        raise InvalidConfig("template", f"the file {os.fspath(template)!r} has no brace", "Pass a file with a Jinja template")
    return text


def warn_of_shorter_context(model: str, *, asked: int, actual: int | None) -> bool:
    """Warn if the server's slots are smaller than asked for.

    Parameters
    ----------
    model : str
        Name of the model.
    asked, actual : int
        Tokens per slot, as passed to `start_child` and as reported by the server.

    Returns
    -------
    bool
        True after a warning.
    """
    if actual is None or actual >= asked:
        return False
    warnings.warn(
        f"The context is {actual:,} tokens per slot, not {asked:,}, because {model} was not trained on more. "
        f"Pass context={actual}, or use a model with a longer context.",
        stacklevel=3,
    )
    return True


def start_child(
    model: ModelFile,
    *,
    slots: int = 2,
    context: int = 4096,
    template: str | os.PathLike[str] | None = None,
    cache_ram_mib: int = 256,
    slot_dir: Path | None = None,
    **llama: Any,
) -> Child:
    """Start llama.cpp's own server in a child process.

    Parameters
    ----------
    model : ModelFile
        The model; see `loopkit.server.embedded.models.resolve`.
    slots : int
        Number of conversations that keep their KV cache at the same time.
    context : int
        Tokens per slot. llama.cpp rounds it up to a multiple of 256, and cuts it to the context that the model was trained on.
    template : str or path, optional
        Text or file of a chat template to use instead of the model's; see `read_template`.
    cache_ram_mib : int
        MiB of host memory for conversations that lost their slot; 0 for none.
    slot_dir : pathlib.Path, optional
        Existing directory for saved slots. By default a private one that is removed at the end.
    **llama
        Parameters of llama.cpp, by the names of ``xllamacpp.CommonParams``, and ``n_threads``.

    Returns
    -------
    Child
        A process that accepts connections.

    Raises
    ------
    InvalidConfig
        An argument cannot be used. An unknown parameter is answered with the nearest known names.
    ServerNotStarted
        ``xllamacpp`` is not installed, or the process ended or hung before it accepted connections.

    Examples
    --------
    >>> from loopkit.server.embedded.models import resolve
    >>> child = start_child(resolve("tiny"))
    >>> child.alive()
    True
    >>> child.close()
    """
    for name, value in (("slots", slots), ("context", context)):
        if type(value) is not int or value < 1:
            raise InvalidConfig(name, f"expected an integer of at least 1; got {value!r}")
    if slots * context >= 1 << 31:
        why = f"{slots:,} slots of {context:,} tokens exceed llama.cpp's limit of {(1 << 31) - 1:,} tokens"
        raise InvalidConfig("context", why, "Use fewer slots or a smaller context")
    try:
        build = importlib.metadata.version("xllamacpp")
    except importlib.metadata.PackageNotFoundError:
        raise ServerNotStarted("xllamacpp is not installed", "", "Run: pip install 'loopkit-lab[local]'") from None
    text = (model.template or "") if template is None else read_template(template)
    if slot_dir is not None and not Path(slot_dir).is_dir():
        raise InvalidConfig("slot_dir", f"{str(slot_dir)!r} is not an existing directory", "Create it first")
    private = Path(tempfile.mkdtemp(prefix="loopkit-slots-")) if slot_dir is None else None  # 0700
    folder = private or Path(slot_dir or "").absolute()
    key = secrets.token_urlsafe(24)
    try:
        config = encode(
            {
                "parent": os.getpid(),
                "model": str(model.path),
                "name": model.name,
                "template": text,
                "key": key,
                "slots": slots,
                "context": context,
                "slot_dir": f"{folder}{os.sep}",
                "private": None if private is None else str(private),
                "llama": {"cache_ram_mib": cache_ram_mib, **llama},
            },
            "serve",
        )
        child, pipe = _spawn(key, build, folder, private)
    except BaseException as error:
        if private is not None:
            shutil.rmtree(private, ignore_errors=True)
        if isinstance(error, EncodeError):
            raise InvalidConfig(error.member, error.why) from error
        raise
    try:
        child._send(config)
        reply = _await_reply(child, pipe)
        if "invalid" in reply:
            raise InvalidConfig(*reply["invalid"])
        child.url = reply["address"]
    except BaseException:
        child.close()
        raise
    finally:
        os.close(pipe)
    return child


def _spawn(key: str, build: str, folder: Path, private: Path | None) -> tuple[Child, int]:
    """Start the process, which waits for its configuration. Return it with the descriptor that its reply is read from."""
    read, low = os.pipe()
    # If a standard descriptor is closed here, the pipe gets its number, and the child's output would replace the pipe.
    write = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(low)
    log = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the child lives
    try:
        process = subprocess.Popen(  # noqa: S603  # this interpreter, this package's file
            # A file and -P keep the notebook's directory and this package out of the child's import path.
            [sys.executable, "-P", str(Path(__file__).with_name("child.py")), str(write)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(write,),
            start_new_session=True,  # Ctrl-C and a kernel's interrupt must not reach the server
        )
    except BaseException:
        os.close(read)
        log.close()
        raise
    finally:
        os.close(write)
    return Child(process, log, key, build, folder, private), read


def _last_errors(child: Child) -> str:
    """Return the errors in the process's log, oldest first; the whole log if it has none."""
    text = child.log_tail().strip()
    errors = [line.split(" E ", 1)[1] for line in text.split("\n") if " E " in line]
    return "; ".join(" ".join(each.split()) for each in errors) or text


def _await_reply(child: Child, pipe: int) -> dict[str, Any]:
    """Wait for the line with the server's address."""
    end = time.monotonic() + START_TIMEOUT
    line = b""
    while not line.endswith(b"\n"):
        alive = child.alive()  # asked before the pipe is read, because the process may reply and end between the two
        ready, _, _ = select.select([pipe], [], [], 0.2)
        part = os.read(pipe, 65536) if ready else b""
        line += part
        # The end of the pipe is not enough, because a process forked meanwhile keeps it open.
        if not part and (ready or not alive):
            status = child._process.wait()
            raise ServerNotStarted(
                f"its process ended with status {status}",
                _last_errors(child),
                "Check that this llama.cpp supports the GGUF file, that the template is valid, and that memory is sufficient",
            )
        if time.monotonic() > end:
            raise ServerNotStarted(
                f"it did not accept connections within {START_TIMEOUT:.0f} s",
                _last_errors(child),
                "Try a smaller model or context",
            )
    reply: dict[str, Any] = decode(line)
    return reply
