"""Comparisons on the real server: each variant's loss is where it must be, and its cause is the right one."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from loopkit import replay
from loopkit.cache.prefixes.prompt_parts import Prompt
from loopkit.encoding import encode
from loopkit.errors import InvalidConfig
from loopkit.loop.loop import Loop
from loopkit.replay.comparison import COLUMNS
from loopkit.replay.variants import EditableRequest
from loopkit.server.client import Server
from loopkit.server.opening import serve
from tests.lab.injections import DROPS_REASONING
from tests.loop.scripted_loops import begin, relayed

SYSTEM = "You are the assistant of a small observatory. " * 2
SIX = ["live_system", "clock_in_system", "tools_shuffled", "history_reserialised", "window(2)", "results_cleared", "summarised"]


def order(number: int) -> list[int]:
    places = [0, 1, 2, 3]
    random.Random(number).shuffle(places)
    return places


SHUFFLED = [number for number in range(2, 11) if order(number) != order(number - 1)]


def archive(night: str, camera: str) -> str:
    """The frames of a night, by camera."""
    return f"Night {night}, camera {camera}: 12 frames."


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Loop, pd.DataFrame]]:
    """A session of five turns, each with a call; and what the variants cost on it."""
    home = tmp_path_factory.mktemp("six")
    with serve("tiny", slots=1, context=8192) as server:
        with begin(server, home, system=SYSTEM, tools=[archive], options={"temperature": 0}) as loop:
            for number in range(5):
                loop.ask(f"Question {number}: which frames are there?")
        yield loop, replay.compare(loop.session, server, SIX, home=home, progress=False)


def of(frame: pd.DataFrame, variant: str) -> pd.DataFrame:
    return frame[frame["variant"] == variant].set_index("request")


pytestmark = pytest.mark.server


def test_the_frame_has_a_row_for_each_request_of_each_run(six: tuple[Loop, pd.DataFrame]) -> None:
    loop, frame = six
    assert list(frame.columns) == list(COLUMNS)
    assert frame["variant"].unique().tolist() == ["unchanged", *SIX]
    assert [len(of(frame, variant)) for variant in frame["variant"].unique()] == [10] * 8
    assert set(frame["session"]) == {loop.session.id}
    assert set(frame["cold_by"]) == {"fresh server"}
    assert frame["cold"].all()
    assert frame["replay"].nunique() == 8
    assert {path.stem for path in (loop.session.home / "replays").iterdir()} == set(frame["replay"])
    firsts = frame[frame["request"] == 1]
    assert (firsts["cached_tokens"] == 0).all()
    assert (frame["read_tokens"] == frame["prompt_tokens"] - frame["cached_tokens"]).all()
    assert (frame["ttft_ms"] > 0).all()


def test_unchanged_loses_nothing_and_every_token_that_is_expected_is_cached(six: tuple[Loop, pd.DataFrame]) -> None:
    rows = of(six[1], "unchanged")
    assert rows["lost_tokens"].tolist() == [0] * 10
    assert rows["cached_tokens"].tolist() == rows["expected_tokens"].tolist() == rows["reusable_tokens"].tolist()
    assert not rows["changed"].any()
    assert rows["cause"].isna().all()


@pytest.mark.parametrize(
    ("variant", "lossy", "cause", "where"),
    [
        ("live_system", [3, 5, 7, 9], "system_changed", r"messages\[0\]\.content"),
        ("clock_in_system", list(range(2, 11)), "system_changed", r"messages\[0\]\.content"),
        ("tools_shuffled", SHUFFLED, "tools_changed", r"tools"),
        ("history_reserialised", [3, 5, 7, 9], "history_changed", r"messages\[\d+\]\.tool_calls\[0\]\.function\.arguments"),
        ("window(2)", [5, 7, 9], "history_changed", r"messages\[1\].*"),
        ("results_cleared", [8, 10], "history_changed", r"messages\[\d+\]\.content"),
        ("summarised", [5, 7, 9], "history_changed", r"messages\[[12]\]\.content"),
    ],
)
def test_each_variant_loses_where_it_must_and_is_named(
    six: tuple[Loop, pd.DataFrame], variant: str, lossy: list[int], cause: str, where: str
) -> None:
    rows = of(six[1], variant)
    lost = rows[rows["lost_tokens"] > 0]
    assert lost.index.tolist() == lossy
    assert set(lost["cause"]) == {cause}
    assert set(lost["certainty"]) == {"confirmed"}
    assert all(re.fullmatch(where, place) for place in lost["location"])
    assert (lost["lost_tokens"] == lost["expected_tokens"] - lost["cached_tokens"]).all()
    assert (lost["cached_tokens"] >= lost["reusable_tokens"]).all()  # more: the host cache had an older prompt


def test_a_summary_says_what_each_costs(six: tuple[Loop, pd.DataFrame]) -> None:
    made = replay.summary(six[1])
    more, read = made["read_tokens_more"].tolist(), made["read_tokens"].tolist()
    assert made.index.tolist() == ["unchanged", *SIX]
    assert made["changed"].tolist() == [0, 10, 10, 9, 8, 6, 3, 6]
    assert more == [each - read[0] for each in read]
    assert read[2] > read[1] > 3 * read[0]
    assert made["causes"].tolist()[:4] == ["", "system_changed", "system_changed", "tools_changed"]
    assert made["ttft_ms_low"].isna().all()  # one round


def test_rounds_are_paired_and_each_begins_cold(tiny: Server, tmp_path: Path) -> None:
    """With a host cache that was not left behind, the second round would find the prompts of the first."""
    with begin(tiny, tmp_path, system=SYSTEM) as loop:
        for number in range(4):
            loop.ask(f"Question {number}.")
    frame = replay.compare(loop.session, tiny, ["window(2)"], repeats=3, progress=False)
    order = [(variant, repeat) for repeat in (1, 2, 3) for variant in ("unchanged", "window(2)")]
    assert list(dict.fromkeys(zip(frame["variant"], frame["repeat"], strict=True))) == order
    read = frame.groupby(["variant", "request"])["read_tokens"].nunique()
    assert (read == 1).all()
    row = replay.summary(frame).loc["window(2)"]
    assert row["repeats"] == 3
    assert row["confidence"] == 0.75
    assert row["read_tokens_low"] == row["read_tokens_more"] == row["read_tokens_high"] > 0
    assert row["ttft_ms_low"] <= row["ttft_ms_more"] <= row["ttft_ms_high"]


def test_on_a_server_of_others_the_pinned_slot_is_emptied(tiny: Server, tmp_path: Path) -> None:
    with begin(tiny, tmp_path, system=SYSTEM) as loop:
        loop.ask("Question one.")
        loop.ask("Question two.")
    with relayed(tiny) as (through, relay):
        frame = replay.compare(loop.session, through, ["live_system"], progress=False)
        assert sum("action=erase" in request.line for request in relay.requests) == 2
    assert set(frame["cold_by"]) == {"slot emptied"}
    assert frame["cold"].all()
    assert (frame.loc[frame["request"] == 1, "cached_tokens"] == 0).all()


def test_a_server_that_cannot_be_emptied_is_said(tiny: Server, tmp_path: Path) -> None:
    body = encode({"messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Hi."}]})
    with (
        relayed(tiny) as (through, _),
        pytest.warns(
            UserWarning, match="A run may find prompts that an earlier run left .*: the server has no slot that can be erased"
        ) as said,
    ):
        frame = replay.compare([Prompt(body=body)], through, ["live_system"], repeats=2, home=tmp_path, progress=False)
    assert len(said) == 1
    assert not frame["cold"].any()
    assert frame["cold_by"].isna().all()
    assert frame["session"].isna().all()


def test_a_variant_of_the_last_answer_is_judged_by_what_a_kept_contract_gives(tiny: Server, tmp_path: Path) -> None:
    """The answer that was written stands in the recorded request; that the variant changed it is the variant's loss."""

    def polite(sent: EditableRequest) -> EditableRequest:
        return sent._replace(messages=[text.replace(b"Done.", b"Well. Done.") for text in sent.messages])

    with begin(tiny, tmp_path, system=SYSTEM) as loop:
        for number in range(3):
            loop.ask(f"Question {number}.")
    rows = of(replay.compare(loop.session, tiny, [polite], progress=False), "polite")
    prompts, written = rows["prompt_tokens"].tolist(), rows["completion_tokens"].tolist()
    assert (
        rows["expected_tokens"].tolist() == [0, *(prompt + more - 1 for prompt, more in zip(prompts, written, strict=True))][:3]
    )
    assert rows["cached_tokens"].tolist() == [0, *prompts[:2]]
    assert (rows["lost_tokens"] > 0).tolist() == [False, True, True]


