"""Entries into conversations: by their links, whatever the order of the file."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from loopkit.contract.provenance import Role
from loopkit.contract.records import Usage
from loopkit.logs.foreign.conversation_tree import ConversationTrees, LoggedEpoch
from loopkit.logs.foreign.entries import (
    CompactionEntry,
    ConversationStart,
    Entry,
    Link,
    MessageEntry,
    RequestEntry,
    to_microseconds,
    to_rfc3339,
)
from loopkit.logs.foreign.text_source import TextSource


def source() -> TextSource:
    return TextSource(Path("made up.jsonl"), errors="report")


def threads(entries: Sequence[Entry]) -> ConversationTrees:
    return ConversationTrees(entries, source())


def call(
    id: str | None, parent: str | None, prompt: int, *, session: str = "a", key: str | None = None, **facts: object
) -> RequestEntry:
    return RequestEntry(session, id, parent, usage=Usage(prompt_tokens=prompt, **facts), key=key)  # type: ignore[arg-type]


def ask(id: str | None, parent: str | None, session: str = "a") -> MessageEntry:
    return MessageEntry(session, id, parent, role=Role.User, starts_turn=True)


def links(epoch: LoggedEpoch) -> list[tuple[int | None, int | None]]:
    """Each request's prompt, and that of the one it goes on from."""
    return [
        (row.request.usage.prompt_tokens, None if row.previous is None else row.previous.request.usage.prompt_tokens)
        for row in epoch.rows
    ]


def test_entries_without_an_id_follow_one_another() -> None:
    found = threads([ask(None, None), call(None, None, 1), call(None, None, 2, session="b"), call(None, None, 3)])
    assert links(found.sessions["a"].epochs[0]) == [(1, None), (3, 1)]
    assert links(found.sessions["b"].epochs[0]) == [(2, None)]


def test_a_branch_goes_on_from_where_it_parted() -> None:
    entries = [ask("1", None), call("2", "1", 10), ask("3", "2"), call("4", "3", 20), ask("5", "2"), call("6", "5", 30)]
    epoch = threads(entries).sessions["a"].epochs[0]
    assert links(epoch) == [(10, None), (20, 10), (30, 10)]
    assert [row.turn and row.turn.number for row in epoch.rows] == [1, 2, 3]


@given(st.integers(0, 2**32), st.integers(2, 40))
def test_the_order_of_the_file_does_not_matter(seed: int, length: int) -> None:
    rng = random.Random(seed)
    entries: list[Link] = [ask("0", None)]
    parents: dict[int, int] = {}
    for number in range(1, length):
        parent = rng.randrange(number)
        parents[number] = parent
        entries.append(call(str(number), str(parent), number))
    rng.shuffle(entries)
    [epoch] = threads(entries).sessions["a"].epochs
    assert dict(links(epoch)) == {number: parent or None for number, parent in parents.items()}


def test_a_compaction_begins_an_epoch_and_takes_up_the_turn() -> None:
    entries = [
        ask("1", None),
        call("2", "1", 10),
        CompactionEntry("a", "3", "2"),
        call("4", "3", 5),
        ask("5", "4"),
        call("6", "5", 7),
    ]
    first, second = threads(entries).sessions["a"].epochs
    assert (links(first), links(second)) == ([(10, None)], [(5, None), (7, 5)])
    assert [row.turn and row.turn.number for row in second.rows] == [1, 2]
    assert (first.compacted, second.compacted) == (True, False)


def test_one_request_told_often_is_one_with_its_largest_counts() -> None:
    entries = [
        call("1", None, 10, key="m", completion_tokens=1),
        call("2", "1", 10, key="m", completion_tokens=97),
        MessageEntry("a", "3", "2", role=Role.ToolResult, results=1),
        call("4", "3", 10, key="m", completion_tokens=5, cached_tokens=4),
        call("5", "4", 20, key="n"),
    ]
    epoch = threads(entries).sessions["a"].epochs[0]
    assert links(epoch) == [(10, None), (20, 10)]
    assert (epoch.rows[0].request.usage.completion_tokens, epoch.rows[0].request.usage.cached_tokens) == (97, 4)


def test_what_only_repeats_is_counted_and_left_out() -> None:
    told = source()
    found = ConversationTrees([call("1", None, 10), call("1", None, 10), call("2", "1", 12)], told)
    assert links(found.sessions["a"].epochs[0]) == [(10, None), (12, 10)]
    assert [problem.why for problem in told.problems] == ["entries whose id occurs earlier in the file"]


def test_nothing_is_expected_after_what_is_lost() -> None:
    told = source()
    found = ConversationTrees([call("1", None, 10), call("3", "2", 12), call("4", "3", 14), call("5", "2", 16)], told)
    assert links(found.sessions["a"].epochs[0]) == [(10, None), (12, None), (14, 12), (16, None)]
    assert [row.previous is None for row in found.sessions["a"].epochs[0].rows] == [True, False, False, False]
    assert [(problem.why, problem.affected) for problem in told.problems] == [("entries whose parent is not in the file", 2)]


def test_links_in_a_ring_end() -> None:
    found = threads([call("1", "2", 10), call("2", "1", 12), call("3", "3", 14)])
    assert sorted(links(found.sessions["a"].epochs[0]), key=lambda pair: pair[0] or 0) == [(10, None), (12, 10), (14, None)]


def test_a_conversation_that_goes_on_under_another_name_has_a_parent() -> None:
    found = threads([call("1", None, 10), call("2", "1", 12, session="b"), ConversationStart(session="c", parent="a")])
    assert found.sessions["b"].parent == "a"
    assert links(found.sessions["b"].epochs[0]) == [(12, 10)]
    assert found.sessions["c"].parent == "a"


def test_history_told_again_is_gone_on_from_and_not_counted() -> None:
    copied = RequestEntry("b", usage=Usage(prompt_tokens=10), is_copy=True)
    assert links(threads([copied, call(None, None, 12, session="b")]).sessions["b"].epochs[0]) == [(12, 10)]


def test_many_that_wait_for_one_are_taken_in_their_order() -> None:
    many = 30_000
    entries = [call(str(number), "0", number) for number in range(1, many)]
    [epoch] = threads([*entries, ask("0", None)]).sessions["a"].epochs
    assert [row.request.usage.prompt_tokens for row in epoch.rows] == list(range(1, many))


def test_moments_of_every_form() -> None:
    same = ("2026-11-30T07:00:00Z", "2026-11-30T07:00:00.000Z", "2026-11-30T09:00:00+02:00", "2026-11-30T07:00:00.000000000Z")
    assert {to_microseconds(when) for when in same} == {1_796_022_000_000_000}
    assert to_rfc3339(same[2]) == "2026-11-30T07:00:00.000000Z"
    assert [to_microseconds(when) for when in ("2026-11-30T07:00:00", "soon", "", None, -1)] == [None] * 5
