"""The README: every code block runs, in order and as printed, and its commands and links exist.

Four texts are replaced before a block runs (`SUBSTITUTIONS`): the default model by the tiny one, the address and the key of a
remote server by those of an embedded one, and the directory of another tool's logs by samples from ``data/``. The function
``my_agent`` represents the reader's own agent. ``.ci/run`` reads the command of the tests from the README and runs it. The last
part of the demo's command runs here with the tiny model.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import loopkit as lk
from loopkit.cli.main import main as loopkit_command

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAX_LINES = 210

SUBSTITUTIONS = {
    "lk.serve()": 'lk.serve("tiny")',
    '"http://gpu-box:8080/v1"': "REMOTE_URL",
    'api_key="…"': "api_key=REMOTE_KEY",
    '"~/.claude/projects"': "TRANSCRIPTS",
}


class Block(NamedTuple):
    """A fenced block: its language ("" if none is named) and its text."""

    language: str
    text: str


def blocks() -> list[Block]:
    return [Block(*match.groups()) for match in re.finditer(r"^```(.*)\n((?:.*\n)*?)^```$", README, re.MULTILINE)]


def of(language: str) -> list[str]:
    return [block.text for block in blocks() if block.language == language]


def marked(name: str) -> str:
    """Return the command between two comments, read as `.ci/run` reads it."""
    part = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", README, re.DOTALL)
    assert part, name
    return "".join(line for line in part[1].splitlines() if not line.startswith("```"))


def my_agent(client: Any) -> None:
    """Run three requests of an agent that has the time in its system prompt."""
    messages: list[dict[str, str]] = []
    for minute in range(3):
        messages += [{"role": "user", "content": f"Question {minute}."}]
        system = {"role": "system", "content": f"It is 16:2{minute}. Be brief."}
        response = client.chat.completions.create(model="tiny", messages=[system, *messages], max_tokens=64)
        messages += [{"role": "assistant", "content": response.choices[0].message.content}]


def test_every_block_is_of_a_kind_that_a_test_runs() -> None:
    fences = README.count("```")
    assert fences == 2 * len(blocks()), "a fence is not closed, or is indented"
    assert "~~~" not in README
    assert not re.search(r"^(?: {4}|\t)", re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    assert {block.language for block in blocks()} == {"", "python", "json", "shell"}
    assert [block.text.strip() for block in blocks() if not block.language] == [marked("demo"), marked("tests")]


@pytest.mark.server
@pytest.mark.slow
def test_every_python_and_shell_block_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = of("python")
    for old in SUBSTITUTIONS:
        assert any(old in text for text in code), f"remove the substitution of {old}"
    monkeypatch.chdir(tmp_path)
    with lk.serve("tiny") as remote:
        monkeypatch.setenv("OPENAI_API_KEY", remote.api_key or "")
        names: dict[str, Any] = {
            "my_agent": my_agent,
            "REMOTE_URL": f"{remote.url}/v1",
            "REMOTE_KEY": remote.api_key,
            "TRANSCRIPTS": ROOT / "data" / "foreign" / "claude_code",
        }
        for number, text in enumerate(code, 1):
            for old, new in SUBSTITUTIONS.items():
                text = text.replace(old, new)
            exec(compile(text, f"README.md, Python block {number}", "exec"), names)
    names["loop"].close()
    names["server"].close()
    assert "Turn done" in capsys.readouterr().out
    assert set(names["costs"]["variant"]) == {"unchanged", "clock_in_system", "tools_shuffled"}

    lines = [line for text in of("shell") for line in text.splitlines()]
    assert lines
    for line in lines:
        program, *arguments = shlex.split(line, comments=True)
        assert program == "loopkit", line
        assert loopkit_command(arguments) == 0, (line, capsys.readouterr())


def test_the_smallest_request_log_loads(tmp_path: Path) -> None:
    (text,) = of("json")
    log = tmp_path / "requests.jsonl"
    log.write_text("".join(json.dumps(json.loads(line)) + "\n" for line in text.splitlines()))
    assert lk.load(log).usage["prompt_tokens"].tolist() == [9]
    log.write_text(text)
    logs = lk.load(log)
    assert logs.usage["prompt_tokens"].tolist() == [9]
    assert logs.usage["cached_tokens"].isna().all()
    assert '"prompt_tokens_details": {"cached_tokens": 4}' in README
    log.write_text(text.replace('"prompt_tokens": 9', '"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}'))
    assert lk.load(log).usage["cached_tokens"].tolist() == [4]


@pytest.mark.server
@pytest.mark.slow
def test_the_demo_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    setup, install, demo = marked("demo").split(" && ")
    assert setup == "python3 -m venv .venv"
    assert install == ".venv/bin/pip install -q '.[local]'"
    assert demo == ".venv/bin/loopkit demo"
    assert ".venv/bin/loopkit demo --model tiny" in (ROOT / ".ci" / "run").read_text()
    monkeypatch.chdir(tmp_path)
    assert loopkit_command([*shlex.split(demo)[1:], "--model", "tiny"]) == 0, capsys.readouterr()


def test_ci_runs_the_test_command_of_the_readme() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    (reading,) = [line for line in ci.splitlines() if line.startswith("command=$(sed ")]
    assert 'bash -euo pipefail -c "$command"' in ci
    script = f'{reading}\nprintf %s "$command"'
    assert subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout == marked("tests")
    setup, install, tests = marked("tests").split(" && ")
    assert setup == "python3 -m venv .venv"
    assert tests == ".venv/bin/python -m pytest -q"
    extras = re.findall(r"\w+", re.findall(r"\[(.*)\]", install)[0])
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) <= set(declared)


def test_the_table_of_commands_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    listed = re.findall(r"^\| `loopkit (\w+)", README, re.MULTILINE)
    assert sorted(listed) == sorted(subcommands([], capsys))
    (memory,) = re.findall(r"^\| `loopkit memory (.*?) \|", README, re.MULTILINE)
    assert sorted(re.findall(r"\w+", memory)) == sorted(subcommands(["memory"], capsys))


def subcommands(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.raises(SystemExit):
        loopkit_command([*arguments, "--help"])
    return re.findall(r"^    (\w+)  ", capsys.readouterr().out, re.MULTILINE)


def test_links_and_modules_exist() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link
    for module in re.findall(r"`python -m (tests[\w.]*)", README):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module
    for name in re.findall(r"`lk\.([\w.]+)", README):
        value: Any = lk
        for part in name.split("."):
            value = getattr(value, part)


def test_the_readme_stays_short() -> None:
    assert len(README.splitlines()) <= MAX_LINES
