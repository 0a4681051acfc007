"""Settings: from arguments, environment and a file, and every fault of them named."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopkit.config import Config
from loopkit.errors import InvalidConfig


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_arguments_win_over_the_environment_and_that_over_the_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Config().home == Path("runs")
    (here / "loopkit.toml").write_text('home = "file"\nsystem = "From the file."\n')
    assert Config().home == Path("file")
    monkeypatch.setenv("LOOPKIT_HOME", "environment")
    assert Config().home == Path("environment")
    assert Config(home="argument").home == Path("argument")
    assert Config().system == "From the file."


@pytest.mark.parametrize("content", [b"home = ", b"\xff\xfe", b"= 1", b"home = 3\n"])
def test_a_broken_file_is_named(content: bytes, here: Path) -> None:
    (here / "loopkit.toml").write_bytes(content)
    with pytest.raises(InvalidConfig, match=r"^(loopkit\.toml|home): "):
        Config()


def test_a_broken_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPKIT_OPTIONS", "junk")
    with pytest.raises(InvalidConfig, match=r"^environment: "):
        Config()


def test_one_system_prompt() -> None:
    with pytest.raises(InvalidConfig, match="give system or system_file, not both"):
        Config(system="a", system_file="b")