def test_reasoning_that_is_dropped_is_lost_where_the_template_shows_it(tmp_path: Path) -> None:
    shows = DROPS_REASONING.replace("and loop.index0 > ns.last", "")
    messages: list[dict[str, object]] = [{"role": "system", "content": SYSTEM}]
    prompts: list[Prompt] = []
    for turn in range(3):
        messages.append({"role": "user", "content": f"Question {turn}."})
        prompts.append(Prompt(body=encode({"id_slot": 0, "temperature": 0, "messages": messages})))
        messages.append({"role": "assistant", "reasoning_content": "Let me think.", "content": "Done."})
    with serve("tiny", slots=1, template=shows) as server:
        frame = replay.compare(prompts, server, ["reasoning_dropped"], home=tmp_path, progress=False)
    assert of(frame, "unchanged")["lost_tokens"].tolist() == [0, 0, 0]
    assert of(frame, "reasoning_dropped")["changed"].tolist() == [False, True, True]


def test_without_the_unchanged_there_is_nothing_to_compare_with(six: tuple[Loop, pd.DataFrame]) -> None:
    frame = six[1]
    for part in (frame[frame["variant"] != "unchanged"], frame[:0]):
        with pytest.raises(InvalidConfig, match="frame: it has no rows of the variant 'unchanged'"):
            replay.summary(part)


