"""Resuming warm: a server that is killed and started again, and a slot that is saved before and put back after."""

from __future__ import annotations

import contextlib
import json
import stat
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from loopkit.contract.neutralise import DEFAULT
from loopkit.contract.records import Usage
from loopkit.errors import InvalidConfig, ServerRefused, SessionIOError
from loopkit.logs.loading import load
from loopkit.loop.loop import Loop
from loopkit.loop.opening import resume
from loopkit.server.client import Server
from loopkit.server.detection import Detected
from loopkit.server.embedded.templates import tiny_template
from loopkit.server.embedded.tiny_model import write_tiny
from loopkit.server.opening import serve
from loopkit.server.transport.connection import Wire
from loopkit.session.verify import verify
from tests.loop.scripted_loops import begin, done, quiet, scripted
from tests.server.scripted import Scripted, Step, answer

SYSTEM = "Be brief. " * 30


def one(model: Any = "tiny", **more: Any) -> Server:
    """A server with one slot; killed when it is closed."""
    return serve(model, slots=1, context=1024, **more)


def held(usage: Usage) -> int:
    """What a slot holds after a request."""
    assert usage.prompt_tokens is not None
    assert usage.completion_tokens is not None
    return usage.prompt_tokens + usage.completion_tokens - 1


def parked(home: Path, model: Any = "tiny") -> int:
    """A session of two turns that was parked, and whose server is gone; gives what the slot held."""
    with one(model) as server, begin(server, home, system=SYSTEM) as loop:
        loop.ask("One.")
        usage = loop.ask("Two.").usage
        assert loop.park().tokens == held(usage)
        return held(usage)


@contextlib.contextmanager
def everything(*answers: Sequence[Step]) -> Iterator[tuple[Server, Scripted]]:
    """A llama-server that gives these answers, to whatever it is asked."""
    with Scripted(answers) as script, Server(Wire(script.url, timeout=30), Detected("llama.cpp")) as server:
        server._tags = DEFAULT
        yield server, script


