"""Logs as lines of text, as a card with a small plot, and on the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from loopkit.cli.main import main
from loopkit.encoding import decode
from loopkit.logs.loading import load
from loopkit.logs.summary import summary
from tests.logs.make import assistant, kept, loss, replay, start, usage, user, write, write_session
from tests.logs.test_load import TOOLS

MALFORMED = Path(__file__).parents[2] / "data" / "malformed"


def test_sessions_losses_and_problems(tmp_path: Path) -> None:
    write_session(tmp_path, "a", TOOLS)
    write_session(tmp_path, "b", [start("b", model=None), user(1), assistant(2), usage(2, 1, None, None)])
    shutil.copytree(MALFORMED / "sessions" / "text-changed", tmp_path / "sessions" / "text-changed")
    assert summary(load(tmp_path, errors="report"))[1:-1] == [
        "a (loopkit, tiny): 3 requests, 3,300 prompt tokens, 504 lost",
        "b (loopkit, model unknown): 1 request, ? prompt tokens, ? lost",
        "text-changed (loopkit, tiny): 1 request, 1,000 prompt tokens, 0 lost",
        "slot_taken: 504 tokens",
        "  a epoch 0 request 3: 504 tokens in slot 0 (confirmed)",
    ]
    assert summary(load(tmp_path, errors="report"))[-1].startswith(f"{tmp_path}/sessions/text-changed/0.jsonl:6: its crc is")


def test_the_losses_of_a_session_stand_together_unless_all_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_session(tmp_path, "a", [start("a"), *kept(9, loses=frozenset({3, 4, 8}))])
    assert main(["show", str(tmp_path)]) == 0
    together = capsys.readouterr().out
    assert "\n  a: 3 losses, 3,900 tokens (3 confirmed)\nloopkit show --all names each loss\n" in together
    assert main(["show", "--all", str(tmp_path)]) == 0
    each = capsys.readouterr().out
    assert each.count("\n  a epoch 0 request ") == 3
    assert "--all" not in each


def test_what_a_log_says_cannot_drive_a_terminal(tmp_path: Path) -> None:
    write_session(tmp_path, "a", [start("a", model="\x1b[31mred"), user(1), assistant(2), usage(2, 1, 9, 0)])
    assert not any("\x1b" in line for line in summary(load(tmp_path)))


def test_the_card_has_a_small_plot(tmp_path: Path) -> None:
    write_session(tmp_path, "a", [start("a"), *kept(4, loses=frozenset({3})), user(9), assistant(9), usage(9, 5, 100, None)])
    markup = load(tmp_path)._repr_html_()
    assert "<tr><th>reuse by request</th><td>▁▇▁▇·</td></tr>" in markup
    assert "reuse by request" not in load([])._repr_html_()
    write_session(tmp_path, "a", [start("a"), *kept(1000, loses=frozenset(range(500, 1001)))])
    plot = load(tmp_path)._repr_html_().split("reuse by request</th><td>")[1].split("<")[0]
    assert (len(plot), plot[1], plot[-1]) == (60, "█", "▁")


def test_loopkit_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_session(tmp_path, "a", [start("a"), *kept(2), loss(9, 2, expected=9, cached=1)])
    assert main(["show", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "Logs: sessions 1, epochs 1, turns 2, requests 2, processed 1,100 of 2,100 prompt tokens, lost 8\na (loopkit,"
    )
    assert main(["show", str(tmp_path / "nothing")]) == 1
    assert "the path does not exist" in capsys.readouterr().err


def test_loopkit_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_session(tmp_path, "a", [start("a"), *kept(2)])
    source, trace, salt = str(tmp_path / "sessions" / "a"), tmp_path / "trace.jsonl", tmp_path / "salt"
    salt.write_bytes(bytes(range(32)))
    wanted = ["--parquet", str(tmp_path / "parquet"), "--csv", str(tmp_path / "csv"), "--trace", str(trace), "--content"]
    assert main(["export", source, *wanted]) == 1
    assert "a trace needs a salt" in capsys.readouterr().err
    assert main(["export", source, *wanted, "--salt-file", str(salt)]) == 0
    assert f"2 of 2 requests in {trace}" in capsys.readouterr().out
    pd.testing.assert_frame_equal(load(tmp_path / "parquet").usage, load(source).usage)
    assert load(tmp_path / "parquet", content=True).messages["content"][0] == "Be brief."
    assert len(pd.read_csv(tmp_path / "csv" / "usage.csv")) == len(trace.read_bytes().splitlines()) == 2
    assert decode(trace.read_bytes().splitlines()[0])["unit"] == "bytes"
    write(tmp_path / "replays/r.jsonl", replay(None, 3))
    for what, told in {
        tmp_path / "replays/r.jsonl": "0 of 3 requests in {}; left out: 3 of replays, whose logs hold no bodies",
        tmp_path: "2 of 5 requests in {}; left out: 3 of replays, whose logs hold no bodies",
        tmp_path / "parquet": "0 of 2 requests in {}; left out: 2 of which only the usage is known",
    }.items():
        to = tmp_path / f"{what.name}.trace"
        assert main(["export", str(what), "--trace", str(to), "--salt-file", str(salt)]) == 0
        assert capsys.readouterr().out.splitlines()[0] == told.format(to)
    assert main(["export", source]) == 1
    assert "nothing to write" in capsys.readouterr().err
