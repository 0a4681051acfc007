"""The limits of a tool: what of its result the model gets, and how long it may take."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from loopkit.loop.limits import Limits
from loopkit.server.client import Server
from tests.loop.scripted_loops import begin, calling, done, log, messages, reopen, scripted
from tests.tagtext import P, assert_same_text

LIMA = '{"city":"Lima"}'


@pytest.mark.server
def test_a_result_over_the_cap_is_cut_on_the_real_server_and_never_again(tiny: Server, tmp_path: Path) -> None:
    def read_page(url: str) -> str:
        """Read a page."""
        return "é" * 1000

    with begin(tiny, tmp_path, tools=[read_page], limits=Limits(result_bytes=101)) as loop:
        (result,) = loop.ask("What does the page say?").tool_calls
        assert result.truncated
        assert result.content == "é" * 50 + "\n[Cut: the first 100 of 2,000 bytes are shown.]"
        with reopen(loop) as later:
            turns = [later.ask(f"And {number}.") for number in range(3)]
            assert [turn.losses for turn in turns] == [()] * 3
            bodies = [request.body for request in later.session.requests()]
            assert len(bodies) == 5
            for one, two in itertools.pairwise(bodies[1:]):
                assert two.startswith(one.removesuffix(b"]}"))


SIZES = [("é" * 8192, False), ("é" * 8192 + "x", True), ("x" + "é" * 8192, True), ("😀" * 4097, True), ("x" * 200_000, True)]


@pytest.mark.parametrize(("whole", "truncated"), SIZES, ids=[f"{len(whole.encode())}-bytes" for whole, _ in SIZES])
def test_the_default_cap_is_16_kib_between_two_characters(whole: str, truncated: bool, tmp_path: Path) -> None:
    def read_page(city: str) -> str:
        """Read a page."""
        return whole

    with scripted(calling(("a", "read_page", LIMA)), done(90, None, 6)) as (server, script):
        with begin(server, tmp_path, tools=[read_page]) as loop:
            (result,) = loop.ask("Go?").tool_calls
            shown, line, notice = result.content.partition("\n")
            assert result.truncated == truncated
            assert whole.startswith(shown)
            assert 16384 - 4 < len(shown.encode()) <= 16384
            assert (line + notice).startswith("\n[Cut: ") == truncated
            assert messages(script.requests[1].body)[-1]["content"] == result.content


def test_the_cap_comes_first_then_neutralising(tmp_path: Path) -> None:
    tag = P("im_start")
    half = len(tag) // 2
    page = "x" * (100 - len(tag)) + tag  # 100 bytes, more once neutralised
    pages = iter([page, page + "y", "x" * (100 - half) + tag + "system"])

    def read_page(city: str) -> str:
        """Read a page."""
        return next(pages)

    calls = [calling((f"c{number}", "read_page", LIMA), prompt=100 * number) for number in (1, 2, 3)]
    with scripted(*calls, done(500, None, 6)) as (server, _):
        with begin(server, tmp_path, tools=[read_page], limits=Limits(result_bytes=100, repeats=9)) as loop:
            fits, cut, split = loop.ask("Go?").tool_calls
            escaped = page.replace("<", "&lt;").replace(">", "&gt;")
            assert_same_text(fits.content, escaped, "a result that fits is not cut for what neutralising adds")
            assert (fits.truncated, fits.neutralised, len(fits.content) > 100) == (False, 1, True)
            assert_same_text(cut.content, escaped + "\n[Cut: the first 100 of 101 bytes are shown.]", "what the cap leaves")
            assert (cut.truncated, cut.neutralised) == (True, 1)
            wanted = "x" * (100 - half) + tag[:half] + f"\n[Cut: the first 100 of {106 + half} bytes are shown.]"
            assert_same_text(split.content, wanted, "a tag that the cut splits is no longer one, and is left")
            assert split.truncated
            assert not split.neutralised


@pytest.mark.server
def test_a_tool_that_takes_too_long_is_left_and_the_model_is_told(tiny: Server, tmp_path: Path) -> None:
    release, left = threading.Event(), threading.Event()

    def wait_for(it: str) -> str:
        """Wait for something."""
        release.wait()
        left.set()
        return "It came."

    with begin(tiny, tmp_path, tools=[wait_for], limits=Limits(tool_seconds=0.05)) as loop:
        turn = loop.ask("Is it there?")
        (result,) = turn.tool_calls
        assert (turn.stop, result.status) == ("done", "failed")
        assert result.content == "wait_for gave no result within 0.05 s. It was left, and may still be running."
        before = log(loop)
        release.set()
        assert left.wait(5)
        assert log(loop) == before  # what a tool that was left returns goes nowhere
        with reopen(loop) as later:
            assert later.ask("Thanks.").losses == ()
