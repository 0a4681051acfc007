"""Replays on the real server: the same bytes, or one thing changed, and what the cache did."""

from __future__ import annotations

import itertools
import json
import resource
import signal
from pathlib import Path

import pytest
from msgspec import structs

from loopkit import replay
from loopkit.contract.records import ReplayRecord, UsageRecord
from loopkit.errors import InvalidConfig, LogError, ServerError, SessionIOError
from loopkit.logs.loading import load
from loopkit.loop.loop import Loop
from loopkit.loop.opening import start
from loopkit.replay.variants import EditableRequest
from loopkit.server.client import Server
from loopkit.server.embedded.templates import tiny_template
from loopkit.server.opening import serve
from loopkit.session.verify import verify
from tests.loop.scripted_loops import begin, relayed

pytestmark = pytest.mark.server
SYSTEM = "You answer in one word. " * 40


@pytest.fixture
def loop(tiny: Server, tmp_path: Path) -> Loop:
    with start(tiny, system=SYSTEM, home=tmp_path, id="kept", memory="", options={"temperature": 0}) as loop:
        loop.on_event = None
        for number in range(5):
            loop.ask(f"Question {number}.")
    return loop


def test_an_unchanged_replay_sends_the_recorded_bytes_and_loses_nothing(loop: Loop, tiny: Server, tmp_path: Path) -> None:
    logs = replay.run(loop.session, tiny)
    sent = [request.sha256 for request in loop.session.requests()]
    assert logs.usage["request_sha256"].tolist() == sent
    assert logs.usage["lost_tokens"].tolist() == [0] * 5
    assert logs.usage["cached_tokens"].tolist()[0] == 0
    assert logs.sessions["source"].tolist() == ["replay"]
    assert logs.sessions["variant"].isna().all()


def test_a_clock_in_the_system_prompt_loses_everything_behind_it(loop: Loop, tiny: Server, tmp_path: Path) -> None:
    seen: list[ReplayRecord] = []
    logs = replay.run(loop.session, tiny, "clock_in_system", on_request=seen.append)
    usage = logs.usage
    assert usage["request"].tolist() == [1, 2, 3, 4, 5]
    head = len("xsystem\nThe time is 2026-")
    rows = usage[["prompt_tokens", "completion_tokens", "cached_tokens", "expected_tokens", "lost_tokens"]].values.tolist()
    for (prompt, written, *_), (*_, cached, expected, lost) in itertools.pairwise(rows):
        assert expected == prompt + written - 1
        assert head <= cached < head + 30
        assert lost == expected - cached
    assert logs.cache_loss["request"].tolist() == [2, 3, 4, 5]
    assert set(logs.cache_loss["cause"]) == {"system_changed"}
    assert set(logs.cache_loss["location"]) == {"messages[0].content"}
    assert logs.cache_loss["reusable_tokens"].tolist() == [record.usage.cached_tokens for record in seen[1:]]
    assert [record.request for record in seen] == [1, 2, 3, 4, 5]
    assert len(set(usage["request_sha256"]) & {request.sha256 for request in loop.session.requests()}) == 0


def test_a_replay_is_no_session_and_leaves_the_session_alone(loop: Loop, tiny: Server, tmp_path: Path) -> None:
    before = (loop.session.dir / "0.jsonl").read_bytes()
    replay.run(loop.session, tiny, "live_system")
    assert (loop.session.dir / "0.jsonl").read_bytes() == before
    assert [path.name for path in (tmp_path / "sessions").iterdir()] == ["kept"]
    (log,) = (tmp_path / "replays").iterdir()
    assert log.stat().st_mode & 0o777 == 0o600
    assert [json.loads(line)["kind"] for line in log.read_bytes().splitlines()] == ["replay"] * 5
    assert verify(tmp_path).ok


def test_what_is_sent_is_byte_for_byte_what_was_recorded(loop: Loop, tiny: Server) -> None:
    with relayed(tiny) as (through, relay):
        replay.run(loop.session, through)
        sent = [request.body for request in relay.requests if b'"max_tokens"' in request.body or b'"temperature"' in request.body]
    assert sent == [request.body for request in loop.session.requests()]


def test_a_request_that_is_not_the_recorded_one_is_refused_before_any_is_sent(loop: Loop, tiny: Server, tmp_path: Path) -> None:
    records = loop.session.epochs[0].records
    assert isinstance(records, list)
    at = [index for index, record in enumerate(records) if isinstance(record, UsageRecord)][2]
    records[at] = structs.replace(records[at], request_sha256="0" * 64)
    before = tiny.metrics()["prompt_tokens_total"]
    with pytest.raises(LogError, match="request 3 of epoch 0, rebuilt from the log, differs from the one that was sent"):
        replay.run(loop.session, tiny)
    assert tiny.metrics()["prompt_tokens_total"] == before
    assert not (tmp_path / "replays").exists()


