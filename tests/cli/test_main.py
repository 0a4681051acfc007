"""The command line, as a process of its own."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pytest

import loopkit as lk
from loopkit import replay
from loopkit.cli import main
from loopkit.cli.main import _parser
from loopkit.contract.baseline import Baseline
from loopkit.contract.provenance import Provenance, Record, Role
from loopkit.contract.records import ServerFacts, TagsFacts
from loopkit.encoding import encode
from loopkit.ids import SessionId
from loopkit.loop.opening import start
from loopkit.record import proxy
from loopkit.server.client import Server
from loopkit.session.session import Session
from tests.loop import scripted_loops
from tests.server.scripted import Scripted


def loopkit(*arguments: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loopkit.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **more})


def make_session(home: Path) -> Path:
    with Session.create(
        home,
        SessionId("s"),
        Baseline("Be brief.", ()),
        slot=None,
        options={},
        server=ServerFacts(),
        tags=TagsFacts(id="default-1"),
    ) as session:
        return session.dir


def test_verify_prints_the_verdict(tmp_path: Path) -> None:
    make_session(tmp_path)
    done = loopkit("verify", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Verified: sessions 1, records 1, requests 0, faults 0\n", "")


def test_verify_prints_every_fault_with_file_and_line_and_exits_1(tmp_path: Path) -> None:
    log = make_session(tmp_path) / "0.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"epoch":0', b'"epoch":1'))
    done = loopkit("verify", tmp_path)
    assert done.returncode == 1
    assert f"{log}:1: its crc is " in done.stdout
    assert "NOT verified" in done.stdout


def test_salvage_copies_what_is_sound_and_says_what_it_left(tmp_path: Path) -> None:
    directory = make_session(tmp_path)
    with (directory / "0.jsonl").open("ab") as log:
        log.write(b'{"kind":"user"')
    before = (directory / "0.jsonl").read_bytes()
    done = loopkit("salvage", directory, "--to", "mended")
    assert done.returncode == 0, done.stderr
    said, told = done.stdout.splitlines()
    assert said.startswith(
        "Salvaged mended: from s, epochs 1, records 1, left out 0.jsonl: line 2 and later (line 2: the last line"
    )
    assert said.count("does not end in a line feed") == 1
    assert told == "The home now counts both this session and s. To count the requests once, move one of them away."
    assert (directory / "0.jsonl").read_bytes() == before
    assert loopkit("verify", tmp_path / "sessions" / "mended").returncode == 0


def test_salvage_is_advised_where_it_can_work(tmp_path: Path) -> None:
    directory = make_session(tmp_path)
    log, baseline = directory / "0.jsonl", directory / "0.baseline.json"
    whole = log.read_bytes()
    advice = f"To copy the intact records into a new session: loopkit salvage {directory} --to NEW_ID\n"
    log.write_bytes(whole + b"{")
    assert loopkit("verify", tmp_path).stdout.endswith(advice)
    for data in (b"", whole[:-1]):
        log.write_bytes(data)
        assert "loopkit salvage" not in loopkit("verify", tmp_path).stdout
        done = loopkit("salvage", directory, "--to", "new")
        assert (done.returncode, done.stderr.endswith("Nothing before it is sound, so there is nothing to copy\n")) == (1, True)
    log.write_bytes(whole + b"{")
    baseline.unlink()
    assert "loopkit salvage" not in loopkit("verify", tmp_path).stdout
    (tmp_path / "recordings").mkdir()
    (tmp_path / "recordings" / "r.jsonl").write_text("{")
    log.write_bytes(whole)
    assert "loopkit salvage" not in loopkit("verify", tmp_path).stdout


def test_salvage_of_a_home_names_its_sessions(tmp_path: Path) -> None:
    make_session(tmp_path)
    done = loopkit("salvage", tmp_path, "--to", "new")
    assert done.stderr == (
        f"loopkit: no session found: {tmp_path} is a home with the sessions s. Give one, such as {tmp_path / 'sessions' / 's'}\n"
    )


def test_an_error_is_one_line_and_exit_status_1(tmp_path: Path) -> None:
    done = loopkit("verify", tmp_path / "nowhere")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("loopkit: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [(), ("fly",), ("demo", "--turns", "0"), ("salvage", "x"), ("record", "--url", "http://h", "--host", "0.0.0.0")]
)
def test_a_wrong_command_line_is_exit_status_2(arguments: tuple[str, ...]) -> None:
    done = loopkit(*arguments)
    assert done.returncode == 2
    assert "usage: loopkit" in done.stderr


def test_the_version_is_told() -> None:
    done = loopkit("--version")
    assert (done.returncode, done.stdout) == (0, f"loopkit {lk.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("demo", "--turns", "abc"), "argument --turns: expected a whole number; got 'abc'"),
        (("serve", "--slots", "1.5"), "argument --slots: expected a whole number; got '1.5'"),
        (("serve", "--context", "0"), "argument --context: expected at least 1; got 0"),
        (("replay", "x", "--repeats", ""), "argument --repeats: expected a whole number; got ''"),
        (("check", "x", "--max-lost", "-1"), "argument --max-lost: expected at least 0; got -1"),
        (("record", "--url", "http://h", "--port", "http"), "argument --port: expected a whole number; got 'http'"),
        (("memory", "recall", "x", "-k", "few"), "argument -k: expected a whole number; got 'few'"),
    ],
)
def test_a_number_that_is_none_is_told_in_words(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"error: {said}")


@pytest.mark.server
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_prints_the_key_once_and_keeps_it_in_a_file_that_goes(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loopkit.cli", "serve", "--model", "tiny", "--slots", "1"]
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process,
        contextlib.ExitStack() as at_last,
    ):
        at_last.callback(process.kill)  # a check that fails would wait for ever for its end
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        said = dict(line.split(maxsplit=1) for line in lines[:3])
        url, key, file = (said[name].strip() for name in ("url", "key", "file"))
        assert Path(file).read_text() == key + "\n"
        assert Path(file).stat().st_mode & 0o777 == 0o600
        assert Path(file).is_relative_to(tmp_path)
        assert httpx.get(f"{url}/v1/models").status_code == 401
        assert httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        command_line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert key.encode() not in command_line
        process.send_signal(number)
        rest, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "")
        assert key not in rest
        assert not Path(file).exists()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


@pytest.mark.server
def test_doctor_prints_the_table_and_takes_the_key_from_a_file_or_the_environment(tiny: Server, tmp_path: Path) -> None:
    assert tiny._child is not None
    key, file = tiny._child.key, tmp_path / "key"
    file.write_text(key + "\n")
    for done in (
        loopkit("doctor", tiny.url, "--api-key-file", file, LOOPKIT_API_KEY="not this one"),
        loopkit("doctor", tiny.url, LOOPKIT_API_KEY=key),
    ):
        assert (done.returncode, done.stderr) == (0, "")
        assert "ok       cached counts" in done.stdout
        assert key not in done.stdout
    for wrong, then in (
        ("", "The request had no key. Pass one as `LOOPKIT_API_KEY`"),
        ("no", "Check that `LOOPKIT_API_KEY` is the right key"),
    ):
        done = loopkit("doctor", tiny.url, "--model", "m", LOOPKIT_API_KEY=wrong)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert done.stderr.endswith(f": HTTP 401: Invalid API Key. {then}\n")
    file.write_text("wrong")
    done = loopkit("doctor", tiny.url, "--model", "m", "--api-key-file", file, LOOPKIT_API_KEY=key)
    assert done.stderr.endswith("Check that `--api-key-file` is the right key\n")


@pytest.mark.server
def test_every_command_with_a_url_takes_the_key_from_the_environment(tiny: Server, tmp_path: Path) -> None:
    make_session(tmp_path)
    asked = {
        "demo": ("demo", "--turns", "1", "--out", tmp_path / "demo"),
        "build": ("memory", "build", "--home", tmp_path, "--project", "p", "--query", "q", "--question", "?"),
    }
    record = encode(Record(Role.User, "It is light until six.", None, Provenance("notes", 0)))
    command = [sys.executable, "-m", "loopkit.cli", "memory", "ingest", "-", "--home", str(tmp_path), "--project", "p"]
    subprocess.run(command, input=record + b"\n", check=True, capture_output=True)
    for name, words in asked.items():
        done = loopkit(*words, "--url", tiny.url, LOOPKIT_API_KEY="no")
        assert (done.returncode, "Check that `LOOPKIT_API_KEY` is the right key" in done.stderr) == (1, True), name
        assert "api_key=" not in done.stderr
    assert not (tmp_path / "demo").exists(), "nothing is written before the server answers"
    for name, words in asked.items():
        done = loopkit(*words, "--url", tiny.url, LOOPKIT_API_KEY=tiny.api_key or "")
        assert done.returncode == 0, (name, done.stderr)
    assert loopkit("verify", tmp_path / "demo").returncode == 0
    done = loopkit("doctor", tiny.url, LOOPKIT_API_KEY="no\nkey")
    assert (
        done.stderr
        == "loopkit: LOOPKIT_API_KEY: it is empty, or has a line break or a character outside ASCII. Pass the key itself\n"
    )
    done = loopkit("doctor", f"{tiny.url}?key=no")
    assert done.stderr.endswith("Pass a key as LOOPKIT_API_KEY\n")


@pytest.mark.parametrize("name", ["nowhere", "binary"])
def test_a_key_file_that_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    done = loopkit("doctor", "http://127.0.0.1:9", "--api-key-file", tmp_path / name)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"loopkit: --api-key-file: {tmp_path / name} cannot be read: ")
    assert done.stderr.count("\n") == 1


def test_what_the_system_refuses_is_one_line_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = loopkit("demo", "--model", "tiny", "--out", tmp_path / "file")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"loopkit: {tmp_path / 'file'}: File exists\n"


def test_a_warning_is_a_line_of_its_own_above_the_bar(tmp_path: Path) -> None:
    with (
        scripted_loops.scripted(scripted_loops.done(30, 0, 6)) as (server, _),
        start(server, system="Be brief.", home=tmp_path, id="s", memory="") as loop,
    ):
        loop.on_event = None
        loop.ask("One.")
    with Scripted([scripted_loops.done(30, 0, 6)] * 2, only="/chat/completions") as script:
        session, out = tmp_path / "sessions" / "s", tmp_path / "out"
        done = loopkit("replay", session, "--url", script.url, "--variants", "clock_in_system", "--out", out)
    assert done.returncode == 0, done.stderr
    note = "loopkit: A run may find prompts that an earlier run left in the cache (see the column `cold`): "
    said = f"{note}the server has no slot that can be erased."
    assert said in re.split("[\r\n]", done.stderr)
    assert "Warning" not in done.stderr
    assert ".py" not in done.stderr


@pytest.mark.server
def test_replay_measures_variants_and_writes_the_frame(tiny: Server, tmp_path: Path) -> None:
    with start(tiny, system="Be brief. " * 20, home=tmp_path, id="s", memory="") as loop:
        loop.on_event = None
        for number in range(3):
            loop.ask(f"Question {number}.")
    out = tmp_path / "out"
    session = tmp_path / "sessions" / "s"
    done = loopkit(
        "replay", session, "--variants", "clock_in_system, window(2),", "--model", "tiny", "--repeats", "2", "--out", out
    )
    assert (done.returncode, done.stdout.count("\n")) == (0, 8), done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[0] for row in rows[1:4]] == ["unchanged", "clock_in_system", "window(2)"]
    assert rows[1][2] == "0"
    assert [row[-1] for row in rows[2:4]] == ["system_changed", "history_changed"]
    assert "clock_in_system processed " in done.stdout
    assert (out / "compare.png").read_bytes().startswith(b"\x89PNG")
    frame = pd.read_csv(out / "compare.csv")
    assert len(frame) == 18
    assert set(frame["replay"]) == {path.stem for path in (out / "replays").iterdir()}
    again = loopkit("replay", session, "--model", "tiny", "--out", out)
    assert (again.returncode, len(list((out / "replays").iterdir()))) == (1, 6), "nothing was sent"
    assert "compare.csv: the file exists already, and loopkit overwrites nothing" in again.stderr
    wrong = loopkit("replay", session, "--variants", "tools_shuffled", "--model", "tiny", "--out", tmp_path / "other")
    assert wrong.returncode == 1
    assert "tools_shuffled changes none of the 3 requests" in wrong.stderr
    home = loopkit("replay", tmp_path, "--model", "tiny", "--out", tmp_path / "other")
    assert (home.returncode, "is a home with the sessions s. Give one, such as" in home.stderr) == (1, True), home.stderr


def test_replay_takes_a_recording_and_an_interrupt_keeps_what_was_finished(
    tiny: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    body = b'{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi."}]}'
    with proxy(tiny.url, tmp_path) as standing:
        headers = {"Authorization": f"Bearer {tiny.api_key}", "Content-Type": "application/json"}
        httpx.post(f"{standing.url}/chat/completions", content=body, headers=headers).raise_for_status()
    whole = replay.compare

    def interrupted(*arguments: Any, on_run: Callable[[pd.DataFrame], object], **more: Any) -> pd.DataFrame:
        def stop(frame: pd.DataFrame) -> None:
            on_run(frame)
            raise KeyboardInterrupt

        return whole(*arguments, on_run=stop, **more)

    monkeypatch.setattr("loopkit.replay.compare", interrupted)
    out = tmp_path / "out"
    asked = ["replay", str(standing.path), "--variants", "clock_in_system", "--model", "tiny", "--out", str(out)]
    assert main(asked) == 130
    said = capsys.readouterr().err
    assert "interrupted after 1 of 2 runs" in said
    assert f'loopkit.load("{out}")' in said
    assert len(pd.read_csv(out / "compare.csv")) == 1


def test_every_command_and_option_has_help() -> None:
    parsers = [_parser()]
    while parsers:
        parser = parsers.pop()
        for action in parser._actions:
            if not isinstance(action, argparse._SubParsersAction):
                assert action.help, (parser.prog, action.dest)
            else:
                assert {choice.dest for choice in action._choices_actions} == set(action.choices)
                assert all(choice.help for choice in action._choices_actions)
                parsers += action.choices.values()
