"""``loopkit memory …``, as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from loopkit.encoding import encode
from loopkit.memory.memory import Memory
from tests.memory.make import LIGHT, PERU, QUESTION, Model, build, filled, no_orphans, records
from tests.session.build import filled as filled_session

LINES = [encode(record) for record in records(["It is light until six.", "The port is closed."], "pipe")]


def memory(home: Path, *arguments: str | Path, stdin: bytes = b"") -> tuple[int, str, str]:
    command, *rest = map(str, arguments)
    whole = [sys.executable, "-m", "loopkit.cli", "memory", command, "--home", str(home), *rest]
    done = subprocess.run(whole, input=stdin, capture_output=True, check=False, env={**os.environ, "PYTHONUTF8": "1"})
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_a_session_goes_from_ingest_to_trace(tmp_path: Path) -> None:
    with filled_session(tmp_path) as session:
        path = session.dir / "0.jsonl"
    assert memory(tmp_path, "ingest", session.dir, "--project", "peru", "--budget", "1") == (
        0,
        f"{session.dir}: 9 records added in 9 chunks, 1 already known\n",
        "",
    )
    status, out, _ = memory(tmp_path, "recall", "Is", "it", "light", "in", "Lima", "-k", "1")
    assert status == 0
    name, level, _, place = out.split("\n")[0].split(" ", 3)
    assert (level, place.split("@")[0]) == ("L0", "lima/0")
    status, out, _ = memory(tmp_path, "trace", name)
    assert (status, out) == memory(tmp_path, "trace", name[:8])[:2] == (0, out)
    where, role = out.split("\n")[0].rsplit(" ", 1)
    file, offset = where.rsplit("@", 1)
    assert (file, role) == (str(path), "User")
    assert json.loads(path.read_bytes()[int(offset) :].split(b"\n")[0])["content"] == "Is it light in Lima?"
    assert memory(tmp_path, "rebuild") == (0, "9 nodes, 0 edges, 9 chunks\n", "")


def test_bad_lines_on_standard_input_are_refused_by_number_and_the_others_taken(tmp_path: Path) -> None:
    status, out, err = memory(tmp_path, "ingest", "-", "--project", "peru", stdin=b"\n".join([LINES[0], b"{}", b"no", LINES[1]]))
    assert (status, out) == (1, "-: 2 records added in 1 chunks, 0 already known\n")
    assert [line.split(":")[1] for line in err.splitlines()] == [" line 2", " line 3"]
    assert "pipe@0 User" in memory(tmp_path, "trace", Memory(tmp_path).recall("port")[0].node.sha256)[1]


def test_listening_takes_records_until_it_is_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    command = [sys.executable, "-m", "loopkit.cli", "memory", "ingest", "--home", str(tmp_path), "--project", "peru"]
    with subprocess.Popen([*command, "--listen", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as listening:
        assert listening.stdout is not None
        assert listening.stdout.readline().startswith(b"Listening at")
        while True:
            with socket.socket(socket.AF_UNIX) as client:
                try:
                    client.connect(str(path))
                except (FileNotFoundError, ConnectionRefusedError):
                    pytest.fail("it says so before it listens")
                client.sendall(b"\n".join([LINES[0], b"no", LINES[1]]))
                client.shutdown(socket.SHUT_WR)
                answer = json.loads(client.makefile("rb").read())
                break
        assert (answer["taken"], [each["line"] for each in answer["refused"]]) == (2, [2])
        listening.send_signal(signal.SIGINT)
        assert listening.wait(30) == 130
    assert not path.exists()
    assert len(Memory(tmp_path).nodes()) == 1


@pytest.mark.server
def test_build_folds_on_a_server_and_render_writes_the_block(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    arguments = ("build", "--project", "peru", "--query", "light", "--question", "When is it light?", "--model", "tiny")
    status, out, err = memory(tmp_path, *arguments, "--synthesise")
    assert (status, err) == (0, "")
    assert out.splitlines()[:2] == ["3 of 3 steps ran on the model", "1 of 1 steps of the synthesis ran on the model"]
    assert out.splitlines()[2].endswith(" L2")
    assert memory(tmp_path, *arguments)[1].splitlines()[0] == "0 of 3 steps ran on the model"
    assert memory(tmp_path, "render", "--project", "peru") == (0, "Done.\n\n## When is it light?\n\nDone.\n", "")
    assert (tmp_path / "memory" / "core.md").read_text() == "Done.\n\n## When is it light?\n\nDone."
    no_orphans(Memory(tmp_path))


def test_what_is_wrong_is_one_line_and_status_1(tmp_path: Path) -> None:
    for arguments, why in (
        (("rebuild",), "there is no memory here"),
        (("ingest", "--project", "peru"), "no source was given"),
        (("ingest", "nowhere", "--project", "peru"), "the path does not exist"),
        (("ingest", "-", "--project", "../x"), "is not a ProjectId"),
        (("trace", "0" * 64), "loopkit memory recall WORDS"),
        (("recall", "light"), "there is no memory here"),
        (("render", "--project", "peru"), "there is no project peru"),
        (("build", "--project", "peru", "--query", "q", "--question", "Why?"), "there is no project peru"),
    ):
        status, out, err = memory(tmp_path, *arguments)
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert why in err
    assert not (tmp_path / "memory").exists()


def test_what_a_terminal_would_obey_is_not_printed(tmp_path: Path) -> None:
    held = Memory(tmp_path)
    held.ingest(records(["It is \x1b[31m red \x07\u202e in\0 Lima.\nSo it is."]), project=PERU)
    held.build(PERU, LIGHT, QUESTION, model=lambda prompt: "Red \x1b[2J.")
    held.write(PERU)
    outs = [memory(tmp_path, "recall", "Lima", "red"), memory(tmp_path, "render", "--project", "peru")]
    outs.append(memory(tmp_path, "trace", held.recall("Lima")[0].node.sha256))
    for status, out, err in outs:
        assert (status, err) == (0, "")
        assert all(char.isprintable() or char == "\n" for char in out), out
    assert "It is ·[31m red ·· in· Lima.\nSo it is." in outs[0][1]


def test_a_torn_memory_says_how_to_go_on(tmp_path: Path) -> None:
    held = filled(tmp_path, 3)
    build(held, Model())
    path = held.dir / "nodes.jsonl"
    path.write_bytes(path.read_bytes()[:-7])
    status, _, err = memory(tmp_path, "rebuild")
    assert status == 1
    assert "loopkit memory rebuild --salvage" in err
    assert memory(tmp_path, "rebuild", "--salvage") == (0, "6 nodes, 5 edges, 3 chunks\n", "")
    assert (held.dir / "nodes.jsonl.torn-1").exists()
