"""The gate for CI, on sessions of the real server and as a command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from loopkit import replay
from loopkit.cache.losses.cause_texts import advice
from loopkit.logs.gate import gate
from loopkit.loop.loop import Loop
from loopkit.loop.opening import start
from loopkit.server.client import Server
from tests.logs import make
from tests.logs.make import kept, write_session
from tests.loop.scripted_loops import done, scripted


def begin(server: Server, home: Path) -> Loop:
    loop = start(server, system="Be brief.", home=home, id="s", memory="")
    loop.on_event = None
    return loop


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "loopkit.cli", "check", *map(str, arguments)], capture_output=True, text=True)


@pytest.mark.server
def test_a_warm_session_passes_and_its_replays_do_not_count(tiny: Server, tmp_path: Path) -> None:
    with begin(tiny, tmp_path) as loop:
        for number in range(3):
            loop.ask(f"Question {number}.")
    replay.run(loop.session, tiny, "live_system")
    (log,) = (tmp_path / "replays").glob("*.jsonl")
    passed, alone = gate(tmp_path), gate(log)
    assert (passed.ok, passed.lost_tokens) == (True, 0)
    left_out = f"1 replay not counted, as replays may lose tokens on purpose ({alone.lost_tokens:,} tokens lost)"
    assert passed.lines == (
        left_out,
        "0 tokens lost; at most 0 allowed. 3 of 3 requests report cached tokens.",
    )
    assert not alone.ok
    assert " tokens lost because the system prompt changed" in alone.lines[0]


def test_more_than_allowed_is_status_1_with_the_causes(tmp_path: Path) -> None:
    with scripted(done(30, 0, 6), done(50, 10, 6)) as (server, _), begin(server, tmp_path) as loop:
        loop.ask("One.")
        loop.ask("Two.")
    ran = command(tmp_path)
    assert (ran.returncode, ran.stderr) == (1, "")
    assert ran.stdout.splitlines() == [
        "25 tokens lost for an unknown reason (unexplained)",
        f"  What to do: {advice('unexplained')}",
        "  s, epoch 0, request 2: 25 tokens (unexplained)",
        "25 tokens lost; at most 0 allowed. 2 of 2 requests report cached tokens. 0% of the lost tokens have a known cause.",
    ]
    assert command(tmp_path, "--max-lost", "25").returncode == 0
    assert command(tmp_path, "--max-lost", "24").returncode == 1
    assert command(tmp_path, "--max-lost", "-1").returncode == 2


def test_what_says_nothing_does_not_pass(tmp_path: Path) -> None:
    ran = command(tmp_path)
    assert (ran.returncode, ran.stdout) == (1, "No request reports its cached tokens, so nothing can be checked.\n")
    ran = command(tmp_path / "nothing")
    assert ran.returncode == 2
    assert "the path does not exist" in ran.stderr


def test_a_log_whose_last_line_is_torn_is_status_2_and_judged_where_faults_are_reported(tmp_path: Path) -> None:
    sound = Path(__file__).parents[2] / "data" / "foreign" / "claude_code" / "damaged.jsonl"
    torn = tmp_path / "live.jsonl"
    torn.write_bytes(sound.read_bytes())
    ran = command(torn)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "--errors report" in ran.stderr
    ran = command(torn, "--errors", "report", "--max-lost", "1000000")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "live.jsonl:13: the last line is incomplete (byte" in ran.stdout
    assert ran.stdout.splitlines()[-1].endswith(" 1 log was not read completely.")


def test_how_many_logs_were_not_read_whole_stands_in_the_last_line(tmp_path: Path) -> None:
    for name in "abc":
        write_session(tmp_path, name, [make.start(name), *kept(2)])
    for name in "ab":
        log = tmp_path / "sessions" / name / "0.jsonl"
        log.write_bytes(log.read_bytes().replace(b"Lima", b"Rome"))
    (tmp_path / "sessions/c/0.baseline.json").unlink()
    (tmp_path / "sessions/c/0.baseline.json").mkdir()
    seen = gate(tmp_path, errors="report")
    assert seen.lines[-1].endswith(" 2 logs were not read completely."), seen.lines
    assert any("0.baseline.json: cannot be read" in line for line in seen.lines)
    alone = gate(tmp_path / "sessions/a", errors="report")
    assert not alone.ok
    assert alone.lines[-1] == "No request reports its cached tokens, so nothing can be checked. 1 log was not read completely."


def test_a_baseline_that_is_not_the_logs_own_is_named_and_counts_are_judged(tmp_path: Path) -> None:
    """Counts do not rest on it."""
    directory = write_session(tmp_path, "a", [make.start("a"), *kept(2)])
    (directory / "0.baseline.json").write_bytes(b"{}")
    problem, total = gate(tmp_path).lines
    assert problem.startswith(f"{directory / '0.baseline.json'}: its SHA-256 is ")
    assert total == "0 tokens lost; at most 0 allowed. 2 of 2 requests report cached tokens."