def test_two_of_one_name_and_no_rounds_are_refused(six: tuple[Loop, pd.DataFrame], tiny: Server) -> None:
    def unchanged(sent: EditableRequest) -> EditableRequest:
        return sent

    with pytest.raises(InvalidConfig, match="unknown variant 'live_systm'"):
        replay.compare(six[0].session, tiny, "live_systm", progress=False)  # one by itself is a list of one
    for variants in (["live_system", "live_system"], [unchanged], unchanged):
        with pytest.raises(InvalidConfig, match="have the same name"):
            replay.compare(six[0].session, tiny, variants, progress=False)
    with pytest.raises(InvalidConfig, match="repeats: expected an integer of at least 1; got 0"):
        replay.compare(six[0].session, tiny, [], repeats=0, progress=False)


def test_only_a_summary_is_told_and_its_times_say_what_they_are() -> None:
    rows = {"variant": ["unchanged"] * 3 + ["window(2)"] * 3, "repeat": [1, 2, 3] * 2, "request": 1, "changed": True}
    times = [10.0, 12.0, 11.0, 40.0, 44.0, 45.0]
    frame = pd.DataFrame(rows | {"read_tokens": 5, "lost_tokens": 0, "cause": None, "ttft_ms": times, "prompt_ms": times})
    lines = replay.describe(replay.summary(frame)).splitlines()
    assert " ".join(lines[0].split()) == "tokens processed lost time to first token, ms more (median) from to causes"
    assert lines[2].split()[3:] == ["44", "32", "30", "34"]
    with pytest.raises(InvalidConfig, match=r"costs: the column .* is missing\. Give the result of replay\.summary"):
        replay.describe(frame)


@pytest.mark.server
def test_the_bar_moves_within_a_long_answer(tiny: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"stream": True, "ignore_eos": True, "max_tokens": 100}
    body = encode({**options, "messages": [{"role": "system", "content": "Hi."}, {"role": "user", "content": "Ho."}]})
    replay.compare([Prompt(body=body)], tiny, ["clock_in_system"], home=tmp_path)
    assert "about 64 tokens written" in capsys.readouterr().err
