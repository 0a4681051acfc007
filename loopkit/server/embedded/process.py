"""`start_child`: start llama.cpp's server in a child process and make sure that the process ends.

llama.cpp runs in a child process, so that a crash or hang of llama.cpp does not affect this process. The child process ends when
``Child.close()`` is called, when the `Child` is garbage-collected, or when this interpreter exits. If this process is killed,
the child notices and ends itself. When the child ends, its private slot directory is removed. A fork of this process cannot end
the child.
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

START_TIMEOUT = 300.0  # seconds; loading a model of many gigabytes from a slow disk takes minutes


def _end(process: subprocess.Popen[bytes], log: IO[bytes], remove: Path | None, owner: int) -> None:
    """Kill the server's process and remove its private directory. Safe to call twice, and without effect in a fork."""
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
    """A llama.cpp server that runs in a child process, as returned by `start_child`.

    Attributes
    ----------
    url : str
        Base URL, without a final slash. The host is always 127.0.0.1.
    key : str
        API key of the server: a random bearer token. It is kept out of reprs, command-line arguments and the environment.
    pid : int
        Process id of the child.
    build : str
        Version of the installed package ``xllamacpp``.
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
        """Write one line, the configuration, to the standard input of the process."""
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the process has ended already, and its log contains the cause
            stdin.write(line + b"\n")
            stdin.flush()

    def alive(self) -> bool:
        """Return True while the process runs."""
        return self._process.poll() is None

    def gone(self) -> str | None:
        """Return None while the process runs; afterwards, a message that contains the end of its output."""
        return None if self.alive() else f"the embedded process has ended; its last output: {self.log_tail(300).strip()}"

    def log_tail(self, size: int = 4000) -> str:
        """Return the end of the process's output.

        Parameters
        ----------
        size : int
            Number of bytes to read.

        Returns
        -------
        str
            The text, in which the API key is replaced by "…". Empty after `close`.
        """
        if self._log.closed:
            return ""
        # pread does not move the file position, which this process shares with the child that writes the file.
        end = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), size, max(0, end - size))
        return tail.decode("utf-8", "replace").replace(self.key, "…")

    def close(self) -> None:
        """Kill the process and remove its private slot directory. Safe to call twice."""
        # Called directly and not through the finalizer, which runs only once: an interrupted `close` can then be repeated.
        _end(*self._ending)
        self._finalizer.detach()


def read_template(template: str | os.PathLike[str]) -> str:
    """Return the text of a chat template, given the text itself or the path of a file.

    Parameters
    ----------
    template : str or path
        A str that contains ``{`` is the text. Anything else is a path.

    Returns
    -------
    str
        The template's text.

    Raises
    ------
    InvalidConfig
        The file cannot be read, or its text does not contain ``{``.

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
    """Warn if the server's slots have fewer tokens than requested.

    Parameters
    ----------
    model : str
        Name of the model.
    asked, actual : int
        Tokens per slot: the number passed to `start_child`, and the number that the server reports.

    Returns
    -------
    bool
        True if a warning was issued.
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
        The model's file, as returned by `loopkit.server.embedded.models.resolve`.
    slots : int
        Number of conversations that keep their KV cache at the same time.
    context : int
        Tokens per slot. llama.cpp rounds the number up to a multiple of 256, but does not exceed the model's trained context.
    template : str or path, optional
        Text or file of a chat template to use instead of the model's; see `read_template`.
    cache_ram_mib : int
        MiB of host memory that keep the KV cache of conversations without a slot; 0 turns this off.
    slot_dir : pathlib.Path, optional
        Existing directory for saved slots. By default a private directory, which is removed when the server ends.
    **llama
        Parameters of llama.cpp, named as in ``xllamacpp.CommonParams``, and ``n_threads``.

    Returns
    -------
    Child
        The running process. Its server accepts connections at ``url``.

    Raises
    ------
    InvalidConfig
        An argument has an invalid value or an unknown name. For an unknown name, the message lists the nearest known ones.
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
    """Start the process, which first waits for its configuration.

    Return the process, and the file descriptor of the pipe from which its reply is read.
    """
    read, low = os.pipe()
    # Use a number above 2. If this process has closed a standard descriptor, the new pipe has its number, and Popen would then
    # replace the pipe by the child's standard input or output.
    write = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(low)
    log = tempfile.TemporaryFile()  # noqa: SIM115  # stays open while the child runs
    try:
        process = subprocess.Popen(  # noqa: S603  # this interpreter, this package's file
            # Running a file with -P keeps the current directory and this package's directory out of the child's import path.
            [sys.executable, "-P", str(Path(__file__).with_name("child.py")), str(write)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(write,),
            start_new_session=True,  # so that Ctrl-C or the interrupt of a Jupyter kernel does not reach the server
        )
    except BaseException:
        os.close(read)
        log.close()
        raise
    finally:
        os.close(write)
    return Child(process, log, key, build, folder, private), read


def _last_errors(child: Child) -> str:
    """Return the error lines at the end of the process's log, joined; if there are none, the end of the log."""
    text = child.log_tail().strip()
    errors = [line.split(" E ", 1)[1] for line in text.split("\n") if " E " in line]
    return "; ".join(" ".join(each.split()) for each in errors) or text


def _await_reply(child: Child, pipe: int) -> dict[str, Any]:
    """Wait for the child's reply, one JSON line with the server's address or an invalid parameter, and return it decoded."""
    end = time.monotonic() + START_TIMEOUT
    line = b""
    while not line.endswith(b"\n"):
        # Checked before the pipe is read, because the process may write its reply and end between the two steps.
        alive = child.alive()
        ready, _, _ = select.select([pipe], [], [], 0.2)
        part = os.read(pipe, 65536) if ready else b""
        line += part
        # Do not rely on the end of the pipe alone: a process that was forked in the meantime keeps the pipe open.
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
