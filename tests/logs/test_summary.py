"""Logs as lines of text, as a card with a small plot, and on the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from loopkit.cache.losses.cause_texts import advice
from loopkit.cli import main
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
        "a (loopkit, tiny): 3 requests, prompt tokens 3,300, lost tokens 504",
        "b (loopkit, unknown model): 1 request, prompt tokens unknown, lost tokens unknown",
        "text-changed (loopkit, tiny): 1 request, prompt tokens 1,000, lost tokens 0",
        "504 tokens lost because another request used the slot in between (slot_taken)",
        f"  What to do: {advice('slot_taken')}",
        "  a, epoch 0, request 3: 504 tokens at slot 0 (confirmed)",
    ]
    assert summary(load(tmp_path, errors="report"))[-1].startswith(f"{tmp_path}/sessions/text-changed/0.jsonl:6: its crc is")


def test_the_losses_of_a_session_stand_together_unless_all_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_session(tmp_path, "a", [start("a"), *kept(9, loses=frozenset({3, 4, 8}))])
    assert main(["show", str(tmp_path)]) == 0
    together = capsys.readouterr().out
    assert "\n  a: 3,900 tokens in 3 losses (3 confirmed)\nUse `loopkit show --all` to list each loss.\n" in together
    assert main(["show", "--all", str(tmp_path)]) == 0
    each = capsys.readouterr().out
    assert each.count("\n  a, epoch 0, request ") == 3
    assert "--all" not in each


def test_losses_of_replays_are_named_apart(tmp_path: Path) -> None:
    write_session(tmp_path, "a", [start("a"), *kept(3)])
    write(tmp_path / "replays/r.jsonl", replay("live_system", 3, broken=True))
    assert summary(load(tmp_path))[1:] == [
        "a (loopkit, tiny): 3 requests, prompt tokens 3,300, lost tokens 0",
        "r (replay, tiny): 3 requests, prompt tokens 3,300, lost tokens 2,100",
        "1 replay not counted, as replays may lose tokens on purpose (2,100 tokens lost)",
    ]
    alone = summary(load(tmp_path / "replays/r.jsonl"))
    assert alone[2].startswith("2,100 tokens lost because the system prompt changed (system_changed)")


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
    assert "--trace needs a salt" in capsys.readouterr().err
    assert main(["export", source, *wanted, "--salt-file", str(salt)]) == 0
    assert f"Wrote 2 of 2 requests to {trace}" in capsys.readouterr().out
    pd.testing.assert_frame_equal(load(tmp_path / "parquet").usage, load(source).usage)
    assert load(tmp_path / "parquet", content=True).messages["content"][0] == "Be brief."
    assert len(pd.read_csv(tmp_path / "csv" / "usage.csv")) == len(trace.read_bytes().splitlines()) == 2
    assert decode(trace.read_bytes().splitlines()[0])["unit"] == "bytes"
    write(tmp_path / "replays/r.jsonl", replay(None, 3))
    for what, told in {
        tmp_path / "replays/r.jsonl": "Wrote 0 of 3 requests to {}. Left out: 3 of replays, whose logs contain no request bodies",
        tmp_path: "Wrote 2 of 5 requests to {}. Left out: 3 of replays, whose logs contain no request bodies",
        tmp_path / "parquet": "Wrote 0 of 2 requests to {}. Left out: 2 with nothing but usage",
    }.items():
        to = tmp_path / f"{what.name}.trace"
        assert main(["export", str(what), "--trace", str(to), "--salt-file", str(salt)]) == 0
        assert capsys.readouterr().out.splitlines()[0] == told.format(to)
    assert main(["export", source]) == 1
    assert "no output was given" in capsys.readouterr().err
