"""`start_child`: start llama.cpp's server in a child process and see that it ends.

A crash or a hang of llama.cpp does not take the kernel with it: this process never loads it. Knows nothing of HTTP, models'
names or prompts: it takes a ``ModelFile`` and gives back a ``Child`` with an address and a key.

The child ends with ``Child.close()``, when the last reference to it goes, when the interpreter exits and, by its own watch,
when this process is killed; its private slot directory goes with it. A process that was forked from this one never ends it.
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
import weakref
from pathlib import Path
from typing import IO, Any

from loopkit.encoding import decode, encode
from loopkit.errors import EncodeError, InvalidConfig, ServerNotStarted
from loopkit.server.embedded.models import ModelFile

__all__ = ["Child", "read_template", "start_child"]

START_TIMEOUT = 300.0  # seconds; a model of many gigabytes on a slow disk takes minutes


def _end(process: subprocess.Popen[bytes], log: IO[bytes], remove: Path | None, owner: int) -> None:
    """End the server's process and remove what is private to it; only in the process that started it. May be done again."""
    if os.getpid() != owner:
        return
    # SIGKILL: it holds nothing that would have to be saved, and the end of standard input does not reach it while a process
    # that this one forked holds the pipe.
    process.kill()
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    log.close()
    if remove is not None:
        shutil.rmtree(remove, ignore_errors=True)


class Child:
    """A llama.cpp server in a child process of this one; made by `start_child`.

    Attributes
    ----------
    url : str
        Where it listens, without a final slash; always on 127.0.0.1.
    key : str
        What it wants as a bearer token; random, in no repr, argument list or environment.
    pid : int
        Its process.
    build : str
        The version of the ``xllamacpp`` wheel that it runs.
    slot_dir : pathlib.Path
        Where the slot actions save and restore.
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
        """Hand the process its configuration."""
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already; its log says why
            stdin.write(line + b"\n")
            stdin.flush()

    def alive(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    def gone(self) -> str | None:
        """Say that it has ended, with its last words; None while it runs."""
        return None if self.alive() else f"the embedded process has ended; its last words: {self.log_tail(300).strip()}"

    def log_tail(self, size: int = 4000) -> str:
        """The last ``size`` bytes that the process wrote, as text; empty after `close`."""
        if self._log.closed:
            return ""
        # pread: the child's descriptor shares the file's position with this one
        end = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), size, max(0, end - size))
        return tail.decode("utf-8", "replace").replace(self.key, "…")

    def close(self) -> None:
        """End the process and remove its private files; again does nothing."""
        _end(*self._ending)  # not by the finalizer, which runs once: one that was interrupted can be done again
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
        why = f"Expected a Jinja template or the path of a file with one; {os.fspath(template)!r} has no brace"
        raise InvalidConfig("template", f"{why} and cannot be read as a file: {error}") from error
    if "{" not in text:
        raise InvalidConfig("template", f"Expected a Jinja template; the file {os.fspath(template)!r} has no brace")
    return text


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
    """Start llama.cpp's own server on a model, in a child process.

    Parameters
    ----------
    model : ModelFile
        What to load; see `loopkit.server.embedded.models.resolve`.
    slots : int
        Conversations that can be held at a time, each with its own KV cache.
    context : int
        Tokens per slot; llama.cpp rounds it up to a multiple of 256.
    template : str or path, optional
        Text or file of a chat template to use instead of the model's; see `read_template`.
    cache_ram_mib : int
        Host memory for conversations that have lost their slot; 0 for none.
    slot_dir : pathlib.Path, optional
        Where the slot actions save; by default a private directory, removed at the end.
    **llama
        llama.cpp's own parameters, by the names of ``xllamacpp.CommonParams``, and ``n_threads``.

    Returns
    -------
    Child
        It listens.

    Raises
    ------
    InvalidConfig
        A parameter that llama.cpp has not; the nearest that it has are named.
    ServerNotStarted
        ``xllamacpp`` is missing, or the process ended or hung before it listened; with the last words of its log.

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
            raise InvalidConfig(name, f"{value!r} is not a whole number from 1 up")
    if slots * context >= 1 << 31:
        raise InvalidConfig("context", f"{slots} slots of {context} tokens are more than llama.cpp can count")
    try:
        build = importlib.metadata.version("xllamacpp")
    except importlib.metadata.PackageNotFoundError:
        raise ServerNotStarted("xllamacpp is not installed", "", "Run: pip install 'loopkit-lab[local]'") from None
    text = (model.template or "") if template is None else read_template(template)
    if slot_dir is not None and not Path(slot_dir).is_dir():
        raise InvalidConfig("slot_dir", f"{str(slot_dir)!r} is not an existing directory. Create it first")
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
        answer = _await_answer(child, pipe)
        if "invalid" in answer:
            raise InvalidConfig(*answer["invalid"])
        child.url = answer["address"]
    except BaseException:
        child.close()
        raise
    finally:
        os.close(pipe)
    return child


def _spawn(key: str, build: str, folder: Path, private: Path | None) -> tuple[Child, int]:
    """Start the process; it waits for its configuration. With it comes the end of the pipe that its answer comes out of."""
    read, low = os.pipe()
    # Above the standard descriptors: where those are closed here, the pipe has one of their numbers, and the process puts its own
    # output in that place.
    write = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(low)
    log = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the child; without a name there is nothing to remove
    try:
        process = subprocess.Popen(  # noqa: S603  # this interpreter, this package's file
            # as a file, and -P: neither the notebook's directory nor ours is one to import from
            [sys.executable, "-P", str(Path(__file__).with_name("child.py")), str(write)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(write,),
            start_new_session=True,  # Ctrl-C in a terminal, or the kernel's interrupt, is not for the server
        )
    except BaseException:
        os.close(read)
        log.close()
        raise
    finally:
        os.close(write)
    return Child(process, log, key, build, folder, private), read


def _last_words(child: Child) -> str:
    """What the process logged as errors, the first cause first; all it wrote, where it logged none."""
    text = child.log_tail().strip()
    errors = [line.split(" E ", 1)[1] for line in text.split("\n") if " E " in line]
    return "; ".join(" ".join(each.split()) for each in errors) or text


def _await_answer(child: Child, pipe: int) -> dict[str, Any]:
    """Wait for the line that says where it listens."""
    end = time.monotonic() + START_TIMEOUT
    line = b""
    while not line.endswith(b"\n"):
        alive = child.alive()  # before the look at the pipe: it may answer and end between the two
        ready, _, _ = select.select([pipe], [], [], 0.2)
        part = os.read(pipe, 65536) if ready else b""
        line += part
        # not by the pipe's end alone: a process forked in these moments would hold it open
        if not part and (ready or not alive):
            status = child._process.wait()
            raise ServerNotStarted(
                f"its process ended with status {status}",
                _last_words(child),
                "Is the model a sound GGUF file that this llama.cpp knows, the template sound, and the memory enough?",
            )
        if time.monotonic() > end:
            raise ServerNotStarted(
                f"it did not listen within {START_TIMEOUT:.0f} s",
                _last_words(child),
                "Try a smaller model or context",
            )
    answer: dict[str, Any] = decode(line)
    return answer
