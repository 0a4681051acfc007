"""ConversationMatcher into parts: what only made-up entries bring about."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from pathlib import Path

from loopkit.contract.provenance import Role
from loopkit.contract.records import Usage
from loopkit.logs.collection import Logs
from loopkit.logs.foreign.entries import Entry, MessageEntry, RequestEntry
from loopkit.logs.foreign.frame_parts import build_parts
from loopkit.logs.foreign.text_source import TextSource
from loopkit.logs.frames.columns import Part

SAID: list[Entry] = []


def entries(source: TextSource, *, texts: bool) -> Iterator[Entry]:
    return iter(SAID)


def parts(said: Sequence[Entry]) -> list[Part]:
    SAID[:] = said
    adapter = types.SimpleNamespace(NAME="pi", entries=entries, recognises=lambda head: True)
    return build_parts(adapter, TextSource(Path("made up.jsonl"), errors="report"))


def ask(id: str, parent: str | None) -> MessageEntry:
    return MessageEntry("a", id, parent, role=Role.User, starts_turn=True)


def call(id: str, parent: str, seconds: float, cached: int, written: int, kept: float | None = None) -> RequestEntry:
    usage = Usage(prompt_tokens=cached + written + 3, cached_tokens=cached, cache_write_tokens=written)
    return RequestEntry("a", id, parent, int(seconds * 1e6), usage=usage, engine="anthropic", kept_seconds=kept)


def test_the_requests_of_a_turn_stand_together_where_a_branch_goes_back_to_it() -> None:
    said = [ask("1", None), call("2", "1", 1, 0, 9000), ask("3", "2"), call("4", "3", 2, 9000, 10), call("5", "2", 3, 9000, 20)]
    usage = Logs(tuple(parts(said))).usage
    assert usage[["turn", "request", "prompt_tokens"]].to_numpy().tolist() == [[1, 1, 9003], [1, 2, 9023], [2, 3, 9013]]
    assert Logs(tuple(parts(said))).turns["prompt_tokens"].tolist() == [18026, 9013]


def test_what_was_paid_for_an_hour_is_kept_for_an_hour_by_requests_that_only_read_it() -> None:
    said = [ask("1", None), call("2", "1", 0, 0, 9000, 3600), call("3", "2", 10, 9000, 0), call("4", "3", 2000, 0, 9000, 300)]
    [part] = parts([*said, call("5", "4", 2400, 0, 9000, 300)])
    assert part.losses["cause"].tolist() == ["unexplained", "expired"]


def test_blocks_of_an_odd_size_are_estimated() -> None:
    counts = [(8702, 0), (9155, 6592), (9400, 8240), (9800, 6592), (12000, 8240), (13000, 11536)]
    calls = [RequestEntry("a", usage=Usage(prompt_tokens=prompt, cached_tokens=cached), engine=None) for prompt, cached in counts]
    [part] = parts(calls)
    assert part.usage["lost_tokens"].tolist() == [0, 0, 0, 0, 0, 0]


def test_a_server_that_never_reports_has_no_losses_and_no_zeros() -> None:
    [part] = parts([RequestEntry("a", usage=Usage(prompt_tokens=25 * count), engine="vllm") for count in (100, 200)])
    assert Logs((part,)).usage["lost_tokens"].isna().tolist() == [True, True]
    assert Logs((part,)).usage["cached_tokens"].isna().all()