@contextlib.contextmanager
def resumed(server: Server, home: Path, **more: Any) -> Iterator[tuple[Loop, list[str]]]:
    """The session, and what was said when it was resumed and after."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        said: list[str] = []
        with quiet(resume(server, "s", home=home, **more)) as loop:
            said += [str(each.message) for each in caught]
            caught.clear()
            yield loop, said
        said += [str(each.message) for each in caught]


@pytest.mark.server
def test_a_parked_session_finds_its_cache_on_a_server_started_anew(tmp_path: Path) -> None:
    tokens = parked(tmp_path)
    folder = tmp_path / "slots"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {"s.bin": 0o600, "s.json": 0o600}
    sidecar = json.loads((folder / "s.json").read_bytes())
    assert (sidecar["session"], sidecar["epoch"], sidecar["tokens"], sidecar["model"]) == ("s", 0, tokens, "tiny")
    with one() as server:
        with resumed(server, tmp_path) as (loop, said):
            assert sidecar["baseline_sha256"] == loop.session.start.baseline_sha256
            turn = loop.ask("Three.")
            assert (turn.usage.cached_tokens, turn.losses) == (tokens, ())
        assert said == []
        assert server.slot_dir is not None
        assert list(server.slot_dir.iterdir()) == [], "no copy is left"
    assert verify(tmp_path).ok


@pytest.mark.server
def test_without_a_saved_slot_it_is_said_what_will_be_read_and_that_is_read(tmp_path: Path) -> None:
    with one() as server, begin(server, tmp_path, system=SYSTEM) as loop:
        usage = loop.ask("One.").usage
    with one() as server, resumed(server, tmp_path) as (loop, said):
        assert said == [
            "The server no longer caches this session, and no saved slot exists. "
            f"The first request will process the whole prompt: {held(usage):,} tokens and the new message."
        ]
        turn = loop.ask("Two.")
        assert (turn.usage.cached_tokens, turn.usage.read_tokens) == (0, turn.usage.prompt_tokens)
        assert [loss.lost_tokens for loss in turn.losses] == [held(usage)]
        assert loop.ask("Three.").usage.cached_tokens == held(turn.usage)


@pytest.mark.server
def test_a_server_that_still_holds_the_session_is_not_touched(tmp_path: Path) -> None:
    with one() as server:
        with begin(server, tmp_path, system=SYSTEM) as loop:
            loop.ask("One.")
            loop.park()
            usage = loop.ask("Two.").usage
        with resumed(server, tmp_path) as (loop, said):
            assert loop.ask("Three.").usage.cached_tokens == held(usage), "what came after it was parked is there too"
        assert said == []


@pytest.mark.server
def test_a_slot_that_another_conversation_took_is_put_back(tmp_path: Path) -> None:
    with one(cache_ram_mib=0) as server:
        with begin(server, tmp_path, system=SYSTEM) as loop:
            tokens = held(loop.ask("One.").usage)
            loop.park()
        with begin(server, tmp_path, "other", system="Another.") as loop:
            loop.ask("Hello.")
        with resumed(server, tmp_path) as (loop, said):
            assert loop.ask("Two.").usage.cached_tokens == tokens
        assert said == []


@pytest.mark.server
@pytest.mark.parametrize("host_cache", [0, 256])
def test_a_slot_that_another_conversation_took_may_be_in_the_host_cache(host_cache: int, tmp_path: Path) -> None:
    with one(cache_ram_mib=host_cache) as server:
        with begin(server, tmp_path, system=SYSTEM) as loop:
            tokens = held(loop.ask("One.").usage)
        with begin(server, tmp_path, "other", system="Another.") as loop:
            loop.ask("Hello.")
        with resumed(server, tmp_path) as (loop, said):
            found = loop.ask("Two.").usage.cached_tokens
            assert found == tokens if host_cache else found == len("xsystem\n")
        (line,) = said
        assert line.startswith("Another conversation took this session's slot, and no saved slot exists. ")
        assert line.endswith(f"{tokens} tokens and the new message, unless the server's host cache still contains it.")


@pytest.mark.server
def test_a_session_that_went_on_after_it_was_parked_reads_only_what_came_since(tmp_path: Path) -> None:
    tokens = parked(tmp_path)
    with one() as server, resumed(server, tmp_path) as (loop, _):
        usage = loop.ask("Three.").usage
    with one() as server, resumed(server, tmp_path) as (loop, said):
        assert said == [f"The saved slot contained {tokens} of {held(usage)} tokens. The first request will process the others."]
        turn = loop.ask("Four.")
        assert turn.usage.cached_tokens == tokens
        assert len(said) == 1
    (loss,) = turn.losses
    found = ("server_restarted", "confirmed", "counters")
    assert (loss.cause, loss.certainty, loss.location) == found, "what was put back was used: the restart cost the rest"
    assert (loss.evidence["restored_tokens"], loss.evidence["cached_tokens"]) == (tokens, tokens)
    (afterwards,) = load(tmp_path).diagnose().losses
    assert afterwards.diagnosis[:2] == found[:2]


@pytest.mark.server
def test_parked_again_the_newer_state_takes_the_place_of_the_older(tmp_path: Path) -> None:
    with one() as server, begin(server, tmp_path, system=SYSTEM) as loop:
        loop.ask("One.")
        first = loop.park()
        usage = loop.ask("Two.").usage
        again = [loop.park(), loop.park()]
        assert again[0] == again[1]
        assert repr(again[0]) == f"Parked s: epoch 0, tokens {held(usage)}, model tiny"
        assert first.tokens < again[0].tokens == held(usage)
    assert sorted(path.name for path in (tmp_path / "slots").iterdir()) == ["s.bin", "s.json"]
    with one() as server, resumed(server, tmp_path) as (loop, said):
        assert loop.ask("Three.").usage.cached_tokens == held(usage)
    assert said == []


@pytest.mark.server
def test_another_template_is_not_given_the_slot(tmp_path: Path) -> None:
    tokens = parked(tmp_path)
    with one(template=tiny_template(reserialise=True)) as server, resumed(server, tmp_path) as (loop, said):
        assert said == [
            "The saved slot was not restored because its template differs. "
            f"The first request will process the whole prompt: {tokens} tokens and the new message."
        ]
        assert loop.ask("Three.").usage.cached_tokens == 0


@pytest.mark.server
def test_another_model_of_the_same_name_is_not_given_the_slot(tmp_path: Path) -> None:
    parked(tmp_path)
    write_tiny(tmp_path / "tiny.gguf", "tiny-tags")
    with one(tmp_path / "tiny.gguf") as server, resumed(server, tmp_path) as (loop, said):
        assert len(said) == 1
        assert "because its model differs" in said[0]
        assert loop.ask("Three.").stop == "done"
    with one("tiny-tags") as server:
        with pytest.raises(InvalidConfig, match=r"server: the epoch uses the model 'tiny'"):
            resume(server, "s", home=tmp_path)


@pytest.mark.server
@pytest.mark.parametrize("changed", [True, False])
def test_a_slot_of_the_epoch_before_is_of_use_for_no_more_than_the_baseline(changed: bool, tmp_path: Path) -> None:
    system = tmp_path / "system.md"
    system.write_text(SYSTEM)
    with one() as server, begin(server, tmp_path, system=system, carry=None) as loop:
        loop.ask("One.")
        loop.park()
        system.write_text("Be kind. " * 30 if changed else SYSTEM)
        loop.end_epoch()
        usage = loop.ask("Two.").usage
    with one() as server, resumed(server, tmp_path) as (loop, said):
        turn = loop.ask("Three.")
        if changed:
            whole = f"The first request will process the whole prompt: {held(usage)} tokens and the new message."
            assert said == [f"The saved slot was not restored because its baseline differs. {whole}"]
            assert turn.usage.cached_tokens == 0
        else:
            assert said == [
                "The saved slot belongs to epoch 0. The first request can use the baseline at most, and will process the rest."
            ]
            assert turn.usage.cached_tokens == len("xsystem\n" + SYSTEM.rstrip() + "x\nxuser\n")


@pytest.mark.server
def test_an_epoch_that_has_ended_has_no_cache_to_lose(tmp_path: Path) -> None:
    with one() as server, begin(server, tmp_path, system=SYSTEM) as loop:
        loop.ask("One.")
        loop.end_epoch()
    with one() as server, resumed(server, tmp_path) as (loop, said):
        assert loop.ask("Two.").losses == ()
    assert said == []


@pytest.mark.server
def test_a_side_car_or_a_state_that_is_broken_is_said_and_the_session_goes_on(tmp_path: Path) -> None:
    tokens = parked(tmp_path)
    state, sidecar = tmp_path / "slots" / "s.bin", tmp_path / "slots" / "s.json"
    good, whole = sidecar.read_bytes(), state.read_bytes()
    read = f"The first request will process the whole prompt: {tokens} tokens and the new message."
    cases = [
        (b"", whole, "The saved slot cannot be used: "),
        (b'{"session":"s"', whole, "The saved slot cannot be used: "),
        (good[:-1] + b',"more":1}', whole, "The saved slot cannot be used: "),
        (b"\xff" + good, whole, "The saved slot cannot be used: "),
        (good, None, "The saved slot could not be restored: No such file or directory"),
        (good, whole[: len(whole) // 2], "s.bin has changed since it was saved. "),
        (good, b"not a state", "s.bin has changed since it was saved. "),
        (good, whole[:-1] + bytes([whole[-1] ^ 1]), "s.bin has changed since it was saved. "),
    ]
    with one() as server:
        for car, data, wanted in cases:
            sidecar.write_bytes(car)
            state.unlink(missing_ok=True)
            if data is not None:
                state.write_bytes(data)
            with resumed(server, tmp_path) as (loop, said):
                assert len(said) == 1
                assert wanted in said[0]
                assert said[0].endswith(read)
        with resumed(server, tmp_path) as (loop, said):
            assert loop.ask("Three.").usage.cached_tokens == 0
    assert verify(tmp_path).ok


@pytest.mark.server
def test_what_was_put_back_is_checked_by_the_first_request(tmp_path: Path) -> None:
    tokens = parked(tmp_path, "tiny-swa")
    with one("tiny-swa") as server, resumed(server, tmp_path) as (loop, said):
        assert said == []
        turn = loop.ask("Three.")
        found = turn.usage.cached_tokens
        assert found is not None
        assert found < tokens, "a sliding window has forgotten what a checkpoint would have kept"
        loop.ask("Four.")
    (line,) = said
    assert line.startswith(f"The first request used {found} of the {tokens} tokens restored into its slot. ")


@pytest.mark.server
def test_warm_is_a_first_request_too(tmp_path: Path) -> None:
    parked(tmp_path, "tiny-swa")
    with one("tiny-swa") as server, resumed(server, tmp_path) as (loop, said):
        loop.warm()
        loop.ask("Three.")
    assert [line[:22] for line in said] == ["The first request used"]


UNSEEN = answer("{}", 404)  # to a question after counters, which is not asked again, or tokens


def test_a_restore_that_restored_nothing_is_said(tmp_path: Path) -> None:
    slots = answer('[{"id":0,"is_processing":false,"n_prompt_tokens":105}]')
    empty = answer('[{"id":0,"is_processing":false}]')
    models, props = answer('{"data":[{"id":"m","meta":{"n_params":7}}]}'), answer('{"chat_template":"t"}')
    saved, restored = answer('{"n_saved":105}'), answer('{"n_restored":105}')
    rest = done(140, 0, 6), UNSEEN, done(180, 0, 6)
    parking = UNSEEN, UNSEEN, done(100, 0, 6), slots, saved, models, props
    with everything(*parking, empty, models, props, restored, UNSEEN, UNSEEN, *rest) as (
        server,
        script,
    ):
        with begin(server, tmp_path, slot=0) as loop:
            loop.ask("One.")
            assert loop.park().tokens == 105
        assert [path.name for path in (tmp_path / "slots").iterdir()] == ["s.json"], "the state is the server's to keep"
        with resumed(server, tmp_path) as (loop, said):
            assert said == []
            loop.ask("Two.")
            loop.ask("Three.")
        assert len(said) == 1
        assert said[0].startswith("The first request used 0 of the 105 tokens restored into its slot. ")
        (restore,) = (request for request in script.requests if "action=restore" in request.line)
        assert json.loads(restore.body) == {"filename": "s.bin"}


def test_with_warnings_as_errors_the_answer_is_logged_all_the_same(tmp_path: Path) -> None:
    with scripted(done(100, 0, 6), done(140, 0, 6)) as (server, _), begin(server, tmp_path) as loop:
        loop.ask("One.")
        loop._state.restored = 105
        with pytest.raises(UserWarning, match="used 0 of the 105"):
            loop.ask("Two.")
        assert len(loop.session.messages()) == 5
    assert verify(tmp_path).ok


@pytest.mark.server
def test_on_a_remote_server_the_state_stays_there_and_the_side_car_is_ours(tmp_path: Path) -> None:
    with one() as server:
        assert server._child is not None
        found = Detected("llama.cpp", server.build, "tiny", server.context_size, 1)
        with Server(Wire(server.url, api_key=server._child.key, timeout=30), found) as remote:
            with begin(remote, tmp_path, system=SYSTEM, slot=0) as loop:
                tokens = held(loop.ask("One.").usage)
                loop.park()
            assert [path.name for path in (tmp_path / "slots").iterdir()] == ["s.json"]
            assert server.slot_dir is not None
            assert [path.name for path in server.slot_dir.iterdir()] == ["s.bin"]
            remote.erase_slot(0)
            with resumed(remote, tmp_path) as (loop, said):
                assert loop.ask("Two.").usage.cached_tokens == tokens
            assert said == []


@pytest.mark.server
def test_an_unpinned_session_cannot_be_parked_and_a_cold_start_is_said(tmp_path: Path) -> None:
    with one() as server, begin(server, tmp_path, "first"):
        with pytest.warns(UserWarning, match="not pinned"):
            loop = begin(server, tmp_path)
        with loop:
            tokens = held(loop.ask("One.").usage)
            with pytest.raises(InvalidConfig, match="park: the session is not pinned"):
                loop.park()
    with one() as server:
        with resumed(server, tmp_path) as (loop, said):
            assert said == [
                "The server no longer caches this session, and no saved slot exists. "
                f"The first request will process the whole prompt: {tokens} tokens and the new message."
            ]
            loop.ask("Two.")
        with resumed(server, tmp_path) as (loop, said):
            assert said == []


@pytest.mark.server
def test_a_slot_that_does_not_hold_the_session_is_not_saved_over_one_that_did(tmp_path: Path) -> None:
    with one() as server, begin(server, tmp_path, "new") as loop:
        with pytest.raises(InvalidConfig, match="park: slot 0 contains nothing of this epoch"):
            loop.park()
    parked(tmp_path)
    kept = (tmp_path / "slots" / "s.bin").read_bytes()
    with one(template=tiny_template(reserialise=True)) as server, resumed(server, tmp_path) as (loop, _):
        with pytest.raises(InvalidConfig, match=r"park: slot 0 contains 0 tokens, not this session.*warm"):
            loop.park()
        assert (tmp_path / "slots" / "s.bin").read_bytes() == kept
        loop.warm()
        loop.park()
        assert (tmp_path / "slots" / "s.bin").read_bytes() != kept


def test_a_server_that_saves_no_slots_says_so(tmp_path: Path) -> None:
    slots = answer('[{"id":0,"is_processing":false,"n_prompt_tokens":105}]')
    why = "This server does not support slots action. Start it with `--slot-save-path`"
    refused = answer(json.dumps({"error": {"code": 501, "message": why, "type": "not_supported_error"}}), 501)
    with everything(UNSEEN, UNSEEN, done(100, 0, 6), slots, refused) as (server, _), begin(server, tmp_path, slot=0) as loop:
        loop.ask("One.")
        with pytest.raises(ServerRefused, match="HTTP 501: This server does not support slots action"):
            loop.park()
        assert not (tmp_path / "slots").exists()


def test_only_a_llama_server_has_slots(tmp_path: Path) -> None:
    with scripted(done(100, 0, 6)) as (server, _):
        server.engine = "vllm"
        with begin(server, tmp_path, slot=0) as loop:
            loop.ask("One.")
            with pytest.raises(InvalidConfig, match="park: vllm has no slots to save"):
                loop.park()
        with resumed(server, tmp_path) as (loop, said):
            assert said == [], "nobody knows what it holds"


@pytest.mark.server
def test_a_home_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    with one() as server, begin(server, tmp_path) as loop:
        loop.ask("One.")
        (tmp_path / "slots").write_text("a file")
        with pytest.raises(SessionIOError, match=r"s\.bin: cannot park the session: "):
            loop.park()


@pytest.mark.server
def test_a_slot_directory_that_is_the_homes_own(tmp_path: Path) -> None:
    folder = tmp_path / "slots"
    folder.mkdir(mode=0o700)
    with one(slot_dir=folder) as server, begin(server, tmp_path, system=SYSTEM) as loop:
        tokens = held(loop.ask("One.").usage)
        loop.park()
    with one(slot_dir=folder) as server, resumed(server, tmp_path) as (loop, said):
        assert loop.ask("Two.").usage.cached_tokens == tokens
        assert sorted(path.name for path in folder.iterdir()) == ["s.bin", "s.json"]
        assert stat.S_IMODE((folder / "s.bin").stat().st_mode) == 0o600
    assert said == []