def test_a_variant_that_changes_nothing_is_refused_before_any_is_sent(loop: Loop, tiny: Server, tmp_path: Path) -> None:
    for variant in ("tools_shuffled", "window(5)", "reasoning_dropped", lambda sent: sent):
        with pytest.raises(InvalidConfig, match="changes none of the 5 requests"):
            replay.run(loop.session, tiny, variant)
    assert not (tmp_path / "replays").exists()
    assert len(replay.run(loop.session, tiny, "window(4)").usage) == 5


def test_a_change_of_ones_own(loop: Loop, tiny: Server) -> None:
    def forgetful(sent: EditableRequest) -> EditableRequest:
        """At every second request the first question is left out."""
        return sent._replace(messages=[text for at, text in enumerate(sent.messages) if at != 1 or sent.number % 2])

    logs = replay.run(loop.session, tiny, forgetful)
    assert logs.sessions["variant"].tolist() == ["forgetful"]
    assert logs.cache_loss["request"].tolist() == [2, 3, 4, 5]
    assert set(logs.cache_loss["cause"]) == {"history_changed"}
    assert set(logs.cache_loss["location"].str[:11]) == {"messages[1]"}


def test_an_unknown_variant_is_refused_with_those_there_are(loop: Loop, tiny: Server) -> None:
    with pytest.raises(InvalidConfig, match=r"unknown variant 'live_systm'\. Choose from clock_in_system"):
        replay.run(loop.session, tiny, "live_systm")


def test_a_replay_that_never_began_leaves_no_log(loop: Loop, tiny: Server, tmp_path: Path) -> None:
    with serve("tiny") as gone:
        pass
    with pytest.raises(ServerError):
        replay.run(loop.session, gone)
    with start(tiny, system=SYSTEM, home=tmp_path, id="silent", memory="") as silent:
        with pytest.raises(LogError, match=r"silent: the session has no request to replay\. Call loop\.ask first"):
            replay.run(silent.session, tiny)
    assert not (tmp_path / "replays").exists()
    (tmp_path / "replays").touch()
    with pytest.raises(SessionIOError, match="replays: cannot make the directory: File exists"):
        replay.run(loop.session, tiny)


def test_a_home_is_loaded_while_a_replay_runs(loop: Loop, tiny: Server, tmp_path: Path) -> None:
    seen: list[int] = []

    def look(record: ReplayRecord) -> None:
        logs = load(tmp_path)
        seen.append(len(logs.usage[logs.usage["session"] != "kept"]))

    replay.run(loop.session, tiny, on_request=look)
    assert seen == [1, 2, 3, 4, 5]


def test_a_full_disk_ends_a_replay_behind_its_last_whole_line(loop: Loop, tiny: Server, tmp_path: Path) -> None:
    """The limit of a file's size stands for the disk's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:

        def fill(record: ReplayRecord) -> None:
            if record.request == 2:
                (log,) = (tmp_path / "replays").iterdir()
                resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size + 100, hard))

        with pytest.raises(SessionIOError, match=r"\.jsonl: cannot append: File too large"):
            replay.run(loop.session, tiny, on_request=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    (log,) = (tmp_path / "replays").iterdir()
    assert load(log).usage["request"].tolist() == [1, 2]
    assert verify(tmp_path).ok


def test_an_interrupted_replay_stands_as_far_as_it_came(loop: Loop, tiny: Server, tmp_path: Path) -> None:
    def interrupt(record: ReplayRecord) -> None:
        if record.request == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay.run(loop.session, tiny, on_request=interrupt)
    (log,) = (tmp_path / "replays").iterdir()
    assert load(log).usage["request"].tolist() == [1, 2]


def test_on_another_template_what_is_lost_was_predicted_and_is_the_templates(tmp_path: Path) -> None:
    def now_in(city: str) -> str:
        """The time of day in a city."""
        return "16:20"

    with serve("tiny", slots=1) as server, begin(server, tmp_path, tools=[now_in]) as loop:
        loop.ask("What is the time in Lima?")
        loop.ask("And in Quito?")
    with serve("tiny", slots=1, template=tiny_template(reserialise=True)) as other:
        logs = replay.run(loop.session, other)
    assert logs.usage["request_sha256"].tolist() == [request.sha256 for request in loop.session.requests()]
    losses = logs.cache_loss
    assert losses["request"].tolist() == [2, 4]
    assert set(losses["cause"]) == {"template_rewrote"}
    assert losses["reusable_tokens"].tolist() == losses["cached_tokens"].tolist()


def test_a_new_epoch_has_nothing_to_go_on_from_and_a_load_of_logs_can_be_replayed(tmp_path: Path) -> None:
    with serve("tiny", slots=1) as server:
        with begin(server, tmp_path, system=SYSTEM) as loop:
            loop.ask("One.")
            loop.ask("Two.")
            loop.end_epoch()
            loop.ask("Three.")
        usage = replay.run(loop.session, server).usage
        assert usage["shortfall"].fillna("").tolist()[::2] == ["first_request", "epoch_started"]
        assert usage["lost_tokens"].tolist() == [0, 0, 0]
        again = replay.run(load(loop.session).requests(), server, home=tmp_path)
    assert again.usage["request_sha256"].tolist() == usage["request_sha256"].tolist()
    assert again.sessions["parent"].tolist() == ["s"]
