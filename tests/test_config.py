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
    assert Config(system=None, system_file="prompt.txt").system is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"home = ", r"^loopkit\.toml: it cannot be read: .*\. Correct the file or remove it$"),
        (b"\xff\xfe", r"^loopkit\.toml: it cannot be read: .*utf-8"),
        (b"= 1", r"^loopkit\.toml: it cannot be read"),
        (b"home = 3\n", r"^home: .* \(set in loopkit\.toml\)$"),
        (b'hoem = "runs"\n', r"^hoem: there is no setting of this name \(set in loopkit\.toml\)\. Choose one of: home, "),
    ],
)
def test_a_broken_file_is_named(content: bytes, message: str, here: Path) -> None:
    (here / "loopkit.toml").write_bytes(content)
    with pytest.raises(InvalidConfig, match=message):
        Config()


@pytest.mark.parametrize("given", [{}, {"options": {"temperature": 1}}])
def test_options_come_from_arguments_only(given: dict[str, object], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Config(options={"temperature": 1}).options == {"temperature": 1}
    (here / "loopkit.toml").write_text("[options]\ntemperature = 2\n")
    with pytest.raises(InvalidConfig, match=r"^options: it is set in loopkit\.toml, but options change every request"):
        Config(**given)
    monkeypatch.setenv("LOOPKIT_OPTIONS", '{"seed": 1}')
    with pytest.raises(InvalidConfig, match=r"^options: it is set in LOOPKIT_OPTIONS, .*give options= in the call$"):
        Config(**given)


def test_one_system_prompt() -> None:
    with pytest.raises(InvalidConfig, match="give system or system_file, not both"):
        Config(system="a", system_file="b")
